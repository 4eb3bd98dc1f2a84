"""Fetches one model as a gateway (``parts``) or model sync (``whole``) does, and tells what came of it as JSON.

A process of its own: the SDK reads its configuration once.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from gateway.errors import GatewayError
from gateway.registry import ArtifactCache, ClearMLRegistry
from gateway.settings import Settings


class Counting(ClearMLRegistry):
    """Counts the bytes of files that come from the store."""

    fetched = 0

    def download(self, uri: str, folder: Path) -> Path:
        path = super().download(uri, folder)
        self.fetched += path.stat().st_size
        return path


def main() -> None:
    """See the module."""
    how, task, model, folder = sys.argv[1:]
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("triton_gateway").addHandler(handler)
    logging.getLogger("triton_gateway").setLevel(logging.INFO)
    registry = Counting(task, files_rewrite=Settings().files_rewrites())
    cache = ArtifactCache(Path(folder), registry)
    answer: dict[str, object] = {}
    try:
        record = registry.model(model)
        found = cache.without_weights(record) if how == "parts" else cache.model(record)
        answer["files"] = {p.relative_to(found).as_posix(): p.stat().st_size for p in found.rglob("*") if p.is_file()}
    except GatewayError as error:
        answer = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    sys.stdout.write(json.dumps({**answer, "fetched": registry.fetched, "log": told}) + "\n")


if __name__ == "__main__":
    main()
