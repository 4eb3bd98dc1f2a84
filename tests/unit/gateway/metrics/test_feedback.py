"""Counts of labels that callers send back: by predicted and true label, with a bounded number of series."""

from __future__ import annotations

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.feedback import MAX_LABELS, MAX_VERSIONS, FeedbackCounts
from tests.unit.gateway.metrics.summed import counted


def test_labels_beyond_the_first_are_counted_together() -> None:
    """Right and wrong ones are still distinguished."""
    numbers = Accumulator()
    counts = FeedbackCounts(numbers)
    for n in range(100):
        counts.add("e", "1", f"l{n}", f"l{n}", known=("a", "b"))
        counts.add("e", "1", f"l{n}", "a", known=("a", "b"))
        counts.add("e", "1", f"l{n}", f"l{n + 1}", known=("a", "b"))
    pairs = counted(numbers.snapshot(), catalog.FEEDBACK)
    assert len({value for _, _, *pair in pairs for value in pair}) <= MAX_LABELS + 2
    right = sum(n for (_, _, predicted, label), n in pairs.items() if predicted == label)
    assert (100, 300) == (right, sum(pairs.values()))


def test_versions_beyond_the_first_are_counted_together() -> None:
    """Versions that have series keep them; other endpoints have their own."""
    numbers = Accumulator()
    counts = FeedbackCounts(numbers)
    for endpoint in ("e", "f"):
        for n in range(3 * MAX_VERSIONS):
            counts.add(endpoint, str(n), "a", "a")
    counts.add("e", "3", "a", "a")
    found = counted(numbers.snapshot(), catalog.FEEDBACK)
    assert 2 * (MAX_VERSIONS + 1) == len(found)
    assert (2, 2 * MAX_VERSIONS) == (found["e", "3", "a", "a"], found["e", "other", "a", "a"])
