"""The accuracy of each version, from the labels counted by all workers; the only place that stores labels.

Counters start from zero with each gateway, and labels come late and few, so their counts are stored in a file of the
state folder. The worker that judges drift calls this, in the thread that adds the numbers up; other workers show its
gauges. ``performance`` computes the accuracy expected from recent scores.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from gateway.metrics import catalog, performance, variables
from gateway.metrics.accumulator import Floats, Snapshot
from gateway.metrics.feedback import BINS, NO_SCORE, RIGHT
from gateway.metrics.performance import Estimate
from gateway.pace import unhurried

FILE: Final = "labels.jsonl"
_FORMAT: Final = 1
_SAVED_EVERY_S: Final = 60.0
_FORGOTTEN_S: Final = 90 * 86400.0
"""Labels of a version are kept this long after the last one."""
_STEP_S: Final = 300.0
_WINDOWS_S: Final = (3600.0, 86400.0)
"""Scores of the last hour are used, or those of the last day if there are fewer than ``_FEW``."""
_FEW: Final = 300
_PLACES: Final = {name: i for i, name in enumerate((*BINS, NO_SCORE))}

_log = logging.getLogger("triton_gateway.metrics")

Key = tuple[str, str]
"""Endpoint and version."""


class VersionAccuracy(NamedTuple):
    """A version's accuracy: measured from labels, and expected from its recent scores."""

    real: Estimate | None
    expected: Estimate | None


class Accuracy:
    """Stores labels by version. Not thread-safe. ``folder`` is where; None stores nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._labels: dict[Key, _Labels] = {}
        self._has_begun = False
        self._saved_at = -math.inf

    def update(
        self, now: float, snapshot: Snapshot, pause: Callable[[], None] = unhurried
    ) -> Mapping[Key, VersionAccuracy]:
        """Add what was counted since the last time; ``now`` is Unix time."""
        if not self._has_begun:
            self._read()
        for key, counted in _counted(snapshot, pause).items():
            labels = self._labels.setdefault(key, _Labels())
            # Other workers' counts before the first time are in the file already, up to a minute of an ended worker.
            labels.take(counted, now, is_known=not self._has_begun and bool(labels.kept.any()))
        self._has_begun = True
        scores = _scores(snapshot, self._labels.keys(), pause)
        found = {}
        for key, labels in self._labels.items():
            pause()
            if key in scores:
                labels.see(now, scores[key])
            found[key] = labels.estimates(now)
        if now >= self._saved_at + _SAVED_EVERY_S:
            self._saved_at = now
            self.save()
        return found

    def save(self) -> None:
        """Write the labels to the file."""
        if self._folder is None or not self._labels:
            return
        path = self._folder / FILE
        newest = max(labels.at for labels in self._labels.values())
        lines = [
            orjson.dumps((_FORMAT, key, labels.at, labels.kept.tolist()))
            for key, labels in self._labels.items() if labels.at > newest - _FORGOTTEN_S
        ]  # fmt: skip
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".new").write_bytes(b"\n".join(lines) + b"\n")
            path.with_suffix(".new").replace(path)
        except OSError as error:
            _log.warning("labels that came back are not remembered over a restart: %s", error)

    def _read(self) -> None:
        if self._folder is None:
            return
        try:
            for line in (self._folder / FILE).read_bytes().splitlines():
                version, (endpoint, number), at, kept = orjson.loads(line)
                counts = np.array(kept, dtype=np.float64)
                if version == _FORMAT and counts.shape == (len(_PLACES), 2):
                    self._labels[str(endpoint), str(number)] = _Labels(counts, float(at))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            _log.warning("labels that came back before the restart cannot be read: %s", error)


class _Labels:
    """One version's labels, float64 (score bins, 2: wrong and right), and the scores of its recent answers."""

    def __init__(self, kept: Floats | None = None, at: float = 0.0) -> None:
        self.kept: Floats = np.zeros((len(_PLACES), 2)) if kept is None else kept
        self.at = at
        self._before: Floats = np.zeros_like(self.kept)
        self._seen: deque[tuple[float, Floats]] = deque()
        self._now: Floats = np.zeros(len(BINS))

    def take(self, counted: Floats, now: float, *, is_known: bool) -> None:
        """Add what was counted since the last time."""
        if not is_known:
            # Counters fall if a worker's numbers are lost; what remains of them is not counted again.
            news = np.maximum(counted - self._before, 0.0)
            if news.any():
                self.kept, self.at = self.kept + news, now
        self._before = counted

    def see(self, now: float, scores: Floats) -> None:
        """Remember the number of answers per score bin."""
        self._now = scores
        if not self._seen or now - self._seen[-1][0] >= _STEP_S:
            self._seen.append((now, scores))
            while len(self._seen) > 1 and self._seen[1][0] <= now - _WINDOWS_S[-1]:
                self._seen.popleft()

    def estimates(self, now: float) -> VersionAccuracy:
        """Return the current accuracy."""
        labelled, right = self.kept[:-1].sum(axis=1), self.kept[:-1, 1]
        return VersionAccuracy(
            performance.measured(float(self.kept[:, 1].sum()), float(self.kept.sum())),
            performance.expected(right, labelled, self._lately(now), catalog.RATIO_BUCKETS),
        )

    def _lately(self, now: float) -> Floats:
        found: Floats = np.zeros(len(BINS))
        for window in _WINDOWS_S:
            before = [scores for at, scores in self._seen if at <= now - window]
            first = before[-1] if before else self._seen[0][1] if self._seen else self._now
            found = np.maximum(self._now - first, 0.0)
            if found.sum() >= _FEW:
                break
        return found


def _counted(snapshot: Snapshot, pause: Callable[[], None]) -> dict[Key, Floats]:
    found: dict[Key, Floats] = defaultdict(lambda: np.zeros((len(_PLACES), 2)))
    for (name, labels, _), value in snapshot.counted():
        if name == catalog.FEEDBACK_ANSWERS.name:
            pause()
            endpoint, version, bound, outcome = labels
            if bound in _PLACES:
                found[endpoint, version][_PLACES[bound], int(outcome == RIGHT)] += value
    return found


def _scores(snapshot: Snapshot, keys: Collection[Key], pause: Callable[[], None]) -> dict[Key, Floats]:
    """Return the number of answers per score bin, for versions that have labels."""
    found: dict[Key, Floats] = {}
    if not keys:
        return found
    for (name, labels, bounds), numbers in snapshot.distributed():
        if name == catalog.VARIABLE_SCALAR.name and labels[2] == variables.SCORE and labels[:2] in keys:
            pause()
            if bounds == catalog.RATIO_BUCKETS:  # otherwise the endpoint declares a variable of this name itself
                found[labels[0], labels[1]] = numbers[: len(BINS)].copy()
    return found


def of_gauges(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the accuracy gauges for the status: by version, ``real`` and ``expected`` with intervals."""
    values: dict[Key, dict[str, float]] = defaultdict(dict)
    for (name, labels, _), value in snapshot.shown():
        if name == catalog.ACCURACY.name and math.isfinite(value):
            values[labels[0], labels[1]][labels[2]] = value
    return [
        {
            "endpoint": endpoint, "version": version,
            **{kind: {"value": of[kind], "low": of[f"{kind}_low"], "high": of[f"{kind}_high"],
                      "answers": round(of[f"{kind}_answers"])}
               if of.keys() >= {kind, f"{kind}_low", f"{kind}_high", f"{kind}_answers"} else None
               for kind in ("real", "expected")},
        } for (endpoint, version), of in sorted(values.items())
    ]  # fmt: skip
