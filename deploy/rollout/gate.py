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
begun anew now and then, each with a share of the stake: a canary that turns bad late is found as well. Errors,
latency, labels and mirrored answers are averaged, not added: the 1 % is for all of them together.

Latency is compared at a bound near stable's median and at three near its slow end, chosen from what stable took before
and chosen anew after a thousand of its requests: how often each side is slower than the bound. A canary may be slower
by a tenth (``slower``); how much more often it then passes the bound follows from stable's own histogram.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.rollout import sight
from deploy.rollout.bets import Bets, log_mean
from deploy.rollout.labels import LabelTest
from deploy.rollout.pairs import PairTest

THRESHOLD: Final = 100.0
DOUBT: Final = 10.0
"""Evidence from here on is neither healthy nor enough to roll back: inconclusive."""

LATENCY_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)
SLOWER: Final = 1.1
"""How many times as long a canary may take without being worse."""
_LEAST_ALLOWED: Final = (1.2, 1.25, 1.35, 1.5)
"""Odds that are allowed at these quantiles at least: so few slow requests say little about stable's own histogram."""
_LATENCY_RATIOS: Final = (1.15, 1.4, 2.0, 4.0, 12.0)
_LATENCY_SAMPLE: Final = 200
"""Of stable's requests, before latencies are chosen to compare at."""
_LATENCY_AGAIN: Final = 1000
"""So many later they are chosen anew: a rollout that begins while all is slow would compare at nothing afterwards."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one version answered in one interval: requests, failures, and answers by latency bucket.

    ``slower``: bucket bound in seconds → successful requests that took longer. ``timed``: successful requests.
    ``labels``: value → answers that gave it, of the variable that is compared. ``pairs``: mirrored requests it answered
    as stable did, and otherwise. ``refused``: requests it had no room for; they are no part of ``requests``.
    """

    requests: int = 0
    failures: int = 0
    timed: int = 0
    slower: Mapping[float, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    pairs: tuple[int, int] = (0, 0)
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """A latency that both sides are compared at, in seconds.

    ``allowed``: how many times stable's odds of being slower the canary's may be. ``reach``: the share of stable's
    requests that would be slower, were all of them slower by each of ``sight.FACTORS``.
    """

    seconds: float
    allowed: float
    reach: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Gate:
    """All tests of one rollout and what they have seen. ``bounds``: latency thresholds, as stable last told them."""

    errors: Bets = field(default_factory=Bets)
    latency: tuple[Bets, ...] = ()
    bounds: tuple[Bound, ...] = ()
    stable_seen: Counts = field(default_factory=Counts)
    canary_requests: int = 0
    canary_failures: int = 0
    stable_requests: int = 0
    stable_failures: int = 0
    labels: LabelTest | None = None
    """How often versions give each label; None if that is not compared."""
    pairs: PairTest | None = None
    """What versions answer to the same requests; None if that is not compared."""
    slower: float = SLOWER

    def after(self, canary: Counts, stable: Counts) -> Gate:
        """Return the gate after one interval of concurrent traffic."""
        # A bound that one side's histogram does not have cannot be compared.
        latency = tuple(
            bets.after_odds(
                canary.timed, canary.slower[at.seconds], stable.timed, stable.slower[at.seconds], at.allowed
            ) if at.seconds in canary.slower and at.seconds in stable.slower else bets
            for bets, at in zip(self.latency, self.bounds, strict=True)
        )  # fmt: skip
        known, bounds = _added(self.stable_seen, stable), self.bounds
        if known.timed >= (_LATENCY_AGAIN if bounds else _LATENCY_SAMPLE) and (chosen := _bounds(known, self.slower)):
            # Chosen from what was seen before, used from the next interval on: the bets stay fair, also if those on
            # one latency are continued on another.
            latency = latency or (Bets(((0.0,) * len(_LATENCY_RATIOS),), 0, _LATENCY_RATIOS),) * len(LATENCY_QUANTILES)
            bounds = tuple(chosen[min(i, len(chosen) - 1)] for i in range(len(latency)))
            known = Counts()
        return replace(
            self,
            errors=self.errors.after(canary.requests, canary.failures, stable.requests, stable.failures),
            latency=latency, bounds=bounds, stable_seen=known,
            canary_requests=self.canary_requests + canary.requests,
            canary_failures=self.canary_failures + canary.failures,
            stable_requests=self.stable_requests + stable.requests,
            stable_failures=self.stable_failures + stable.failures,
            labels=self.labels and self.labels.after(canary.labels, stable.labels),
            pairs=self.pairs and self.pairs.after(*canary.pairs),
        )  # fmt: skip

    def renewed(self) -> Gate:
        """Return the gate with new epochs begun: at a new step the past weighs less."""
        return replace(
            self, errors=self.errors.renewed(), latency=tuple(bets.renewed() for bets in self.latency),
            labels=self.labels and self.labels.renewed(), pairs=self.pairs and self.pairs.renewed(),
        )  # fmt: skip

    @property
    def evidence(self) -> float:
        """How many times better "the canary is worse" explains what was seen; fair: at most 1 on average if not."""
        return _fortune(log_mean([*self._logs().values()]))

    @property
    def is_bad(self) -> bool:
        """Enough evidence to roll back."""
        return self.evidence >= THRESHOLD

    def reason(self) -> str:
        """Say what speaks most against the canary."""
        found = self._logs()
        strongest = max(found, key=lambda name: found[name])
        if strongest == "errors":
            return (
                f"{self.canary_failures} of {self.canary_requests} requests failed, {self.stable_failures} of "
                f"{self.stable_requests} of stable's"
            )
        if strongest == "latency":
            return f"it is slower by more than the {self.slower - 1:.0%} that are permitted"
        if strongest == "labels" and self.labels is not None:
            shares = self.labels.describe()
            return (
                f"it gives other labels: {_listed(shares['canary'])}, stable {_listed(shares['stable'])}; "
                f"{self.labels.most:.0%} more or fewer are permitted"
            )
        assert self.pairs is not None  # noqa: S101 - nothing else is left
        pairs = self.pairs
        return (
            f"it answered {pairs.differed} of {pairs.compared} mirrored requests otherwise than stable "
            f"({pairs.differed / max(pairs.compared, 1):.1%}); {pairs.most:.1%} are permitted"
        )

    def could_see(self) -> dict[str, float | None]:
        """Return the smallest fault of each kind that so many requests would have shown; see ``sight``.

        ``errors``, ``labels``, ``pairs``: shares; ``latency``: how many times as long. None: none would, yet.
        """
        n, m, tests = self.canary_requests, self.stable_requests, len(self._logs())
        found: dict[str, float | None] = {
            "errors": sight.errors(n, m, (self.stable_failures + 0.5) / (m + 1), tests),
            "latency": sight.latency(n, m, [(at.allowed, at.reach) for at in self.bounds], tests),
        }
        if self.labels is not None:
            found["labels"] = sight.labels(self.labels, tests)
        if self.pairs is not None:
            found["pairs"] = sight.pairs(self.pairs, tests)
        return found

    @property
    def enough_pairs(self) -> int:
        """How many mirrored answers tell twice the permitted share of other ones; 0 if they are not compared."""
        return sight.enough_pairs(self.pairs.most, len(self._logs())) if self.pairs is not None else 0

    @property
    def lacks_pairs(self) -> bool:
        """Fewer mirrored answers than that were compared."""
        return self.pairs is not None and self.pairs.compared < self.enough_pairs

    def describe(self) -> dict[str, Any]:
        """Return the evidence as it is recorded with every decision."""
        return {
            "evidence": _rounded(self.evidence),
            **{name: _rounded(_fortune(log)) for name, log in self._logs().items()},
            "latency_bounds_s": sorted({at.seconds for at in self.bounds}),
            "canary": [self.canary_requests, self.canary_failures],
            "stable": [self.stable_requests, self.stable_failures],
            **({} if self.labels is None else {"label_shares": self.labels.describe()}),
            **({} if self.pairs is None else {"mirrored": {**self.pairs.describe(), "enough": self.enough_pairs}}),
            "could_see": {name: least and _rounded(least) for name, least in self.could_see().items()},
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything, for the serving Task."""
        return {
            "errors": self.errors.to_json(),
            "latency": [bets.to_json() for bets in self.latency],
            "bounds": [at.seconds for at in self.bounds],
            "allowed": [round(at.allowed, 4) for at in self.bounds],
            "reach": [[round(share, 5) for share in at.reach] for at in self.bounds],
            "slower": self.slower,
            "totals": [self.canary_requests, self.canary_failures, self.stable_requests, self.stable_failures],
            **({} if self.labels is None else {"labels": self.labels.to_json()}),
            **({} if self.pairs is None else {"pairs": self.pairs.to_json()}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Gate:
        """Return what ``to_json`` stored; the search for latency bounds begins anew when it had not ended.

        Latency bounds of a version of before, whose bets were others, are looked for anew too.
        """
        totals = [int(n) for n in stored["totals"]]
        bounds: tuple[Bound, ...] = ()
        if "allowed" in stored:
            rows = zip(stored["bounds"], stored["allowed"], stored["reach"], strict=True)
            bounds = tuple(Bound(float(at), float(most), tuple(map(float, reach))) for at, most, reach in rows)
        return cls(
            errors=Bets.from_json(stored["errors"]),
            latency=tuple(Bets.from_json(item, _LATENCY_RATIOS) for item in stored["latency"]) if bounds else (),
            bounds=bounds,
            canary_requests=totals[0], canary_failures=totals[1],
            stable_requests=totals[2], stable_failures=totals[3],
            labels=LabelTest.from_json(stored["labels"]) if stored.get("labels") else None,
            pairs=PairTest.from_json(stored["pairs"]) if stored.get("pairs") else None,
            slower=float(stored.get("slower", SLOWER)),
        )  # fmt: skip

    def _logs(self) -> dict[str, float]:
        """Return the logarithm of the fortune of each test."""
        found = {"errors": self.errors.log_evidence}
        found["latency"] = log_mean([bets.log_evidence for bets in self.latency]) if self.latency else 0.0
        if self.labels is not None:
            found["labels"] = self.labels.log_evidence
        if self.pairs is not None:
            found["pairs"] = self.pairs.log_evidence
        return found


def _bounds(seen: Counts, slower: float) -> tuple[Bound, ...]:
    """Return the bucket bounds nearest to stable's quantiles; none if all were in one bucket."""
    inside = [bound for bound in sorted(seen.slower) if 0 < seen.slower[bound] < seen.timed]
    found: dict[float, Bound] = {}
    for quantile, least in zip(LATENCY_QUANTILES, _LEAST_ALLOWED, strict=True):
        if not inside:
            break
        wanted = _log_odds(1 - quantile)
        bound = min(inside, key=lambda one: abs(_log_odds(seen.slower[one] / seen.timed) - wanted))
        reach = tuple(_share_above(seen, bound / factor) for factor in sight.FACTORS)
        now, then = seen.slower[bound] / seen.timed, _share_above(seen, bound / slower)
        found.setdefault(bound, Bound(bound, max(least, math.exp(_log_odds(then) - _log_odds(now))), reach))
    return tuple(found.values())


def _share_above(seen: Counts, seconds: float) -> float:
    """Return the share of requests that took longer, estimated within a bucket.

    A straight line says too much where latencies thin out, a falling exponential too little: the mean of both.
    """
    before, share_before = 0.0, 1.0
    for bound in sorted(seen.slower):
        share = seen.slower[bound] / seen.timed
        if bound >= seconds:
            part = (seconds - before) / (bound - before) if bound > before else 1.0
            straight = share_before + (share - share_before) * part
            return (straight + math.pow(share_before, 1 - part) * math.pow(share, part)) / 2
        before, share_before = bound, share
    return share_before


def _log_odds(share: float) -> float:
    share = min(max(share, 1e-4), 1 - 1e-4)
    return math.log(share / (1 - share))


def _fortune(log: float) -> float:
    return math.exp(min(log, 700.0))


def _listed(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{value} {share:.0%}" for value, share in shares.items()) or "none"


def _added(one: Counts, other: Counts) -> Counts:
    slower = {bound: one.slower.get(bound, 0) + other.slower.get(bound, 0) for bound in {*one.slower, *other.slower}}
    return Counts(one.requests + other.requests, one.failures + other.failures, one.timed + other.timed, slower)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
