"""The newest trace id of every latency bucket: what leads from a slow bar on a board to a trace.

Filled by the observer for requests that belong to a trace, written into the OpenMetrics form of the exposition (the
older text form has no place for it). With several workers each leaves its own in a file beside its
numbers (``sharing``); those of a worker that ended go when its numbers are folded.
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

Key = tuple[str, ...]
"""Endpoint, version, route, ``le``."""
Seen = tuple[str, float, float]
"""Trace id, seconds, Unix time."""

_LE: Final = (
    *(str(floatToGoString(bound)) for bound in catalog.REQUEST_SECONDS.buckets),  # type: ignore[no-untyped-call]  # not annotated
    "+Inf",
)


class Exemplars:
    """One per process and histogram series: at most one trace per bucket, the newest. Only the event loop calls it."""

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
        """Return a copy, for another thread."""
        return dict(self._seen)

    def news(self, now: float) -> dict[Key, Seen] | None:
        """Return a copy if something was added since the last time, at most once in ``EVERY_S`` seconds."""
        if not self._is_dirty or now - self._taken_at < EVERY_S:
            return None
        self._is_dirty, self._taken_at = False, now
        return self.seen()


def share(seen: Mapping[Key, Seen], numbers: Path) -> None:
    """Leave this process's exemplars beside the file of its ``numbers``, for the other workers. Raises ``OSError``.

    Not while the numbers are written: both are written under the same name, then renamed.
    """
    aside = numbers.with_suffix(sharing.ASIDE)
    aside.write_text(json.dumps([[*key, *one] for key, one in seen.items()]))
    aside.replace(numbers.with_suffix(sharing.EXEMPLARS))


def gathered(folder: Path, own: Mapping[Key, Seen]) -> dict[Key, Seen]:
    """Return the newest of all workers that share ``folder``; ``own`` are this process's."""
    found = dict(own)
    for path in folder.glob(f"*{sharing.EXEMPLARS}"):
        with contextlib.suppress(OSError, ValueError):
            for *key, trace_id, seconds, at in json.loads(path.read_text()):
                if at > found.get((*key,), ("", 0.0, 0.0))[2]:
                    found[*key,] = (trace_id, seconds, at)
    return found
