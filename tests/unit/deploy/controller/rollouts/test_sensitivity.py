"""Estimates of the smallest detectable fault agree with what the tests find."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deploy.controller.rollouts import sensitivity
from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import Gate


def test_a_share_of_errors_that_would_have_been_seen_is_found():
    """Twice the estimate is found in nearly every run, a quarter of it hardly ever."""
    least = sensitivity.smallest(0.003, 2_000, 6_000, 2)
    assert least is not None
    random = np.random.default_rng(7)

    def is_found(share):
        gate = Gate()
        for _ in range(20):
            gate = gate.after(
                Counts(100, int(random.binomial(100, share))), Counts(300, int(random.binomial(300, 0.003)))
            )
        return gate.is_bad

    assert sum(is_found(2 * least) for _ in range(20)) >= 18
    assert sum(is_found(least / 4) for _ in range(20)) <= 2


def test_each_test_says_what_it_could_have_seen_and_with_more_requests_smaller_faults():
    """Mirrored requests count among those that the canary might have failed; at first nothing would have been seen."""
    gate = Gate(label_shift=0.1, other_answers=0.1)
    assert {"errors": None, "labels": None, "pairs": None} == gate.could_see()
    alone, mirrored, more = (
        gate.after(Counts(n, labels={"A": n}, pairs=(pairs, 0)), Counts(9 * n, labels={"A": 9 * n})).could_see()
        for n, pairs in ((200, 100), (200, 800), (800, 800))
    )
    assert alone["errors"] > mirrored["errors"] > more["errors"]
    assert alone["pairs"] > mirrored["pairs"]
    assert mirrored["labels"] > more["labels"]


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
