"""Do canary and stable give the same answers to the same requests? A sequential test on mirrored requests. Pure.

The canary also gets requests that stable has answered (shadow traffic); callers never see its answers. The two answers
agree or differ; a failure of the canary is a different answer. A share ``most`` of all may differ (0.1: one answer in
ten), and a larger one of any group of requests (0.3): those with one label of stable, of one class of length, in one
language (``gateway/metrics/mirrored``). Groups overlap and are never crossed. This finds what counts of labels cannot:
a quarter of the answers flipped at random leaves every label as frequent as before, and a fault in one group alone is
small among all answers.

There is one bet per share that the canary might really have. Agreeing answers count as well as different ones. Half of
the stake is on all answers, half is shared by all places for groups, used or not: so a group that appears late adds
nothing, and the probability of a false alarm is that of one test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.controller.rollouts.bets import GROUPS, Bets, log_mean

_ALTERNATIVES: Final = (0.03, 0.1, 0.3, 0.8)
"""The shares that are bet on, as fractions of the range between ``most`` and 1."""
_FRESH: Final = Bets(((0.0,) * len(_ALTERNATIVES),), 0, _ALTERNATIVES)


@dataclass(frozen=True, slots=True)
class PairTest:
    """The stakes on one share, and how many answers were compared. ``most`` 1: they are counted only."""

    most: float
    bets: Bets = field(default_factory=lambda: _FRESH)
    agreed: int = 0
    differed: int = 0

    def after(self, agreed: int, differed: int) -> PairTest:
        """Return the test after one interval."""
        if not agreed and not differed:
            return self
        if self.most >= 1:
            return replace(self, agreed=self.agreed + agreed, differed=self.differed + differed)
        gains = [
            differed * math.log(share / self.most) + agreed * math.log((1 - share) / (1 - self.most))
            for share in self.alternatives()
        ]
        return replace(
            self, bets=self.bets.moved(gains, agreed + differed), agreed=self.agreed + agreed,
            differed=self.differed + differed,
        )  # fmt: skip

    def alternatives(self) -> tuple[float, ...]:
        """Return the shares that are bet on."""
        return tuple(self.most + (1 - self.most) * part for part in _ALTERNATIVES)

    def renewed(self) -> PairTest:
        """Return the test with a new epoch started."""
        return replace(self, bets=self.bets.renewed())

    @property
    def compared(self) -> int:
        """How many answers were compared."""
        return self.agreed + self.differed

    @property
    def log_evidence(self) -> float:
        """The logarithm of the stake."""
        return self.bets.log_evidence

    def describe(self) -> dict[str, Any]:
        """Return the counts, as they are recorded with every decision."""
        share = round(self.differed / self.compared, 4) if self.compared else None
        return {"compared": self.compared, "differed": self.differed, "share": share, "permitted": self.most}


@dataclass(frozen=True, slots=True)
class MirrorTest:
    """The test of all answers (``whole``) and those of groups, by group (``language de``).

    ``in_group``: the share that may differ in a group; 1: groups are counted only. ``failed``: how many of the
    different answers were failures.
    """

    whole: PairTest
    in_group: float
    groups: Mapping[str, PairTest] = field(default_factory=dict)
    failed: int = 0

    @classmethod
    def of(cls, most: float, in_group: float) -> MirrorTest:
        """Return a test that has seen nothing."""
        return cls(PairTest(most), in_group)

    def after(self, agreed: int, differed: int, failed: int, groups: Mapping[str, tuple[int, int]]) -> MirrorTest:
        """Return the test after one interval; of each group: agreed, differed. ``differed`` includes ``failed``."""
        found = dict(self.groups)
        for group, counts in groups.items():
            if group in found or len(found) < GROUPS:
                found[group] = found.get(group, PairTest(self.in_group)).after(*counts)
        return replace(self, whole=self.whole.after(agreed, differed), groups=found, failed=self.failed + failed)

    def renewed(self) -> MirrorTest:
        """Return the test with new epochs started."""
        groups = {group: test.renewed() for group, test in self.groups.items()}
        return replace(self, whole=self.whole.renewed(), groups=groups)

    @property
    def compared(self) -> int:
        """How many answers were compared."""
        return self.whole.compared

    @property
    def log_evidence(self) -> float:
        """The logarithm of the stake; places without a group keep theirs."""
        logs = [*self._logs().values()]
        return log_mean([self.whole.log_evidence, log_mean([*logs, *[0.0] * (GROUPS - len(logs))])])

    @property
    def strongest(self) -> tuple[str, PairTest]:
        """The test that speaks most against the canary, and its group; empty: all answers."""
        logs = self._logs()
        group = max(logs, key=lambda one: logs[one], default="")
        if group and logs[group] - math.log(GROUPS) > self.whole.log_evidence:
            return group, self.groups[group]
        return "", self.whole

    def describe(self) -> dict[str, Any]:
        """Return the counts, as they are recorded with every decision: of groups with different answers only."""
        groups = {group: [test.compared, test.differed] for group, test in self.groups.items() if test.differed}
        return {**self.whole.describe(), "failed": self.failed, "permitted_in_group": self.in_group, "groups": groups}

    def _logs(self) -> dict[str, float]:
        if self.in_group >= 1:
            return {}
        return {group: test.log_evidence for group, test in self.groups.items()}
