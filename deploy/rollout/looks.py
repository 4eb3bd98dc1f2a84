"""The input of a rollout's gate, one record per look, to save it and to judge it again. Pure.

``triton-gateway canary run --looks FILE`` writes the records. They show what another gate would have decided. They are
short: zeros at the slow end are left out, and the latency bounds are those of the metrics catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.rollout import steps
from deploy.rollout.gate import Counts
from deploy.rollout.source import LATENCY_BUCKETS


@dataclass(frozen=True, slots=True)
class LookRecord:
    """One look: when (Unix seconds), at which share of the canary (percent), and what was seen."""

    at: float
    weight: float
    seen: steps.Observation

    def to_json(self) -> dict[str, Any]:
        """Return the record as a line of the file holds it."""
        seen = self.seen
        return {
            "at": round(self.at, 3), "weight": self.weight, "canary": _written(seen.canary),
            "stable": _written(seen.stable),
            **{name: list(found) for name in ("missing", "lagging") if (found := getattr(seen, name))},
        }  # fmt: skip

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> LookRecord:
        """Read what ``to_json`` returned. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        seen = steps.Observation(
            _read(stored["canary"]), _read(stored["stable"]), tuple(stored.get("missing", ())),
            tuple(stored.get("lagging", ())),
        )  # fmt: skip
        return cls(float(stored["at"]), float(stored["weight"]), seen)


def judged(rollout: steps.Rollout, looks: Iterable[LookRecord]) -> steps.Rollout:
    """Return ``rollout`` after ``looks``, or at its end: what the gate of ``rollout`` decides on them."""
    for look in looks:
        rollout = steps.after_look(rollout, look.seen, look.at)
        if rollout.is_over:
            break
    return rollout


def _written(counts: Counts) -> list[Any]:
    slower = [counts.slower.get(bound, 0) for bound in LATENCY_BUCKETS]
    while slower and not slower[-1]:
        slower.pop()
    return [counts.requests, counts.failures, counts.refused, counts.timed, slower, dict(counts.labels), *counts.pairs]


def _read(stored: list[Any]) -> Counts:
    requests, failures, refused, timed, kept, labels, agreed, differed = stored
    slower = (
        dict(zip(LATENCY_BUCKETS, [*kept, *[0] * (len(LATENCY_BUCKETS) - len(kept))], strict=True)) if timed else {}
    )
    return Counts(requests, failures, timed, slower, labels, (agreed, differed), refused)
