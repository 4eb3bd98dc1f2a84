"""The smallest fault that a given number of requests would have shown: what a verdict could not have detected. Pure.

A test finds a fault when the stake on it has grown a hundredfold. The growth per request follows from how often canary
and stable do what is compared (fail, are slow, give a label). The smallest fault is the one whose stake grows enough on
average. This is an estimate for people; only ``enough_pairs`` is used in a decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from deploy.controller.rollouts.bets import GROUPS
from deploy.controller.rollouts.labels import LabelTest
from deploy.controller.rollouts.pairs import PairTest

FACTORS: Final = (1.0, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 3.0)
"""Slowdowns that are examined, as factors; the first is none."""
_NEEDED: Final = math.log(100.0)
"""Logarithm of the evidence that rolls a canary back (``gate.THRESHOLD``)."""
_MAX_BAD_LUCK: Final = 1.645
"""Standard deviations below the mean; nineteen of twenty draws are above."""
_BETS: Final = math.log(5.0) + math.log(2.0)
"""Five bets share the stake, and half of it is kept for later epochs."""
_HALF: Final = math.log(2.0)
"""Half of the stake on mirrored answers is on all of them, half on groups."""
SMALL_GROUP: Final = 0.03
"""Share of the requests in the smallest group for which a rollout waits."""


def errors(canary: int, stable: int, share: float, tests: int) -> float | None:
    """Return the smallest share of failures that would have been found if ``share`` of stable's requests failed."""
    return _smallest(share, lambda one: _gain(one, share, canary, stable), tests)


def latency(canary: int, stable: int, bounds: Sequence[tuple[float, tuple[float, ...]]], tests: int) -> float | None:
    """Return the smallest slowdown, as a factor, that would have been found.

    ``bounds``: for each latency bound the permitted ratio of odds, and the share of slower requests for each of
    ``FACTORS``.
    """
    needed = _needed(tests) + math.log(max(len(bounds), 1))
    for index, factor in enumerate(FACTORS):
        for allowed, reach in bounds:
            odds = allowed * reach[0] / max(1 - reach[0], 1e-9)
            base = odds / (1 + odds)
            if reach[index] > base and _gain(reach[index], base, canary, stable) >= needed:
                return factor
    return None


def labels(test: LabelTest, tests: int) -> float | None:
    """Return the smallest change of the most frequent label's share, up or down, that would have been found."""
    canary, stable = sum(test.canary.values()), sum(test.stable.values())
    if not stable:
        return None
    share = max(test.stable.values()) / stable
    places = math.log(18)

    def gain(moved: float) -> float:
        up = _gain(min(share + moved, 0.999), min(share + test.most, 0.998), canary, stable)
        down = _gain(max(share - moved, 0.001), max(share - test.most, 0.002), canary, stable)
        return max(up, down) - places

    return _smallest(test.most, gain, tests)


def pairs(test: PairTest, tests: int) -> float | None:
    """Return the smallest share of different answers that would have been found."""
    return _smallest(test.most, lambda share: test.compared * _divergence(share, test.most) - _HALF, tests)


def twice(most: float) -> float:
    """Return twice the permitted share ``most``; for a large one, the middle between it and 1."""
    return min(2 * most, (1 + most) / 2)


def enough_pairs(most: float, in_group: float, tests: int) -> int:
    """Return how many pairs detect both of these in nineteen rollouts of twenty.

    A share ``twice(most)`` of different answers among all, and a group with ``SMALL_GROUP`` of the requests in which
    every answer differs. ``in_group``: the share that may differ there; of more than half, no such group is waited for.
    """
    share = twice(most)
    grows = _divergence(share, most)
    by_chance = math.sqrt(share * (1 - share)) * math.log(share / most * (1 - most) / (1 - share))
    # After n pairs the stake has grown by n * grows, less up to _MAX_BAD_LUCK * sqrt(n) * by_chance by bad luck.
    enough = _enough(grows, by_chance, _needed(tests) + _HALF)
    if in_group > 0.5:
        return enough
    # Every pair in the group makes its stake grow by as much, and none outside; how many are in it is chance.
    found = math.log(max(PairTest(in_group).alternatives()) / in_group)
    grows, by_chance = SMALL_GROUP * found, math.sqrt(SMALL_GROUP * (1 - SMALL_GROUP)) * found
    return max(enough, _enough(grows, by_chance, _needed(tests) + _HALF + math.log(GROUPS)))


def _enough(grows: float, by_chance: float, needed: float) -> int:
    luck = _MAX_BAD_LUCK * by_chance
    root = (luck + math.sqrt(luck * luck + 4 * grows * needed)) / (2 * grows)
    return math.ceil(root * root)


def _needed(tests: int) -> float:
    return _NEEDED + _BETS + math.log(tests)


def _smallest(base: float, gain: Callable[[float], float], tests: int) -> float | None:
    low, high = base, 1.0 - 1e-6
    if gain(high) < _needed(tests):
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) < _needed(tests) else (low, middle)
    return high


def _gain(share: float, base: float, canary: int, stable: int) -> float:
    """Return the growth of the best stake (logarithm): the divergence of both sides from their common share."""
    if not canary or not stable or share == base:
        return 0.0
    common = (canary * share + stable * base) / (canary + stable)
    return canary * _divergence(share, common) + stable * _divergence(base, common)


def _divergence(share: float, base: float) -> float:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    found = share * math.log(share / base) if share > 0 else 0.0
    return found + ((1 - share) * math.log((1 - share) / (1 - base)) if share < 1 else 0.0)
