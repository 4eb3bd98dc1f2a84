"""Intervals of accuracy: they cover as often as they say, on data whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics.catalog import RATIO_BUCKETS
from gateway.metrics.performance import LEAST_LABELS, described, expected, measured, of_counts

BINS = len(RATIO_BUCKETS)
COUNTS = st.lists(st.integers(0, 10_000), min_size=BINS, max_size=BINS).map(lambda values: np.array(values, float))


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_a_measured_share_lies_in_its_interval(answers: int, share: float) -> None:
    """Which lies between 0 and 1, and is narrower the more answers there are."""
    right = round(share * answers)
    found, more = measured(right, answers), measured(right * 4, answers * 4)
    assert found is not None
    assert more is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert more.high - more.low < found.high - found.low


@pytest.mark.parametrize(("chance", "answers"), [(0.5, 20), (0.9, 50), (0.97, 200), (0.8, 5000)])
def test_a_measured_interval_covers_the_truth_in_95_of_100_cases(chance: float, answers: int) -> None:
    """Wilson's, on 4,000 samples: within what discreteness allows."""
    rng = np.random.default_rng(7)
    found = [measured(float(right), answers) for right in rng.binomial(answers, chance, 4000)]
    assert 0.93 <= np.mean([one is not None and one.low <= chance <= one.high for one in found]) <= 0.985


@given(COUNTS, COUNTS, COUNTS)
def test_an_expectation_is_a_share_in_its_interval(right: np.ndarray, wrong: np.ndarray, seen: np.ndarray) -> None:
    """Whatever was counted; None only with too few labels, or nothing seen."""
    found = expected(right, right + wrong, seen, RATIO_BUCKETS)
    if right.sum() + wrong.sum() < LEAST_LABELS or not seen.sum():
        assert found is None
    else:
        assert found is not None
        assert 0 <= found.low <= found.value <= found.high <= 1


def binned(scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Counts by bin."""
    places = np.searchsorted(RATIO_BUCKETS, scores)
    return np.bincount(places, weights=weights, minlength=BINS).astype(float)


@pytest.mark.parametrize("labels", [300, 1000, 10_000])
@pytest.mark.parametrize(
    "answers", [pytest.param(100, marks=pytest.mark.long), 1000, pytest.param(10_000, marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    ("then", "now"), [((8, 1.5), (8, 1.5)), ((8, 1.5), (4, 2)), ((20, 1), (5, 1.5))], ids=["same", "harder", "much"]
)
def test_an_expected_interval_covers_what_labels_of_all_would_show(
    labels: int, answers: int, then: tuple[float, float], now: tuple[float, float]
) -> None:
    """Of models whose scores are off by any logistic curve, on 300 pairs of samples: texts as before, and harder ones.

    Promised are 95 of 100; 300 samples show between 90 and 100 of that, and bins blur what moves inside them.
    """
    rng = np.random.default_rng(labels + answers)
    covered = 0
    for _ in range(300):
        slope, shift = rng.uniform(0.3, 3), rng.uniform(-1, 1)
        labelled, given_now = np.clip(rng.beta(*then, labels), 0.05, 1), np.clip(rng.beta(*now, answers), 0.05, 1)

        def is_right(scores: np.ndarray, slope: float = slope, shift: float = shift) -> np.ndarray:
            odds = np.log(scores / np.maximum(1 - scores, 1e-9))
            return rng.random(len(scores)) < 1 / (1 + np.exp(-(slope * odds + shift)))

        found = expected(
            binned(labelled, is_right(labelled)), binned(labelled), binned(given_now), RATIO_BUCKETS
        )  # fmt: skip
        assert found is not None
        covered += found.low <= is_right(given_now).mean() <= found.high
    assert covered / 300 >= 0.90


def test_harder_texts_lower_what_is_expected() -> None:
    """Before any label of them has come."""
    labelled = np.zeros(BINS)
    labelled[6], labelled[-1] = 1000, 9000
    right = np.array([0.0] * BINS)
    right[6], right[-1] = 600, 8900
    easy = expected(right, labelled, labelled, RATIO_BUCKETS)
    harder = np.zeros(BINS)
    harder[6], harder[-1] = 5000, 5000
    hard = expected(right, labelled, harder, RATIO_BUCKETS)
    assert easy is not None
    assert hard is not None
    assert abs(easy.value - 0.95) < 0.01
    assert hard.high < easy.low


def test_what_is_said_has_both_with_their_intervals() -> None:
    """For people: the same words on the page, in `status` and in `drift report`."""
    labels = {("1", "right"): 380.0, ("1", "wrong"): 20.0, ("none", "right"): 10.0}
    seen = np.zeros(BINS)
    seen[-1] = 1000
    found = of_counts(labels, seen, RATIO_BUCKETS)
    assert 410 == found["real"]["answers"]
    said = described(found)
    assert said.startswith("95.1% right by labels (92.6% to 96.8%, 410 labels), ")
    assert "expected of what it answers now" in said
    assert "" == described(of_counts({}, seen, RATIO_BUCKETS))
