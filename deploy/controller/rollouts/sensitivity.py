"""The smallest fault that a given number of requests would have shown: what a verdict could not have detected. Pure.

A test finds a fault when the stake on it has grown a hundredfold. The growth per request follows from how often canary
and stable do what is compared (fail, give a label, differ). The smallest fault is the one whose stake grows enough on
average. It is an estimate, for people and for how long a first step waits for mirrored answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from deploy.controller.rollouts.wagers import PLACES

_NEEDED: Final = math.log(100.0)
"""Logarithm of the evidence that rolls a canary back (``gate.THRESHOLD``)."""
_BETS: Final = math.log(5.0) + math.log(2.0)
"""Five bets share the stake, and half of it is kept aside."""


def smallest(base: float, canary: float, stable: float, tests: int) -> float | None:
    """Return the smallest share of the canary that would have been found if stable's, or the permitted one, is
    ``base``; None if not even all would. ``stable``: infinite if ``base`` is known. ``tests`` share the stake.
    """

    def is_found(share: float) -> bool:
        if not canary or not stable:
            return False
        common = base if math.isinf(stable) else (canary * share + stable * base) / (canary + stable)
        known = 0.0 if math.isinf(stable) else stable * _divergence(base, common)
        return canary * _divergence(share, common) + known >= _needed(tests)

    low, high = base, 1.0 - 1e-6
    if not is_found(high):
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def change_of_labels(canary: Mapping[str, int], stable: Mapping[str, int], most: float, tests: int) -> float | None:
    """Return the smallest change of the most frequent label's share that would have been found, if ``most`` is
    permitted.
    """
    answers = sum(stable.values())
    share = max(stable.values(), default=0) / max(answers, 1)
    share = min(share, 1 - share)  # that it gets rarer is that all others get more frequent
    least = smallest(min(share + most, 0.998), sum(canary.values()), answers, PLACES["labels"] * tests)
    return None if least is None else least - share


def _needed(tests: int) -> float:
    return _NEEDED + _BETS + math.log(tests)


def _divergence(share: float, base: float) -> float:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    found = share * math.log(share / base) if share > 0 else 0.0
    return found + ((1 - share) * math.log((1 - share) / (1 - base)) if share < 1 else 0.0)
