"""What would have been seen: estimates that agree with what the tests find."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.rollout import sight
from deploy.rollout.gate import Counts, Gate
from deploy.rollout.pairs import PairTest


@pytest.mark.parametrize(("canary", "stable"), [(500, 4_500), (2_000, 6_000)])
def test_a_share_of_errors_that_would_have_been_seen_is_found(canary, stable):
    """At twice the estimate in nearly every run; at a quarter of it hardly ever."""
    least = sight.errors(canary, stable, 0.003, 2)
    assert least is not None
    random = np.random.default_rng(7)

    def is_found(share):
        gate = Gate()
        for _ in range(50):
            n, m = canary // 50, stable // 50
            gate = gate.after(Counts(n, int(random.binomial(n, share))), Counts(m, int(random.binomial(m, 0.003))))
        return gate.is_bad

    assert sum(is_found(2 * least) for _ in range(40)) >= 36
    assert sum(is_found(least / 4) for _ in range(40)) <= 4


def test_nothing_is_seen_on_one_side_alone():
    """Without stable's requests there is no estimate, as there is no test."""
    assert sight.errors(1_000, 0, 0.003, 2) is None
    assert sight.pairs(PairTest(0.05), 2) is None


def test_answers_that_differ_more_often_than_is_permitted_are_seen_with_enough_pairs():
    """The estimate lies above what is permitted, and falls towards it."""
    few, many = (sight.pairs(PairTest(0.05).after(agreed, 0), 2) for agreed in (200, 5_000))
    assert few is not None
    assert many is not None
    assert 0.05 < many < few < 0.5
