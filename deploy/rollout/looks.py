"""What the judge of a rollout was told, look by look, as lines that can be kept and judged again. Pure.

Written by ``triton-gateway canary run --looks FILE``, read by whoever asks what another gate would have decided. A line
is short: zeros at the slow end are left out, and bounds are those of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.rollout import steps
from deploy.rollout.gate import Counts
from deploy.rollout.source import LATENCY_BUCKETS


@dataclass(frozen=True, slots=True)
class Told:
    """What one look told: when (Unix seconds), at which share of the canary (percent), and what was seen."""

    at: float
    weight: float
    seen: steps.Seen

    def to_json(self) -> dict[str, Any]:
        """Return the look as it is kept."""
        seen = self.seen
        return {
            "at": round(self.at, 3), "weight": self.weight, "canary": _written(seen.canary),
            "stable": _written(seen.stable),
            **{name: list(found) for name in ("missing", "lagging") if (found := getattr(seen, name))},
        }  # fmt: skip

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Told:
        """Return what ``to_json`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        seen = steps.Seen(
            _read(stored["canary"]), _read(stored["stable"]), tuple(stored.get("missing", ())),
            tuple(stored.get("lagging", ())),
        )  # fmt: skip
        return cls(float(stored["at"]), float(stored["weight"]), seen)


def judged(rollout: steps.Rollout, looks: Iterable[Told]) -> steps.Rollout:
    """Return ``rollout`` after so many looks, or at its end: what the same judge decides on them."""
    for look in looks:
        rollout = steps.looked(rollout, look.seen, look.at)
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
