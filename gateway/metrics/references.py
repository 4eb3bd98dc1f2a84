"""Reads the folder of captured reference distributions: ``ENDPOINT.json`` and ``ENDPOINT/VERSION.json``.

The reconcile loop looks at it (in a thread) every time it looks at the serving Task, so a file that ``triton-gateway
drift capture`` writes, or a mounted ConfigMap that changes, is used without a restart.
"""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.metrics import drift
from gateway.metrics.drift import Reference

_log = logging.getLogger("triton_gateway.metrics")


class References:
    """The references of one folder, by endpoint url."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}
        self._found: dict[str, Reference] = {}

    def look(self) -> bool:
        """Read what changed; True when anything did. Never raises: a file that cannot be used is logged, once."""
        seen: dict[str, tuple[int, int]] = {}
        found: dict[str, Reference] = {}
        try:
            files = sorted(self._folder.glob("**/*.json"))
        except OSError:
            files = []
        for file in files:
            url = file.relative_to(self._folder).with_suffix("").as_posix()
            try:
                stat = file.stat()
                seen[url] = (stat.st_mtime_ns, stat.st_size)
                if self._seen.get(url) != seen[url]:
                    found[url] = drift.decode(file.read_text(encoding="utf-8"))
                elif url in self._found:
                    found[url] = self._found[url]
            except (OSError, ValueError) as error:
                _log.warning("reference %s cannot be used: %s", file, error)
        is_new = seen != self._seen
        self._seen, self._found = seen, found
        return is_new

    def of(self, url: str) -> Reference:
        """Return the reference of one endpoint url."""
        return self._found.get(url, Reference())
