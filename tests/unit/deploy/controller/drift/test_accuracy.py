"""Accuracy from labels: what is right, and intervals that cover as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.controller.drift.accuracy import Labels, counted


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_an_accuracy_lies_in_its_interval(labels: int, share: float) -> None:
    """Which lies between 0 and 1, and is narrower the more labels there are."""
    right = round(share * labels)
    one, more = Labels(right, labels), Labels(right * 4, labels * 4)
    low, high = one.interval
    assert 0 <= low <= one.accuracy <= high <= 1
    assert more.interval[1] - more.interval[0] < high - low


@pytest.mark.parametrize(("chance", "labels"), [(0.5, 20), (0.9, 50), (0.97, 200), (0.8, 5000)])
def test_an_interval_covers_the_truth_in_95_of_100_cases(chance: float, labels: int) -> None:
    """Wilson's, on 4,000 samples: within what discreteness allows."""
    rng = np.random.default_rng(7)
    found = [Labels(float(right), labels).interval for right in rng.binomial(labels, chance, 4000)]
    assert 0.93 <= np.mean([low <= chance <= high for low, high in found]) <= 0.985


def test_a_label_is_right_if_it_was_predicted() -> None:
    """Also of values without counts of their own: `another` differs from `other`."""
    pairs = {("A", "A"): 7.0, ("A", "B"): 1.0, ("other", "other"): 1.0, ("other", "another"): 1.0, ("B", "A"): 0.0}
    numbers = {("gateway_feedback_total", "e", "1", *pair): n for pair, n in pairs.items()}
    found = counted(numbers)
    assert {("e", "1"): Labels(8.0, 10.0)} == found
    assert {"value": 0.8, "low": 0.490162, "high": 0.943318, "labels": 10} == found["e", "1"].described()
