"""The gate of a rollout: is the canary worse than the stable version that answers at the same time? Pure.

A sequential test by betting (an e-process), honest at every sample size: it may be looked at after every scrape, and
the chance that a canary which is no worse is ever rolled back is at most 1 / ``THRESHOLD``. Called by ``steps`` with
counts; knows nothing of where they come from.

How it works. In one interval the canary answered ``n`` requests and stable ``m``, and some of them failed. Were the
canary no worse, each failure would be the canary's with probability ``n / (n + m)`` at most: only the split of the
failures counts, so a bad hour for everybody, or weights that change, prove nothing. A bet on the canary being ``k``
times worse multiplies its stake with the likelihood ratio of the split; the mean over several ``k`` is the evidence.
Its expectation never grows for a canary that is no worse (batches are hypergeometric, which is tamer than the binomial
in the ratio), so it exceeds 100 with probability 1 % at most, whenever one looks (Ville's inequality). Bets are also
begun anew now and then, each with a share of the stake: a canary that turns bad late is found as well. Errors and
latency are averaged, not added: the 1 % is for all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.rollout.bets import Bets, log_mean
from deploy.rollout.labels import LabelTest

THRESHOLD: Final = 100.0
DOUBT: Final = 10.0
"""Evidence from here on is neither healthy nor enough to roll back: inconclusive."""

LATENCY_QUANTILES: Final = (0.9, 0.99)
_GRACE: Final = 1.1
_LATENCY_TOLERANCE: Final = 1.5
_LATENCY_SAMPLE: Final = 200


@dataclass(frozen=True, slots=True)
class Counts:
    """What one version answered in one interval: requests, failures, and answers by latency bucket.

    ``slower``: bucket bound in seconds → successful requests that took longer. ``timed``: successful requests.
    ``labels``: value → answers that gave it, of the variable that is compared.
    """

    requests: int = 0
    failures: int = 0
    timed: int = 0
    slower: Mapping[float, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gate:
    """All tests of one rollout and what they have seen. ``bounds``: latency thresholds, once stable told them."""

    errors: Bets = field(default_factory=Bets)
    latency: tuple[Bets, ...] = (Bets(),) * len(LATENCY_QUANTILES)
    bounds: tuple[float, ...] = ()
    stable_seen: Counts = field(default_factory=Counts)
    canary_requests: int = 0
    canary_failures: int = 0
    stable_requests: int = 0
    stable_failures: int = 0
    labels: LabelTest | None = None
    """What versions answer; None where it is not compared."""

    def after(self, canary: Counts, stable: Counts) -> Gate:
        """Return the gate after one interval of concurrent traffic."""
        latency = self.latency
        if self.bounds:
            # A bound that one side's histogram does not have cannot be compared.
            latency = tuple(
                bets.after(canary.timed, canary.slower[bound], stable.timed, stable.slower[bound], _LATENCY_TOLERANCE)
                if bound in canary.slower and bound in stable.slower else bets
                for bets, bound in zip(latency, self.bounds, strict=True)
            )  # fmt: skip
        known = _added(self.stable_seen, stable) if not self.bounds else self.stable_seen
        return Gate(
            errors=self.errors.after(canary.requests, canary.failures, stable.requests, stable.failures),
            latency=latency,
            # Chosen from what was seen before, used from the next interval on: the bets stay fair.
            bounds=self.bounds or _bounds(known),
            stable_seen=known,
            canary_requests=self.canary_requests + canary.requests,
            canary_failures=self.canary_failures + canary.failures,
            stable_requests=self.stable_requests + stable.requests,
            stable_failures=self.stable_failures + stable.failures,
            labels=self.labels and self.labels.after(canary.labels, stable.labels),
        )

    def renewed(self) -> Gate:
        """Return the gate with new epochs begun: at a new step the past weighs less."""
        return replace(
            self, errors=self.errors.renewed(), latency=tuple(bets.renewed() for bets in self.latency),
            labels=self.labels and self.labels.renewed(),
        )  # fmt: skip

    @property
    def evidence(self) -> float:
        """How many times better "the canary is worse" explains what was seen; fair: at most 1 on average if not."""
        logs = [self.errors.log_evidence, log_mean([bets.log_evidence for bets in self.latency])]
        if self.labels is not None:
            logs.append(self.labels.log_evidence)
        return math.exp(min(log_mean(logs), 700.0))

    @property
    def is_bad(self) -> bool:
        """Enough evidence to roll back."""
        return self.evidence >= THRESHOLD

    def describe(self) -> dict[str, Any]:
        """Return the evidence as it is recorded with every decision."""
        return {
            "evidence": _rounded(self.evidence),
            "errors": _rounded(math.exp(min(self.errors.log_evidence, 700.0))),
            "latency": _rounded(math.exp(min(log_mean([b.log_evidence for b in self.latency]), 700.0))),
            "latency_bounds_s": list(self.bounds),
            "canary": [self.canary_requests, self.canary_failures],
            "stable": [self.stable_requests, self.stable_failures],
            **({} if self.labels is None else {
                "labels": _rounded(math.exp(min(self.labels.log_evidence, 700.0))),
                "label_shares": self.labels.describe(),
            }),
        }  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return everything, for the serving Task."""
        return {
            "errors": [_rows(self.errors.epochs), self.errors.seen],
            "latency": [[_rows(bets.epochs), bets.seen] for bets in self.latency],
            "bounds": list(self.bounds),
            "totals": [self.canary_requests, self.canary_failures, self.stable_requests, self.stable_failures],
            **({} if self.labels is None else {"labels": self.labels.to_json()}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Gate:
        """Return what ``to_json`` stored; the search for latency bounds begins anew when it had not ended."""
        totals = [int(n) for n in stored["totals"]]
        return cls(
            errors=_bets(stored["errors"]),
            latency=tuple(_bets(item) for item in stored["latency"]),
            bounds=tuple(float(b) for b in stored["bounds"]),
            canary_requests=totals[0], canary_failures=totals[1],
            stable_requests=totals[2], stable_failures=totals[3],
            labels=LabelTest.from_json(stored["labels"]) if stored.get("labels") else None,
        )  # fmt: skip


def _bounds(seen: Counts) -> tuple[float, ...]:
    """Return the bucket bounds just above stable's quantiles; none before stable was seen often enough."""
    if seen.timed < _LATENCY_SAMPLE:
        return ()
    ordered = sorted(seen.slower)
    found = []
    for quantile in LATENCY_QUANTILES:
        value = _quantile(seen, ordered, quantile)
        found.append(next((bound for bound in ordered if bound >= value * _GRACE), math.inf))
    return tuple(found) if all(math.isfinite(bound) for bound in found) else ()


def _quantile(seen: Counts, ordered: Sequence[float], quantile: float) -> float:
    # Linear within a bucket, as Prometheus' histogram_quantile.
    target = seen.timed * (1 - quantile)
    below, slower_below = 0.0, seen.timed
    for bound in ordered:
        slower = seen.slower[bound]
        if slower <= target:
            inside = slower_below - slower
            return below + (bound - below) * ((slower_below - target) / inside if inside else 1.0)
        below, slower_below = bound, slower
    return math.inf


def _added(one: Counts, other: Counts) -> Counts:
    slower = {bound: one.slower.get(bound, 0) + other.slower.get(bound, 0) for bound in {*one.slower, *other.slower}}
    return Counts(one.requests + other.requests, one.failures + other.failures, one.timed + other.timed, slower)


def _rows(epochs: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(log, 4) for log in epoch] for epoch in epochs]


def _bets(stored: Sequence[Any]) -> Bets:
    return Bets(tuple(tuple(float(log) for log in epoch) for epoch in stored[0]), int(stored[1]))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
