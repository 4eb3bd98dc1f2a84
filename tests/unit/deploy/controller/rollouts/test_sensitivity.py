"""Estimates of the smallest detectable fault agree with what the tests find."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deploy.controller.rollouts import sensitivity
from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import Gate


@pytest.mark.parametrize(("canary", "stable"), [(500, 4_500), (2_000, 6_000)])
def test_a_share_of_errors_that_would_have_been_seen_is_found(canary, stable):
    """Twice the estimate is found in nearly every run, a quarter of it hardly ever."""
    least = sensitivity.smallest(0.003, canary, stable, 2)
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


def test_mirrored_requests_count_among_those_that_the_canary_might_have_failed():
    """Callers' requests alone would have shown only a larger share of errors."""
    alone, mirrored = (Gate().after(Counts(100, pairs=(pairs, 0)), Counts(900)).could_see() for pairs in (0, 400))
    assert mirrored["errors"] < alone["errors"]


def test_nothing_is_seen_on_one_side_alone():
    """Without stable's requests there is no test, and so no estimate."""
    assert sensitivity.smallest(0.003, 1_000, 0, 2) is None
    assert sensitivity.smallest(0.003, 0, 1_000, 2) is None
    assert sensitivity.change_of_labels({}, {}, 0.1, 2) is None


@pytest.mark.parametrize(
    ("least", "most", "seen"),
    [
        pytest.param(0.05, 0.5, lambda n: sensitivity.smallest(0.05, n, math.inf, 2), id="other answers"),
        *(pytest.param(
            0.1, 0.4, lambda n, a=a: sensitivity.change_of_labels(*[{"A": n * a, "B": n - n * a}] * 2, 0.1, 2),
            id=f"a label that {a:.0%} of the answers have",
        ) for a in (0.5, 0.97)),
    ],
)  # fmt: skip
def test_the_estimate_is_above_what_is_permitted_and_falls_towards_it(least, most, seen):
    """With more answers, smaller faults are seen."""
    assert least < seen(5_000) < seen(300) < most
