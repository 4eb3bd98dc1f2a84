"""The smallest fault that a given number of requests would have shown: what a verdict could not have detected. Pure.

A test finds a fault when the stake on it has grown a hundredfold. The growth per request follows from how often canary
and stable do what is compared (fail, give a label, differ). The smallest fault is the one whose stake grows enough on
average. It is an estimate, for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from deploy.controller.rollouts.wagers import PLACES

_NEEDED: Final = math.log(100.0)
"""Logarithm of the evidence that rolls a canary back (``gate.THRESHOLD``)."""
_BETS: Final = math.log(5.0) + math.log(2.0)
"""Five bets share the stake, and half of it is kept aside."""


def smallest(base: float, canary: float, stable: float, tests: int) -> float | None:
    """Return the smallest share of the canary that would have been found if stable's, or the permitted one, is
    ``base``; None if not even all would. ``stable``: infinite if ``base`` is known. ``tests`` share the stake.
    """
    if not canary or not stable:
        return None
    shares = np.geomspace(base, 1 - 1e-6, 2000)
    common: Any = base
    known: Any = 0.0
    if not math.isinf(stable):
        common = (canary * shares + stable * base) / (canary + stable)
        known = stable * _divergence(base, common)
    found = shares[canary * _divergence(shares, common) + known >= _NEEDED + _BETS + math.log(tests)]
    return float(found[0]) if len(found) else None


def change_of_labels(canary: Mapping[str, int], stable: Mapping[str, int], most: float, tests: int) -> float | None:
    """Return the smallest change of the most frequent label's share that would have been found, if ``most`` is
    permitted.
    """
    answers = sum(stable.values())
    share = max(stable.values(), default=0) / max(answers, 1)
    share = min(share, 1 - share)  # that it gets rarer is that all others get more frequent
    least = smallest(min(share + most, 0.998), sum(canary.values()), answers, PLACES["labels"] * tests)
    return None if least is None else least - share


def _divergence(share: Any, base: Any) -> Any:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    return share * np.log(share / base) + (1 - share) * np.log((1 - share) / (1 - base))
