"""The Prometheus of ``up``: its configuration is valid and contains our rules."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.laptop import prometheus


def test_configuration_scrapes_what_is_there(tmp_path: Path) -> None:
    """The gateway, the controller, and Triton if it is the embedded one."""
    config = json.loads(
        prometheus.prepare(tmp_path, gateway="127.0.0.1:1", triton_metrics="", controller="127.0.0.1:3").read_text()
    )
    assert [("triton-gateway", "127.0.0.1:1"), ("controller", "127.0.0.1:3")] == [
        (job["job_name"], job["static_configs"][0]["targets"][0]) for job in config["scrape_configs"]
    ]


RULES = Path(__file__).parents[4] / "dashboards" / "prometheus"


@pytest.mark.prometheus
def test_configuration_is_valid_and_holds_the_rules(tmp_path: Path) -> None:
    """`promtool check config`."""
    path = prometheus.prepare(tmp_path, gateway="127.0.0.1:1", triton_metrics="127.0.0.1:2", controller="127.0.0.1:3")
    promtool = shutil.which("promtool")
    assert promtool
    done = subprocess.run([promtool, "check", "config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(RULES.glob("*.yml"))) == done.stdout.count("rules found")
