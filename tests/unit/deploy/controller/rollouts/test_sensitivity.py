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


def test_answers_that_differ_more_often_than_is_permitted_are_seen_with_enough_pairs():
    """The estimate is above the permitted share, and falls towards it."""
    few, many = (sensitivity.smallest(0.05, agreed, math.inf, 2) for agreed in (200, 5_000))
    assert few is not None
    assert many is not None
    assert 0.05 < many < few < 0.5


@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_change_of_the_most_frequent_label_is_seen_with_more_answers(share):
    """Above what is permitted, of a label that nearly all texts have too."""
    found = []
    for answers in (500, 5_000):
        counts = {"A": round(share * answers), "B": answers - round(share * answers)}
        found.append(sensitivity.change_of_labels(counts, counts, 0.1, 2))
    assert 0.1 < found[1] < found[0] < 0.4
