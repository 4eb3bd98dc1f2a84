"""Copies of numbers never change."""

from __future__ import annotations

import pytest

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from tests.unit.gateway.metrics.summed import counted, histograms


def test_a_snapshot_never_changes() -> None:
    """Another thread reads it while the loop goes on counting."""
    numbers = Accumulator()
    count = numbers.count(catalog.BUILDS, "ok")
    rows = numbers.distribution(catalog.ROWS, "e", "1")
    count.value += 1
    rows.observe((2,))
    before = numbers.snapshot()
    count.value += 1
    numbers.set(catalog.POLL, 7)
    rows.observe((2,))
    numbers.count(catalog.BUILDS, "internal").value += 1
    after = numbers.snapshot()
    assert [{("ok",): 1.0}, {("ok",): 2.0, ("internal",): 1.0}] == [counted(n, catalog.BUILDS) for n in (before, after)]
    assert [{(): 0.0}, {(): 7.0}] == [counted(n, catalog.POLL) for n in (before, after)]
    assert [{("e", "1"): ((), [1.0, 2.0])}, {("e", "1"): ((), [2.0, 4.0])}] == [histograms(n) for n in (before, after)]


def test_the_number_of_labels_is_checked() -> None:
    """A mistake in our code is an error where it is made."""
    with pytest.raises(ValueError, match="outcome"):
        Accumulator().count(catalog.BUILDS)
