"""Configuration and command line of the Prometheus that ``up`` starts if it is installed.

Scrapes this machine's gateway, Triton and controller, and evaluates the rules of ``dashboards/prometheus``. Called by
``stack``.
"""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

JOB = "triton-gateway"


def program() -> str | None:
    """Return the path of the program; None if it is not installed."""
    return shutil.which("prometheus")


def rules() -> Path | None:
    """Return the folder of our rules; None if the package was installed without it."""
    return installed("prometheus")


def installed(part: str) -> Path | None:
    """Return a data folder of the package ``dashboards``; None if it is not installed.

    The package itself is not imported, because that needs Grafana's SDK.
    """
    try:
        folder = Path(str(resources.files("dashboards"))) / part
    except ModuleNotFoundError:
        return None
    return folder if folder.is_dir() else None


def prepare(folder: Path, *, gateway: str, triton_metrics: str, controller: str) -> Path:
    """Write the configuration into ``folder`` and return it. Addresses are ``host:port``; no Triton: empty."""
    found = rules()
    jobs = {JOB: gateway, "triton": triton_metrics, "controller": controller}
    config = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
        "rule_files": [str(found / "*.yml")] if found else [],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in jobs.items() if target
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "prometheus.yml"
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    return path


def command(binary: str, config: Path, port: int) -> tuple[str, ...]:
    """Return the command line of a Prometheus on loopback that keeps 15 days."""
    return (
        binary, f"--config.file={config}", f"--storage.tsdb.path={config.parent / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=15d",
        "--enable-feature=exemplar-storage",
    )  # fmt: skip
