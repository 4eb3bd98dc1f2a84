"""The newest trace id per latency bucket, which leads from a slow bar on a board to a trace.

The observer adds requests that belong to a trace. Only the OpenMetrics form of ``/metrics`` can show exemplars. With
several workers, each writes its own to a file beside its numbers (``sharing``); the file of an ended worker is deleted
when its numbers are folded.
"""

from __future__ import annotations

import contextlib
import json
import time
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prometheus_client.utils import floatToGoString

from gateway.metrics import catalog, sharing

EVERY_S: Final = 1.0
"""Shortest time between two writes."""

Key = tuple[str, ...]
"""Endpoint, version, route, ``le``."""
Seen = tuple[str, float, float]
"""Trace id, seconds, Unix time."""

_LE: Final = (
    *(str(floatToGoString(bound)) for bound in catalog.REQUEST_SECONDS.buckets),  # type: ignore[no-untyped-call]  # not annotated
    "+Inf",
)


class Exemplars:
    """The exemplars of one process: the newest trace per bucket and series. For use by one event loop."""

    def __init__(self) -> None:
        self._seen: dict[Key, Seen] = {}
        self._is_dirty = False
        self._taken_at = 0.0

    def saw(self, served: tuple[str, str, str], seconds: float, trace_id: str) -> None:
        """Remember an answered request that belongs to a trace."""
        bucket = bisect_left(catalog.REQUEST_SECONDS.buckets, seconds)
        self._seen[*served, _LE[bucket]] = (trace_id, seconds, time.time())
        self._is_dirty = True

    def seen(self) -> dict[Key, Seen]:
        """Return a copy for another thread."""
        return dict(self._seen)

    def news(self, now: float) -> dict[Key, Seen] | None:
        """Return a copy if anything was added since the last one, at most once per second."""
        if not self._is_dirty or now - self._taken_at < EVERY_S:
            return None
        self._is_dirty, self._taken_at = False, now
        return self.seen()


def share(seen: Mapping[Key, Seen], numbers: Path) -> None:
    """Write this process's exemplars beside the file of its ``numbers``, for the other workers. Raises ``OSError``."""
    content = json.dumps([[*key, *one] for key, one in seen.items()]).encode()
    sharing.replace(numbers.with_suffix(sharing.EXEMPLARS), content)


def gathered(folder: Path, own: Mapping[Key, Seen]) -> dict[Key, Seen]:
    """Return the newest exemplars of all workers that share ``folder``; ``own`` are this process's."""
    found = dict(own)
    for path in folder.glob(f"*{sharing.EXEMPLARS}"):
        with contextlib.suppress(OSError, ValueError):
            for *key, trace_id, seconds, at in json.loads(path.read_text()):
                if at > found.get((*key,), ("", 0.0, 0.0))[2]:
                    found[*key,] = (trace_id, seconds, at)
    return found
