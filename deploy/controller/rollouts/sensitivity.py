"""The smallest fault that a given number of requests would have shown: what a verdict could not have detected. Pure.

A test finds a fault when the stake on it has grown a hundredfold. How fast it grows follows from how often canary and
stable do what is compared (fail, give a label, differ); Bernstein's bound says at which share that is enough. It is an
estimate, for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from deploy.controller.rollouts.wagers import PLACES

_NEEDED: Final = math.log(100.0) + math.log(5.0) + math.log(2.0)
"""Logarithm of the evidence that rolls a canary back (``gate.THRESHOLD``), of which five bets share the stake, and half
of it is kept aside."""


def smallest(base: float, canary: float, stable: float, tests: int) -> float | None:
    """Return the smallest share of the canary that would have been found if stable's, or the permitted one, is
    ``base``; None if not even all would. ``stable``: infinite if ``base`` is known. ``tests`` share the stake.
    """
    if not canary or not stable:
        return None
    needed = (_NEEDED + math.log(tests)) * (1 / canary + 1 / stable)
    share = base + needed / 3 + math.sqrt(needed * needed / 9 + 2 * base * (1 - base) * needed)
    return share if share < 1 else None


def change_of_labels(canary: Mapping[str, int], stable: Mapping[str, int], most: float, tests: int) -> float | None:
    """Return the smallest change of the most frequent label's share that would have been found, if ``most`` is
    permitted.
    """
    answers = sum(stable.values())
    share = max(stable.values(), default=0) / max(answers, 1)
    share = min(share, 1 - share)  # that it gets rarer is that all others get more frequent
    least = smallest(min(share + most, 0.998), sum(canary.values()), answers, PLACES["labels"] * tests)
    return None if least is None else least - share
