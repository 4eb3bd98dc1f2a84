"""The gate of a rollout: is the canary worse than the stable version that answers at the same time? Pure.

It is a sequential test by betting (an e-process), valid at every sample size. It may be evaluated after every scrape:
the probability that a canary which is not worse is ever rolled back is at most 1 / ``THRESHOLD``. ``steps`` calls it
with counts.

How it works. In one interval the canary answered ``n`` requests and stable ``m``, and some of them failed. If the
canary is not worse, the canary's share of the failures is hypergeometric. Only this split of the failures counts, so an
outage of everything, or a change of weights, proves nothing. A bet that the canary's odds of a failure are ``k`` times
stable's multiplies its stake by the likelihood ratio of the split. The sum over several ``k`` is the evidence. For a
canary that is not worse its expectation never grows. It therefore exceeds 100 with probability 1 % at most, however
often it is evaluated (Ville's inequality). A part of the stake is kept aside and bet little by little, to find a canary
that turns bad late. Errors, latency, labels and mirrored answers (``wagers``) are averaged, not added: the 1 % holds
for all of them together.

Latency is compared at one bucket bound near stable's median and at three near its slow end: how often each side is
slower than the bound. Bounds follow from stable's latencies in all earlier intervals, so the bets stay fair. A canary
may be slower by a tenth (``slower``). How much more often it may then exceed the bound follows from stable's own
histogram.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.controller.rollouts import sensitivity, wagers
from deploy.controller.rollouts.bets import Bets, log_mean
from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.wagers import PLACES, Wager

THRESHOLD: Final = 100.0
"""Evidence at which a canary is rolled back: at most 1 % of the canaries that are not worse reach it."""
DOUBT: Final = 10.0
"""Evidence between this and ``THRESHOLD`` is inconclusive: too much to continue, too little to roll back."""


@dataclass(frozen=True, slots=True)
class Gate:
    """All tests of one rollout, with what both sides have counted.

    ``slower``: permitted ratio of the canary's latency to stable's. ``label_shift``: by how much the share of a label
    may differ; 0: labels are not compared. ``other_answers``: share of the mirrored requests that may be answered
    differently; 0: nothing is mirrored.
    """

    slower: float = 1.1
    label_shift: float = 0.0
    other_answers: float = 0.0
    canary: Counts = field(default_factory=Counts)
    stable: Counts = field(default_factory=Counts)
    bets: Mapping[str, Mapping[str, Bets]] = field(default_factory=dict)
    """Test → place → stakes."""

    def after(self, canary: Counts, stable: Counts) -> Gate:
        """Return the gate after one interval of concurrent traffic."""
        known = {**self.stable.labels, **self.canary.labels}
        canary, stable = (
            replace(one, labels=wagers.gathered(one.labels, known, other.labels))
            for one, other in ((canary, stable), (stable, canary))
        )
        bets = {test: dict(places) for test, places in self.bets.items()}
        for test, place, gains, seen in self._wagers(canary, stable):
            places = bets.setdefault(test, {})
            places[place] = places.get(place, Bets.of(len(gains))).after(gains, seen)
        return replace(self, canary=self.canary.plus(canary), stable=self.stable.plus(stable), bets=bets)

    def _wagers(self, canary: Counts, stable: Counts) -> Iterator[Wager]:
        yield from wagers.errors(canary, stable)
        yield from wagers.latency(canary, stable, wagers.bounds(self.stable, self.slower))
        if self.label_shift:
            yield from wagers.labels(canary, stable, self.stable.labels, self.label_shift)
        if self.other_answers:
            yield from wagers.pairs(canary, self.other_answers)

    @property
    def evidence(self) -> float:
        """How many times better "the canary is worse" explains the counts; at most 1 on average if it is not worse."""
        return _fortune(log_mean([*self._logs().values()]))

    @property
    def is_bad(self) -> bool:
        """True if the evidence is enough to roll back."""
        return self.evidence >= THRESHOLD

    @property
    def compared_pairs(self) -> int:
        """How many answers to mirrored requests were compared."""
        return sum(self.canary.pairs)

    def reason(self) -> str:
        """Return a phrase that names the strongest evidence against the canary, with its numbers."""
        found = self._logs()
        strongest = max(found, key=lambda name: found[name])
        mirrored, failed = self.compared_pairs, self.canary.mirror_failures
        if strongest == "errors":
            also = f"; it also failed {failed} of {mirrored} that stable had answered" if failed else ""
            return (
                f"{self.canary.failures} of {self.canary.requests} requests failed, compared with "
                f"{self.stable.failures} of {self.stable.requests} for stable{also}"
            )
        if strongest == "latency":
            return f"it is slower by more than the permitted {self.slower - 1:.0%} (--slower)"
        if strongest == "labels":
            return (
                f"the shares of its labels are {listed(self.canary)}, stable's are {listed(self.stable)}; a share "
                f"may differ by {100 * self.label_shift:.0f} percentage points and not vanish (--label-shift)"
            )
        differed, where, most = self.canary.pairs[1], "", self.other_answers
        if strongest == "groups":
            places = self.bets["groups"]
            group = max(places, key=lambda one: places[one].log_evidence)
            differed, most = self.canary.differed.get(group, 0), wagers.most_in_group(most)
            mirrored, where = differed + self.canary.agreed.get(group, 0), f" of the group `{group}`"
        return (
            f"it answered {differed} of {mirrored} mirrored requests{where} ({differed / max(mirrored, 1):.1%}) "
            f"differently from stable; {most:.1%} are permitted (--other-answers)"
        )

    def could_see(self) -> dict[str, float | None]:
        """Return the smallest share of each kind that this many requests would have shown; see ``sensitivity``.

        ``errors``: of failures, ``labels``: by which that of the most frequent label changed, ``pairs``: of different
        answers. None: no fault of this kind, so far.
        """
        n, m, tests, mirrored = self.canary.requests, self.stable.requests, len(self._logs()), self.compared_pairs
        found = {"errors": sensitivity.smallest((self.stable.failures + 0.5) / (m + 1), n + mirrored, m, tests)}
        if self.label_shift:
            found["labels"] = sensitivity.change_of_labels(
                self.canary.labels, self.stable.labels, self.label_shift, tests
            )
        if self.other_answers:
            found["pairs"] = sensitivity.smallest(self.other_answers, mirrored, math.inf, tests)
        return found

    def describe(self) -> dict[str, Any]:
        """Return the evidence as it is recorded with every decision: in all, by test, and [requests, failures]."""
        return {
            "evidence": _rounded(self.evidence),
            **{name: _rounded(_fortune(log)) for name, log in self._logs().items()},
            "canary": [self.canary.requests, self.canary.failures],
            "stable": [self.stable.requests, self.stable.failures],
        }

    def _logs(self) -> dict[str, float]:
        """Return the logarithm of the stake of each test; places without bets keep theirs."""
        are_on = {"labels": self.label_shift, "pairs": self.other_answers, "groups": self.other_answers}
        found = {}
        for test, places in PLACES.items():
            if are_on.get(test, True):
                logs = [one.log_evidence for one in self.bets.get(test, {}).values()]
                found[test] = log_mean([*logs, *[0.0] * (places - len(logs))])
        return found


def _fortune(log: float) -> float:
    return math.exp(min(log, 700.0))


def listed(counts: Counts) -> str:
    """Return the shares of labels in words."""
    total = sum(counts.labels.values())
    return ", ".join(f"{label} {count / total:.0%}" for label, count in counts.labels.items()) or "none"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
