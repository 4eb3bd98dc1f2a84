"""A real Prometheus for tests: scrapes addresses and evaluates rules every second, answers queries."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import httpx

from tests.processes import free_port
from tests.waiting import LIMIT_S


def program(name: str) -> str:
    """`prometheus` or `promtool`; a test that needs it fails without it, it is never skipped."""
    found = shutil.which(name)
    assert found, f"{name} is not on PATH: install Debian's prometheus, or leave these tests out: -m 'not prometheus'"
    return found


class Prometheus:
    """One process, from the beginning of the block to its end; its data is in ``folder/tsdb`` and may be there.

    ``targets`` are gateways, ``others`` one more target for each job; ``rules`` is a pattern of files.
    """

    def __init__(self, folder: Path, *targets: str, rules: str = "", **others: str) -> None:
        self._folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules] if rules else [],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": each}]}
                for job, each in {"triton-gateway": [*targets], **{job: [one] for job, one in others.items()}}.items()
            ],
        }))  # fmt: skip

    def __enter__(self) -> Prometheus:
        with (self._folder / "prometheus.log").open("a") as log:
            self._process = subprocess.Popen(
                [program("prometheus"), f"--config.file={self._folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={self._folder / 'tsdb'}", "--storage.tsdb.retention.time=10y",
                 "--enable-feature=exemplar-storage",
                 f"--web.listen-address={self.url.removeprefix('http://')}"], stdout=log, stderr=log,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def series(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query; none while nobody answers."""
        try:
            found = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}, timeout=LIMIT_S).json()
        except httpx.TransportError:
            return []
        assert "data" in found, found
        return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]

    def value(self, expr: str) -> float | None:
        """The one value of an instant query; None if there is none, or nobody answers yet."""
        found = self.series(expr)
        return found[0][1] if found else None
