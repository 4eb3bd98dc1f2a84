"""Judges drift from the counts of all workers; the only place that stores ``evidence``.

Works on merged numbers only: a variable's reference (``gateway_drift_reference_ratio``) and the count of each bin. Of
several workers, the one that holds the lock judges and publishes; the others show its gauges. The state is stored in a
file of the state folder, so a restart loses at most a minute, and another worker can take over.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import orjson

from gateway import locks
from gateway.metrics import evidence
from gateway.metrics.accumulator import Floats, Snapshot
from gateway.metrics.drift import ALARM_DAYS, OTHER
from gateway.metrics.live import BinCounts, references
from gateway.pace import unhurried

FILE: Final = "drift-evidence.jsonl"
_LOCK: Final = "drift-evidence.lock"
_FORMAT: Final = 1
_SAVED_EVERY_S: Final = 60.0
_FORGOTTEN_S: Final = 7 * evidence.DAY_S
"""The state of a version that is not served is kept this long."""

_log = logging.getLogger("triton_gateway.metrics")

Key = tuple[str, ...]
"""Endpoint, version, variable, reference."""
Stored = tuple[float, Any]
"""When it was last judged (Unix time), and its state."""


class Judge:
    """Follows every variable that has a reference. Not thread-safe.

    ``folder`` stores the state; None stores nothing. ``alarm_days``: expected time between false alarms per endpoint.
    """

    def __init__(self, folder: Path | None = None, alarm_days: float = ALARM_DAYS) -> None:
        self._folder = folder
        self.alarm_days = alarm_days
        self._lock: IO[bytes] | None = None
        self._known: dict[Key, _Followed] = {}
        self._stored: dict[Key, Stored] = {}
        self._bins = BinCounts()
        self._has_begun = False
        self._saved_at = self._judged_at = -math.inf
        self._has_complained = False

    def update(
        self, now: float, snapshot: Snapshot, pause: Callable[[], None] = unhurried
    ) -> Mapping[Key, evidence.Judged] | None:
        """Judge what was counted since the last time (``now`` is Unix time). None if another worker judges."""
        if not self._may():
            return None
        followable = {key: of for key, of in references(snapshot, pause).items() if math.isfinite(of[1])}
        every = self._bins.of(snapshot)
        if not self._has_begun:
            self._stored = self._read()
        for gone in self._known.keys() - followable.keys():
            del self._known[gone]
        found = {}
        for key, (ratios, size) in followable.items():
            pause()
            counts = self._bins.numbers(key, ratios, every)
            followed = self._known.get(key)
            if followed is None:
                p = np.array(list(ratios.values()))
                variable = evidence.Variable(p, size, ordered=OTHER not in ratios, alarm_days=self.alarm_days)
                # Counts from before the first time are of unknown age.
                before = counts if not self._has_begun else np.zeros_like(counts)
                followed = self._known[key] = _Followed(variable, before, now)
                followed.restore(self._stored.pop(key, None))
            if followed.variable.is_judged:
                found[key] = followed.update(counts, now)
        self._has_begun, self._judged_at = True, now
        if now >= self._saved_at + _SAVED_EVERY_S:
            self._saved_at = now
            self._save(pause)
        return found

    def close(self) -> None:
        """Store the state and let another worker judge."""
        if self._lock is not None:
            self._save(unhurried)
            self._lock.close()
            self._lock = None

    def _may(self) -> bool:
        if self._folder is None or self._lock is not None:
            return True
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = (self._folder / _LOCK).open("ab")
        except OSError as error:
            self._complain(error)
            self._folder = None  # judge without storing the state
            return True
        try:
            locks.lock(lock, waits=False)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        return True

    def _read(self) -> dict[Key, Stored]:
        if self._folder is None:
            return {}
        try:
            lines = [orjson.loads(line) for line in (self._folder / FILE).read_bytes().splitlines()]
            return {(*key,): (float(at), stored) for version, key, at, stored in lines if version == _FORMAT}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            self._complain(error)
            return {}

    def _save(self, pause: Callable[[], None]) -> None:
        if self._folder is None:
            return
        path = self._folder / FILE
        try:
            with path.with_suffix(".new").open("wb") as file:
                for key, (at, stored) in self._stored.items():  # of versions that are not served yet
                    if at > self._judged_at - _FORGOTTEN_S:
                        file.write(_line(key, at, stored))
                for key, followed in self._known.items():
                    pause()
                    file.write(_line(key, *followed.to_json()))
            path.with_suffix(".new").replace(path)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            _log.warning("evidence of drift is not remembered over a restart: %s (said once)", error)


class _Followed:
    """One variable, and its counts at the last time."""

    def __init__(self, variable: evidence.Variable, before: Floats, now: float) -> None:
        self.variable = variable
        self._before = before
        self._at = now
        self._last = evidence.Judged(0.0, 1.0, now)

    def update(self, counts: Floats, now: float) -> evidence.Judged:
        # Counters fall if a worker's numbers are lost; what remains of them is not counted again.
        news = np.maximum(counts - self._before, 0.0)
        if news.any():
            self._last = self.variable.step(news, max(0.0, now - self._at) / evidence.DAY_S, now)
            self._before, self._at = counts, now
        return self._last

    def to_json(self) -> tuple[float, Any]:
        last = self._last
        return self._at, [last.days, last.visible, last.since, self.variable.to_json()]

    def restore(self, stored: Stored | None) -> None:
        """Restore a state from ``to_json``, if it belongs to the same bets."""
        if stored is None:
            return
        try:
            at, (days, visible, since, bets) = stored
            self.variable.restore(bets)
            self._at, self._last = min(self._at, float(at)), evidence.Judged(float(days), float(visible), float(since))
        except (TypeError, ValueError):
            pass  # stored by a version with other bets: start anew


def _line(key: Key, at: float, stored: Any) -> bytes:
    return orjson.dumps((_FORMAT, key, at, stored)) + b"\n"
