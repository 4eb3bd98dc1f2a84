"""A real Prometheus for tests: scrapes addresses every second, answers queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx

from tests.kube_tools import RULES
from tests.processes import free_port


def program(name: str) -> str:
    """`prometheus` or `promtool`; a test that needs it fails without it, it is never skipped."""
    found = shutil.which(name)
    assert found, f"{name} is not on PATH: install Debian's prometheus, or leave these tests out: -m 'not prometheus'"
    return found


def every(folder: Path, interval: str, *names: str) -> list[Path]:
    """Our rule files of these names, written to ``folder`` to be evaluated every ``interval``."""
    folder.mkdir()
    found = []
    for path in (RULES / name for name in names):
        found.append(folder / path.name)
        found[-1].write_text(re.sub(r"interval: \d+s", f"interval: {interval}", path.read_text()))
    return found


class Prometheus:
    """One process, from the beginning of the block to its end; its data is in ``folder/tsdb`` and may be there."""

    def __init__(self, folder: Path, *targets: str) -> None:
        self._folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "triton-gateway", "static_configs": [{"targets": [*targets]}]}],
        }))  # fmt: skip

    def __enter__(self) -> Prometheus:
        with (self._folder / "prometheus.log").open("a") as log:
            self._process = subprocess.Popen(
                [program("prometheus"), f"--config.file={self._folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={self._folder / 'tsdb'}", "--storage.tsdb.retention.time=10y",
                 f"--web.listen-address={self.url.removeprefix('http://')}"], stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)

    def is_ready(self) -> bool:
        """True when it answers queries."""
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=20).status_code == 200
        except httpx.TransportError:
            return False

    def series(self, expr: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query; none while nobody answers."""
        params = {"query": expr, **({} if at is None else {"time": f"{at:.3f}"})}
        try:
            found = httpx.get(f"{self.url}/api/v1/query", params=params, timeout=60).json()
        except httpx.TransportError:
            return []
        assert "data" in found, found
        return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]

    def value(self, expr: str, at: float | None = None) -> float | None:
        """The one value of an instant query; None if there is none, or nobody answers yet."""
        found = self.series(expr, at)
        return found[0][1] if found else None
