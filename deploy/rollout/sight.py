"""How small a fault would so many requests have shown? What a verdict could not have seen, in numbers. Pure.

A test finds a fault when the stake on it has grown a hundredfold. Its growth per request follows from how often canary
and stable do the thing that is compared; from that the smallest fault follows whose growth suffices on average. That is
an estimate for people, used in no decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from deploy.rollout.labels import LabelTest
from deploy.rollout.pairs import PairTest

FACTORS: Final = (1.0, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 3.0)
"""Slowdowns that are looked at, in times; the first is none."""
_NEEDED: Final = math.log(100.0)
_MOST_BAD_LUCK: Final = 1.645
"""Standard deviations; nineteen of twenty draws are above."""
_BETS: Final = math.log(5.0) + math.log(2.0)
"""The stake is shared by about five bets, and half of it waits for later epochs."""


def errors(canary: int, stable: int, share: float, tests: int) -> float | None:
    """Return the smallest share of failures that would have been found, beside ``share`` of stable's."""
    return _smallest(share, lambda one: _gain(one, share, canary, stable), tests)


def latency(canary: int, stable: int, bounds: Sequence[tuple[float, tuple[float, ...]]], tests: int) -> float | None:
    """Return the smallest slowdown, in times, that would have been found.

    ``bounds``: of each bound the odds that are allowed, and the shares of slower requests by ``FACTORS``.
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
    """Return the smallest move of the most frequent label's share, up or down, that would have been found."""
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
    """Return the smallest share of other answers that would have been found."""
    return _smallest(test.most, lambda share: test.compared * _divergence(share, test.most), tests)


def twice(most: float) -> float:
    """Return twice the share that is permitted; of a large one, what lies half way to all."""
    return min(2 * most, (1 + most) / 2)


def enough_pairs(most: float, tests: int) -> int:
    """Return how many pairs find ``twice(most)`` other answers in nineteen rollouts of twenty."""
    share = twice(most)
    grows = _divergence(share, most)
    by_chance = math.sqrt(share * (1 - share)) * math.log(share / most * (1 - most) / (1 - share))
    # Of n pairs the stake has grown by n * grows; chance takes up to _MOST_BAD_LUCK * sqrt(n) * by_chance of that.
    luck = _MOST_BAD_LUCK * by_chance
    root = (luck + math.sqrt(luck * luck + 4 * grows * _needed(tests))) / (2 * grows)
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
    """Return how much the best stake grows: the divergence of both sides from their common share."""
    if not canary or not stable or share == base:
        return 0.0
    common = (canary * share + stable * base) / (canary + stable)
    return canary * _divergence(share, common) + stable * _divergence(base, common)


def _divergence(share: float, base: float) -> float:
    """Return the Kullback-Leibler divergence of two coins."""
    found = share * math.log(share / base) if share > 0 else 0.0
    return found + ((1 - share) * math.log((1 - share) / (1 - base)) if share < 1 else 0.0)
