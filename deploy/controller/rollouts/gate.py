"""The gate of a rollout: is the canary worse than the stable version that answers at the same time? Pure.

It is a sequential test by betting (an e-process), valid at every sample size. It may be evaluated after every scrape:
the probability that a canary which is not worse is ever rolled back is at most 1 / ``THRESHOLD``. ``steps`` calls it
with counts.

How it works. In one interval the canary answered ``n`` requests and stable ``m``, and some of them failed. If the
canary is not worse, the canary's share of the failures is hypergeometric. Only this split of the failures counts, so an
outage of everything, or a change of weights, proves nothing. A bet that the canary's odds of a failure are ``k`` times
stable's multiplies its stake by the likelihood ratio of the split. The mean over several ``k`` is the evidence. For a
canary that is not worse its expectation never grows. It therefore exceeds 100 with probability 1 % at most, however
often it is evaluated (Ville's inequality). New bets are started from time to time, each with a share of the stake, to
find a canary that turns bad late. Errors, latency, labels and mirrored answers are averaged, not added: the 1 % holds
for all of them together.

Latency is compared at one bucket bound near stable's median and at three near its slow end: how often each side is
slower than the bound. Bounds are chosen from stable's earlier latencies, and again after a thousand of its requests. A
canary may be slower by a tenth (``slower``). How much more often it may then exceed the bound follows from stable's own
histogram.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.controller.rollouts import sensitivity
from deploy.controller.rollouts.bets import Bets, log_mean
from deploy.controller.rollouts.labels import LabelTest
from deploy.controller.rollouts.pairs import MirrorTest

THRESHOLD: Final = 100.0
"""Evidence at which a canary is rolled back: at most 1 % of the canaries that are not worse reach it."""
DOUBT: Final = 10.0
"""Evidence between this and ``THRESHOLD`` is inconclusive: too much to continue, too little to roll back."""

LATENCY_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)
"""Quantiles of stable's latency near which both sides are compared."""
SLOWER: Final = 1.1
"""Permitted ratio of the canary's latency to stable's."""
_LEAST_ALLOWED: Final = (1.2, 1.25, 1.35, 1.5)
"""Smallest permitted ratio of odds at these quantiles: few slow requests make stable's histogram uncertain there."""
_LATENCY_RATIOS: Final = (1.15, 1.4, 2.0, 4.0, 12.0)
"""The alternatives that are bet on: ratios of the canary's odds of a slow answer to the permitted ones."""
_LATENCY_SAMPLE: Final = 200
"""Requests of stable that are seen before the latency bounds are chosen."""
_LATENCY_AGAIN: Final = 1000
"""Requests of stable after which the bounds are chosen again. A rollout that begins in a slow phase would otherwise
compare at bounds that nothing exceeds later.
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of one version in one interval: requests, failures, and answers by latency bucket.

    ``slower``: bucket bound in seconds → successful requests that took longer. ``timed``: successful requests.
    ``labels``: value → answers with this label. ``pairs``: mirrored requests with the same
    answer as stable, and with another one or none; ``mirror_failures``: those with none, because the version failed.
    ``refused``: requests that the version had no capacity for; ``requests`` does not include them, nor mirrored ones.
    """

    requests: int = 0
    failures: int = 0
    timed: int = 0
    slower: Mapping[float, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    pairs: tuple[int, int] = (0, 0)
    refused: int = 0
    mirror_failures: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """A latency at which both sides are compared, in seconds.

    ``allowed``: the permitted ratio of the canary's odds of being slower to stable's.
    """

    seconds: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Gate:
    """All tests of one rollout with their counts. ``bounds``: latency bounds, chosen from stable's latencies."""

    errors: Bets = field(default_factory=Bets)
    latency: tuple[Bets, ...] = ()
    bounds: tuple[Bound, ...] = ()
    stable_seen: Counts = field(default_factory=Counts)
    canary_requests: int = 0
    canary_failures: int = 0
    stable_requests: int = 0
    stable_failures: int = 0
    labels: LabelTest | None = None
    """Compares how often each label occurs; None if labels are not compared."""
    pairs: MirrorTest | None = None
    """Compares both answers to mirrored requests; None if nothing is mirrored."""
    slower: float = SLOWER

    def after(self, canary: Counts, stable: Counts) -> Gate:
        """Return the gate after one interval of concurrent traffic."""
        # A bound that one side's histogram does not have cannot be compared.
        latency = tuple(
            bets.after(
                canary.timed, canary.slower[at.seconds], stable.timed, stable.slower[at.seconds], at.allowed
            ) if at.seconds in canary.slower and at.seconds in stable.slower else bets
            for bets, at in zip(self.latency, self.bounds, strict=True)
        )  # fmt: skip
        known, bounds = _added(self.stable_seen, stable), self.bounds
        if known.timed >= (_LATENCY_AGAIN if bounds else _LATENCY_SAMPLE) and (chosen := _bounds(known, self.slower)):
            # Bounds chosen from past intervals are used from the next one on. The bets therefore stay fair, even if
            # the bets on one latency continue on another.
            latency = latency or (Bets(((0.0,) * len(_LATENCY_RATIOS),), 0, _LATENCY_RATIOS),) * len(LATENCY_QUANTILES)
            bounds = tuple(chosen[min(i, len(chosen) - 1)] for i in range(len(latency)))
            known = Counts()
        return replace(
            self,
            # Stable has answered every mirrored request, so a failure there is the canary's alone.
            errors=self.errors.after(
                canary.requests + sum(canary.pairs), canary.failures + canary.mirror_failures, stable.requests,
                stable.failures,
            ),
            latency=latency, bounds=bounds, stable_seen=known,
            canary_requests=self.canary_requests + canary.requests,
            canary_failures=self.canary_failures + canary.failures,
            stable_requests=self.stable_requests + stable.requests,
            stable_failures=self.stable_failures + stable.failures,
            labels=self.labels and self.labels.after(canary.labels, stable.labels),
            pairs=self.pairs and self.pairs.after(*canary.pairs, canary.mirror_failures),
        )  # fmt: skip

    def renewed(self) -> Gate:
        """Return the gate with new epochs started: in a new step the past counts less."""
        return replace(
            self, errors=self.errors.renewed(), latency=tuple(bets.renewed() for bets in self.latency),
            labels=self.labels and self.labels.renewed(), pairs=self.pairs and self.pairs.renewed(),
        )  # fmt: skip

    @property
    def evidence(self) -> float:
        """How many times better "the canary is worse" explains the counts; at most 1 on average if it is not worse."""
        return _fortune(log_mean([*self._logs().values()]))

    @property
    def is_bad(self) -> bool:
        """True if the evidence is enough to roll back."""
        return self.evidence >= THRESHOLD

    def reason(self) -> str:
        """Return a phrase that names the strongest evidence against the canary, with its numbers."""
        found = self._logs()
        strongest = max(found, key=lambda name: found[name])
        if strongest == "errors":
            failed = (
                f"{self.canary_failures} of {self.canary_requests} requests failed, compared with "
                f"{self.stable_failures} of {self.stable_requests} for stable"
            )
            if self.pairs is None or not self.pairs.failed:
                return failed
            return f"{failed}; it also failed {self.pairs.failed} of {self.pairs.compared} that stable had answered"
        if strongest == "latency":
            return f"it is slower by more than the permitted {self.slower - 1:.0%} (--slower)"
        if strongest == "labels" and self.labels is not None:
            shares = self.labels.describe()
            return (
                f"the shares of its labels are {_listed(shares['canary'])}, stable's are {_listed(shares['stable'])}; "
                f"a share may differ by {100 * self.labels.most:.0f} percentage points and not vanish (--label-shift)"
            )
        assert self.pairs is not None  # noqa: S101 - nothing else is left
        differed, compared = self.pairs.differed, self.pairs.compared
        return (
            f"it answered {differed} of {compared} mirrored requests ({differed / max(compared, 1):.1%}) differently "
            f"from stable; {self.pairs.most:.1%} are permitted (--other-answers)"
        )

    def could_see(self) -> dict[str, float | None]:
        """Return the smallest share of each kind that this many requests would have shown; see ``sensitivity``.

        ``errors``: of failures, ``labels``: by which that of the most frequent label changed, ``pairs``: of different
        answers. None: no fault of this kind, so far.
        """
        n, m, tests = self.canary_requests, self.stable_requests, len(self._logs())
        mirrored = self.pairs.compared if self.pairs is not None else 0
        found = {"errors": sensitivity.smallest((self.stable_failures + 0.5) / (m + 1), n + mirrored, m, tests)}
        if self.labels is not None:
            found["labels"] = sensitivity.change_of_labels(self.labels, tests)
        if self.pairs is not None:
            found["pairs"] = sensitivity.smallest(self.pairs.most, mirrored, math.inf, tests)
        return found

    @property
    def enough_pairs(self) -> int:
        """Mirrored answers needed to detect what ``sensitivity.enough_pairs`` says; 0 if nothing is mirrored."""
        return 0 if self.pairs is None else sensitivity.enough_pairs(self.pairs.most, len(self._logs()))

    @property
    def lacks_pairs(self) -> bool:
        """True if fewer than ``enough_pairs`` mirrored answers were compared."""
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

    def _logs(self) -> dict[str, float]:
        """Return the logarithm of the stake of each test."""
        found = {"errors": self.errors.log_evidence}
        found["latency"] = log_mean([bets.log_evidence for bets in self.latency]) if self.latency else 0.0
        if self.labels is not None:
            found["labels"] = self.labels.log_evidence
        if self.pairs is not None:
            found["pairs"] = self.pairs.log_evidence
        return found


def _bounds(seen: Counts, slower: float) -> tuple[Bound, ...]:
    """Return the bucket bounds nearest to stable's quantiles; empty if all requests were in one bucket."""
    inside = [bound for bound in sorted(seen.slower) if 0 < seen.slower[bound] < seen.timed]
    found: dict[float, Bound] = {}
    for quantile, least in zip(LATENCY_QUANTILES, _LEAST_ALLOWED, strict=True):
        if not inside:
            break
        wanted = _log_odds(1 - quantile)
        bound = min(inside, key=lambda one: abs(_log_odds(seen.slower[one] / seen.timed) - wanted))
        now, then = seen.slower[bound] / seen.timed, _share_above(seen, bound / slower)
        found.setdefault(bound, Bound(bound, max(least, math.exp(_log_odds(then) - _log_odds(now)))))
    return tuple(found.values())


def _share_above(seen: Counts, seconds: float) -> float:
    """Return the share of requests that took longer than ``seconds``, interpolated within its bucket.

    Where latencies get rare, a straight line overestimates and a falling exponential underestimates: it is their mean.
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
