"""promtool as a function: unit tests of rules, evaluated by Prometheus' own engine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RULES = sorted((Path(__file__).parents[3] / "dashboards" / "prometheus").glob("*.yml"))


@pytest.fixture(scope="session")
def promtool() -> str:
    """The program; a test that needs it fails without it, it is never skipped."""
    found = shutil.which("promtool")
    assert found, "promtool is not on PATH: install Debian's prometheus, or leave these tests out: -m 'not prometheus'"
    return found


@pytest.fixture
def evaluate(promtool: str, tmp_path: Path) -> Callable[..., None]:
    """Run `promtool test rules` on all rules: `series` maps selectors to values, one every `interval`."""

    def run(series: dict[str, str], interval: str = "1m", **checks: Any) -> None:
        test = {
            "rule_files": [str(path) for path in RULES],
            "evaluation_interval": interval,
            "tests": [
                {
                    "interval": interval,
                    "input_series": [{"series": name, "values": values} for name, values in series.items()],
                    **checks,
                }
            ],
        }
        path = tmp_path / "test.yml"
        path.write_text(json.dumps(test))  # JSON is YAML
        done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    return run
