"""A real Prometheus for tests: scrapes addresses and evaluates rules every second."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.processes import Server, free_port


class Prometheus:
    """One process, from the beginning of the block to its end.

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
        found = shutil.which("prometheus")
        assert found, "prometheus is not on PATH: install Debian's, or leave these tests out: -m 'not prometheus'"
        argv = [
            found, f"--config.file={self._folder / 'prometheus.yml'}", f"--storage.tsdb.path={self._folder / 'tsdb'}",
            "--enable-feature=exemplar-storage", f"--web.listen-address={self.url.removeprefix('http://')}",
        ]  # fmt: skip
        self._server = Server("prometheus", argv, env=os.environ, log=self._folder / "prometheus.log")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
