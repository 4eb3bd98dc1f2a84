"""The newest trace id of every latency bucket: what leads from a slow bar on a board to a trace.

Filled by the observer for requests that belong to a trace, written into the OpenMetrics form of the exposition (the
older text form has no place for it). prometheus_client keeps no exemplars where several workers share a folder, so they
are kept here, and with several workers each leaves its own beside the others' numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from gateway.metrics import catalog

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
    """One per process and histogram series: at most one trace per bucket, the newest."""

    def __init__(self) -> None:
        self.seen: dict[Key, Seen] = {}
        self._is_dirty = False
        self._shared_at = 0.0

    def saw(self, served: tuple[str, str, str], seconds: float, trace_id: str) -> None:
        """Remember an answered request that belongs to a trace."""
        bucket = bisect_left(catalog.REQUEST_SECONDS.buckets, seconds)
        self.seen[*served, _LE[bucket]] = (trace_id, seconds, time.time())
        self._is_dirty = True

    def share(self, folder: Path, now: float) -> None:
        """Leave them where the other workers look, at most once in ``EVERY_S`` seconds."""
        if not self._is_dirty or now - self._shared_at < EVERY_S:
            return
        self._is_dirty, self._shared_at = False, now
        path = folder / f"exemplars_{os.getpid()}.json"
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps([[*key, *seen] for key, seen in self.seen.items()]))
        aside.replace(path)


def gathered(folder: Path) -> dict[Key, Seen]:
    """Return the newest of all workers that share ``folder``."""
    found: dict[Key, Seen] = {}
    for path in folder.glob("exemplars_*.json"):
        with contextlib.suppress(OSError, ValueError):
            for *key, trace_id, seconds, at in json.loads(path.read_text()):
                if at > found.get((*key,), ("", 0.0, 0.0))[2]:
                    found[*key,] = (trace_id, seconds, at)
    return found


class Marked:
    """What ``collector`` gives, with exemplars on the latency buckets."""

    def __init__(self, collector: Any, exemplars: Mapping[Key, Seen]) -> None:
        self._collector = collector
        self._exemplars = exemplars

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's ``Collector``."""
        families: Iterable[Metric] = self._collector.collect()
        for family in families:
            if family.name == catalog.REQUEST_SECONDS.name:
                for i, sample in enumerate(family.samples):
                    labels = sample.labels
                    if not sample.name.endswith("_bucket"):
                        continue
                    key = (labels["endpoint"], labels["version"], labels["route"], labels["le"])
                    if seen := self._exemplars.get(key):
                        exemplar = Exemplar({"trace_id": seen[0]}, seen[1], seen[2])
                        family.samples[i] = sample._replace(exemplar=exemplar)
            yield family
