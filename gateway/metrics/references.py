"""Reads a folder of captured reference distributions: ``ENDPOINT.json`` and ``ENDPOINT/VERSION.json``.

The reconcile loop calls ``read`` in a thread whenever it reads the serving Task. A file written by ``triton-gateway
drift capture``, or a changed ConfigMap, is therefore used without a restart.
"""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.metrics import drift
from gateway.metrics.drift import Reference

_log = logging.getLogger("triton_gateway.metrics")


class References:
    """The references in one folder, by endpoint url."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}
        self._found: dict[str, Reference] = {}

    def read(self) -> bool:
        """Read changed files; True if anything changed. Never raises: an unusable file is logged once."""
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
        """Return the reference of an endpoint url; empty if there is none."""
        return self._found.get(url, Reference())
