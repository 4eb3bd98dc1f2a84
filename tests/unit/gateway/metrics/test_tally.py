"""What is put aside and added up later is what prometheus_client would have counted one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from gateway.metrics.tally import Distribution

BOUNDS = (0.001, 0.01, 0.1, 1.0, 8.0)
VALUES = st.one_of(st.sampled_from([0.0, *BOUNDS, 100.0]), st.floats(0, 1e6))


def samples(histogram: Histogram) -> dict[str, float]:
    """Every sample but the time of making."""
    return {
        f"{s.name}{s.labels}": s.value for metric in histogram.collect() for s in metric.samples
        if not s.name.endswith("_created")
    }  # fmt: skip


@given(st.lists(st.lists(VALUES, max_size=20), max_size=4))
def test_flushed_values_are_in_the_buckets_they_would_have_been_counted_in(rounds: list[list[float]]) -> None:
    """Bounds belong to their own bucket; flushes add up."""
    one, other = (Histogram("h", "h", registry=CollectorRegistry(), buckets=BOUNDS) for _ in range(2))
    tally = Distribution(one, BOUNDS)
    for values in rounds:
        for value in values:
            tally.observe(value)
            other.observe(value)
        tally.flush()
    ours, theirs = samples(one), samples(other)
    assert all(abs(ours[key] - value) <= 1e-9 * max(1, value) for key, value in theirs.items())
    assert set(ours) == set(theirs)


def test_a_weighted_value_stands_for_as_many() -> None:
    """Sampling keeps rates right."""
    histogram = Histogram("h", "h", registry=CollectorRegistry(), buckets=BOUNDS)
    tally = Distribution(histogram, BOUNDS)
    tally.add(0.01, 5.0)
    tally.add(0.5, 1.0)
    tally.flush()
    found = samples(histogram)
    assert (5.0, 6.0, 6.0) == (found["h_bucket{'le': '0.01'}"], found["h_bucket{'le': '1.0'}"], found["h_count{}"])
    assert abs(found["h_sum{}"] - 0.55) < 1e-12
