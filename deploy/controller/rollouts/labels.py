"""Do canary and stable answer the same mix of labels? A sequential test beside those of errors and latency. Pure.

The values of ``predicted_label`` are counted per version. Requests are
split at random, so both sides get the same kind of requests. The share of a value may differ by ``most`` (0.1: ten
percentage points), and not fall below a quarter of stable's: a value that the canary never gives is found, however
rare it is. There are two bets per value, like those of ``gate``: the canary gives it more often than that, and
less often. The permitted ratio follows from stable's share so far, which is known before each interval. Values beyond
the eighth count as one. The mean is over all places, used or not, so a value that appears late adds nothing to the
stake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deploy.controller.rollouts.bets import Bets, log_mean

_RATIOS: Final = (1.1, 1.3, 1.7, 3.0, 8.0)
_MAX_VALUES: Final = 8
PLACES: Final = 2 * (_MAX_VALUES + 1)
"""Bets that share the stake: on each value that it is more frequent, and that it is rarer."""
_REST: Final = "(other values)"
_VANISHED: Final = 0.25
"""The canary may give no value less often than this part of stable's share."""
_SAMPLE: Final = 200
"""Answers of stable that are counted before the first bet, which needs stable's shares."""
_FRESH: Final = Bets(((0.0,) * len(_RATIOS),), 0, _RATIOS)


@dataclass(frozen=True, slots=True)
class LabelTest:
    """The stakes of each value, and what was counted: ``canary`` and ``stable`` map values to answers."""

    most: float
    more: Mapping[str, Bets] = field(default_factory=dict)
    fewer: Mapping[str, Bets] = field(default_factory=dict)
    canary: Mapping[str, int] = field(default_factory=dict)
    stable: Mapping[str, int] = field(default_factory=dict)

    def after(self, canary: Mapping[str, int], stable: Mapping[str, int]) -> LabelTest:
        """Return the test after one interval of concurrent answers."""
        values = self._values(canary, stable)
        one, other = _gathered(canary, values), _gathered(stable, values)
        requests, references = sum(one.values()), sum(other.values())
        known = sum(self.stable.values())
        more, fewer = dict(self.more), dict(self.fewer)
        if known >= _SAMPLE:
            for value in values:
                share = self.stable.get(value, 0) / known
                likelier = _odds(share + self.most) / _odds(max(share, 0.5 / known))
                hits, reference_hits = one.get(value, 0), other.get(value, 0)
                more[value] = more.get(value, _FRESH).after(requests, hits, references, reference_hits, likelier)
                if share:
                    # The same with the sides exchanged: stable gives the value more often than the canary.
                    rarer = _odds(share) / _odds(max(share - self.most, _VANISHED * share))
                    bets = fewer.get(value, _FRESH)
                    fewer[value] = bets.after(references, reference_hits, requests, hits, rarer)
        return LabelTest(self.most, more, fewer, _added(self.canary, one), _added(self.stable, other))

    def renewed(self) -> LabelTest:
        """Return the test with new epochs started."""
        return replace(
            self, more={value: bets.renewed() for value, bets in self.more.items()},
            fewer={value: bets.renewed() for value, bets in self.fewer.items()},
        )  # fmt: skip

    @property
    def log_evidence(self) -> float:
        """The logarithm of the stake; places without a value keep theirs."""
        logs = [bets.log_evidence for bets in (*self.more.values(), *self.fewer.values())]
        return log_mean([*logs, *[0.0] * (PLACES - len(logs))])

    def describe(self) -> dict[str, Any]:
        """Return the shares that were compared."""
        return {"canary": _shares(self.canary), "stable": _shares(self.stable)}

    def _values(self, canary: Mapping[str, int], stable: Mapping[str, int]) -> tuple[str, ...]:
        """Return the values that are counted separately: known ones, then new ones, stable's most frequent first."""
        known = dict.fromkeys((*self.stable, *self.canary))
        fresh = sorted({*canary, *stable} - {*known}, key=lambda value: (-stable.get(value, 0), value))
        separate = [value for value in (*known, *fresh) if value != _REST]
        return (*separate[:_MAX_VALUES], _REST)


def _odds(share: float) -> float:
    share = min(share, 0.999)
    return share / (1 - share)


def _gathered(counts: Mapping[str, int], values: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value, count in counts.items():
        if count > 0:
            name = value if value in values else _REST
            found[name] = found.get(name, 0) + count
    return found


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {value: one.get(value, 0) + other.get(value, 0) for value in {**one, **other}}


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {value: round(count / total, 3) for value, count in counts.items() if count} if total else {}
