"""Do canary and stable give the same answers to the same requests? A sequential test on mirrored requests. Pure.

The canary also gets requests that stable has answered (shadow traffic); callers never see its answers. The two answers
agree or differ; a failure of the canary is a different answer. A share ``most`` of them may differ (0.1: one answer in
ten). This finds what counts of labels cannot: a quarter of the answers flipped at random leaves every label as frequent
as before. There is one bet per share that the canary might really have. Agreeing answers count as well as different
ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.controller.rollouts.bets import Bets

_ALTERNATIVES: Final = (0.03, 0.1, 0.3, 0.8)
"""The shares that are bet on, as fractions of the range between ``most`` and 1."""
_FRESH: Final = Bets(((0.0,) * len(_ALTERNATIVES),), 0, _ALTERNATIVES)


@dataclass(frozen=True, slots=True)
class MirrorTest:
    """The stakes, and how many answers were compared. ``failed``: how many of the different ones were failures."""

    most: float
    bets: Bets = field(default_factory=lambda: _FRESH)
    agreed: int = 0
    differed: int = 0
    failed: int = 0

    def after(self, agreed: int, differed: int, failed: int) -> MirrorTest:
        """Return the test after one interval. ``differed`` includes ``failed``."""
        if not agreed and not differed:
            return self
        shares = [self.most + (1 - self.most) * part for part in _ALTERNATIVES]
        gains = [
            differed * math.log(share / self.most) + agreed * math.log((1 - share) / (1 - self.most))
            for share in shares
        ]
        return replace(
            self, bets=self.bets.moved(gains, agreed + differed), agreed=self.agreed + agreed,
            differed=self.differed + differed, failed=self.failed + failed,
        )  # fmt: skip

    def renewed(self) -> MirrorTest:
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
        return {
            "compared": self.compared, "differed": self.differed, "share": share, "permitted": self.most,
            "failed": self.failed,
        }  # fmt: skip
