"""promtool as a function: unit tests of rules, evaluated by Prometheus' own engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import kube_tools
from tests.waiting import LIMIT_S

RULES = sorted(kube_tools.RULES.glob("*.yml"))


TEXTS = {path: path.read_text() for path in RULES}
GIVES = {path: set(re.findall(r"(?:record|alert): (\S+)", text)) for path, text in TEXTS.items()}


def needed(checks: str) -> list[Path]:
    """The files that the rules named in ``checks`` are in or are computed from: others change none of their values."""
    if "ALERTS" in checks:
        return RULES
    found: set[Path] = set()
    words = set(re.findall(r"[\w:]+", checks))
    while new := {path for path in RULES if path not in found and GIVES[path] & words}:
        found |= new
        words |= {word for path in new for word in re.findall(r"[\w:]+", TEXTS[path])}
    return sorted(found)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses promtool needs Prometheus."""
    for item in items:
        if "evaluate" in getattr(item, "fixturenames", ()):
            item.add_marker("prometheus")


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., None]:
    """Run `promtool test rules`: `series` maps selectors to values, one every `interval`."""
    program = shutil.which("promtool")  # without it a test fails, it is never skipped
    assert program, "no promtool on PATH: install Debian's prometheus, or leave these tests out: -m 'not prometheus'"

    def run(series: dict[str, str], interval: str = "1m", **checks: Any) -> None:
        test = {
            "rule_files": [str(path) for path in needed(json.dumps(checks))],
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
        done = subprocess.run([program, "test", "rules", str(path)], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stdout + done.stderr

    return run
