"""The ideal that drift is held against keeps the budget itself."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import numpy as np

from benchmarks.shared import cusum


def test_the_ideal_alarms_by_chance_no_more_often_than_it_may() -> None:
    """Of a rare value, too: there what it has found grows by leaps, and no exponential tells how often it is high."""
    p, q, between = np.array([0.002, 0.998]), np.array([0.1, 0.9]), 50_000.0
    gain, random = np.log(q / p), np.random.default_rng(3)
    threshold = cusum._threshold(p, q, gain, between, random)
    stands, alarms, steps = np.zeros(500), 0, 20_000
    for _ in range(steps):
        stands = np.maximum(stands, 0.0) + np.where(random.random(500) < p[0], *gain)
        alarms += int((stands >= threshold).sum())
        stands[stands >= threshold] = 0.0
    assert 0.3 < alarms / (500 * steps / between) < 1.2


def test_a_larger_change_is_found_sooner_and_a_smaller_budget_later() -> None:
    half = np.array([0.5, 0.5])
    small, large, careful = (
        cusum.texts_needed(half, np.array(q), 10, variables, runs=200)
        for q, variables in (((0.6, 0.4), 10), ((0.9, 0.1), 10), ((0.9, 0.1), 100_000))
    )
    assert large < careful < small
    assert 800 < small < 1_050
