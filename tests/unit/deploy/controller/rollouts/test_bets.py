"""The stakes of a test: whoever bets without a difference wins nothing, and a late fault meets fresh money."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.controller.rollouts.bets import Bets, likelier
from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.wagers import bounds, gathered, labels, pairs


@given(st.lists(st.integers(1, 100_000), max_size=20), st.integers(1, 6))
def test_a_stake_neither_grows_nor_shrinks_by_itself(intervals: list[int], count: int) -> None:
    """That at most one sound canary of a hundred is rolled back rests on it."""
    bets = Bets.of(count)
    for seen in intervals:
        bets = bets.after([0.0] * count, seen)
    assert pytest.approx(0.0, abs=1e-9) == bets.log_evidence


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 60), st.sampled_from([1.0, 1.3]))
def test_a_bet_on_a_canary_that_is_as_bad_as_permitted_is_fair(
    canary: int, stable: int, hits: int, allowed: float
) -> None:
    """Over all splits of the hits, each as often as it then comes, a stake is multiplied by one on average."""
    splits = range(max(0, hits - stable), min(canary, hits) + 1)
    chances = np.array([math.comb(canary, n) * math.comb(stable, hits - n) * allowed**n for n in splits], np.float64)
    grown = np.exp([likelier(canary, n, stable, hits - n, (1.1, 3.0, 50.0), allowed) for n in splits])
    assert not splits or pytest.approx(np.ones(3)) == chances / chances.sum() @ grown
    ((*_, agreed, _), (*_, differed, _)) = (next(pairs(Counts(pairs=one), 0.1)) for one in ((1, 0), (0, 1)))
    assert pytest.approx(np.ones(4)) == 0.9 * np.exp(agreed) + 0.1 * np.exp(differed)


def test_a_late_fault_meets_fresh_money() -> None:
    """What was bet on a hundred thousand sound requests is lost; what was kept aside is enough for a hundredfold."""
    bets = Bets.of(2)
    for _ in range(1000):
        bets = bets.after([-0.5, -0.5], 100)
    assert bets.log_evidence < 0
    for _ in range(20):
        bets = bets.after([1.0, 1.0], 100)
    assert bets.log_evidence > math.log(100)


def test_labels_beyond_the_eighth_count_as_one() -> None:
    """Each label has a share of the stake, so their number is bounded; a known one keeps its place."""
    counts = {f"label {number}": 20 - number for number in range(20)}
    found = gathered(counts, ["label 19"], {})
    assert (9, sum(counts.values()), 1) == (len(found), sum(found.values()), found["label 19"])


def test_labels_are_bet_on_once_stables_shares_are_known() -> None:
    """From fewer than 200 answers it would follow by chance how often the canary may give a label."""
    one = Counts(labels={"good": 10})
    assert [0, 2] == [len([*labels(one, one, {"good": known}, 0.1)]) for known in (199, 200)]


def test_latency_is_compared_where_stable_is_and_as_much_more_often_as_its_histogram_says() -> None:
    """Half of stable's answers take longer than 10 ms; of answers a tenth slower, 54.5 % would, with odds of 1.2."""
    seen = [Counts(timed=n, slower={0.01: n // 2, 0.02: n // 10, 0.04: n // 100}) for n in (199, 1000)]
    few, found = (bounds(one, 1.1) for one in seen)
    assert ((), [0.01, 0.02, 0.02, 0.04]) == (few, [at.seconds for at in found])
    assert pytest.approx(1.2, abs=0.001) == found[0].allowed
