"""Ratios."""

from __future__ import annotations

import pytest

from benchmarks.shared.statistics import ratio


def test_a_ratio_is_formed_within_rounds() -> None:
    """A round that was disturbed was disturbed for both."""
    found = ratio([(11.0, 10.0), (110.0, 100.0), (11.0, 10.0)])
    assert found.median == pytest.approx(1.1)
    assert (found.low, found.high) == (pytest.approx(1.1), pytest.approx(1.1))


def test_an_interval_holds_its_median_and_stays_within_the_rounds() -> None:
    """And is the same every time."""
    pairs = [(float(10 + n % 5), 10.0) for n in range(20)]
    found = ratio(pairs)
    assert 1.0 <= found.low <= found.median <= found.high <= 1.4
    assert found == ratio(pairs)
