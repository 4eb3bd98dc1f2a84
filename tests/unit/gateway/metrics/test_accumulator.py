"""Numbers equal those of prometheus_client, and copies of them never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator, Distribution
from tests.unit.gateway.metrics.summed import counted, histograms

BOUNDS = (0.001, 0.01, 0.1, 1.0, 8.0)
VALUES = st.one_of(st.sampled_from([0.0, *BOUNDS, 100.0]), st.floats(0, 1e6))


def read(histogram: Distribution) -> list[float]:
    """Return the counts of the buckets, then the sum."""
    counts, total = histogram.copy().read()
    return [*counts, total]


def theirs(histogram: Histogram) -> list[float]:
    """Return cumulative buckets, then the sum, of prometheus_client's own class."""
    (family,) = histogram.collect()
    found = {suffix: [s.value for s in family.samples if s.name == f"h_{suffix}"] for suffix in ("bucket", "sum")}
    return [*found["bucket"], *found["sum"]]


@given(st.lists(st.lists(VALUES, max_size=20), max_size=4))
def test_values_are_counted_in_their_buckets(rounds: list[list[float]]) -> None:
    """A bound belongs to its own bucket."""
    other = Histogram("h", "h", registry=CollectorRegistry(), buckets=BOUNDS)
    ours = Distribution(BOUNDS)
    for values in rounds:
        ours.observe(values)
        for value in values:
            other.observe(value)
    *counts, total = read(ours)
    found = [*np.cumsum(counts).tolist(), total]
    assert all(abs(one - two) <= 1e-9 * max(1, two) for one, two in zip(found, theirs(other), strict=True))


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


def test_new_bounds_start_at_zero_and_former_ones_end() -> None:
    """Also if the former ones come back."""
    numbers = Accumulator()

    def declare(*bounds: float) -> Distribution:
        return numbers.distribution(catalog.VARIABLE_SCALAR, "e", "1", "x", bounds=bounds)

    declare(1.0).observe((0.5,))
    declare(1.0, 5.0).observe((0.5,))
    assert ((1.0, 5.0), [1, 0, 0, 0.5]) == (declare(1.0, 5.0).bounds, read(declare(1.0, 5.0)))
    declare(1.0).observe((2.0,))
    declare(1.0).observe((2.0,))
    assert ((1.0,), [0, 2, 4.0]) == (declare(1.0).bounds, read(declare(1.0)))


def test_the_number_of_labels_is_checked() -> None:
    """A mistake in our code is an error where it is made."""
    with pytest.raises(ValueError, match="outcome"):
        Accumulator().count(catalog.BUILDS)
