"""The mathematics of drift: shares, noise and bins."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import drift
from gateway.metrics.drift import (
    MISSING,
    BadReference,
    Bins,
    References,
    Shares,
    bucket_bins,
    count,
    enum_bins,
    scalar_bins,
)

COUNTS = st.lists(st.integers(0, 10_000), min_size=2, max_size=30).filter(lambda counts: sum(counts) > 0)


@given(COUNTS)
def test_shares_add_up_and_none_is_zero(counts: list[int]) -> None:
    """So the logarithm of their ratio exists."""
    found = drift.shares(counts)
    assert math.isclose(1.0, float(found.sum()))
    assert (found > 0).all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_every_value_has_one_bin(values: list[float]) -> None:
    """Counts of equal-frequency bins add up; names differ; edges ascend."""
    bins = scalar_bins(values)
    assert len(values) == bins.total
    assert len(set(bins.names)) == len(bins.names) == len(bins.counts)
    assert list(bins.counts) == drift.count(bins, values).tolist()


def test_bins_have_about_equal_frequency() -> None:
    """Ten of them, from the reference itself."""
    values = np.random.default_rng(1).normal(size=10_000)
    assert [1000] * 10 == [round(c, -2) for c in scalar_bins(values).counts[:-1]]


def test_bins_of_a_histogram_are_made_of_whole_buckets() -> None:
    """A reference can be made from /metrics."""
    bins = bucket_bins((1.0, 2.0, 3.0, 4.0, math.inf), (5, 5, 0, 80, 10), bins=5)
    assert Bins("scalar", (4.0,), (), (90.0, 10.0, 0.0)) == bins
    assert 100 == bucket_bins((1.0, math.inf), (100, 0)).total


def test_values_beyond_the_reference_have_a_bin_of_their_own() -> None:
    """If the reference has no unknown tokens, texts with some are noticed."""
    captured = bucket_bins((0.0, 0.01, 0.02, math.inf), (1_000.0, 0.0, 0.0, 0.0))
    for reference in (captured, scalar_bins([0.0] * 1_000)):
        assert ("0", "+Inf", MISSING) == reference.names
        assert (1_000.0, 0.0, 0.0) == reference.counts
        assert [900, 100, 0] == count(reference, [0.0] * 900 + [0.2] * 100).tolist()


def test_bins_that_moved_are_listed_furthest_first() -> None:
    """If they moved beyond noise, each with its change."""
    reference = enum_bins({"A": 5_000, "B": 3_000, "C": 2_000})
    shares = Shares(reference.names, reference.ratios(), reference.total, (6_000, 2_010, 1_990, 0, 0))
    assert ["A", "B"] == [name for name, _ in shares.moved]
    assert 0.099 < shares.moved[0][1] < 0.101
    few = Shares(reference.names, reference.ratios(), reference.total, (50, 30, 20, 0, 0))
    assert () == few.moved  # half a value of smoothing is no change of the bins that had none


def test_bins_are_named_for_people() -> None:
    """Bins of numbers as ranges; `other` with the values that the reference does not have."""
    numbers = scalar_bins([1.0, 2.0, 3.0, 4.0] * 10, bins=4)
    shares = Shares(numbers.names, numbers.ratios(), numbers.total, (1.0,) * len(numbers.names))
    assert ["up to 1", "1 – 2", "2 – 3", "above 3", "missing"] == [*map(shares.named, numbers.names)]
    animals = enum_bins({"cat": 5})
    shares = Shares(animals.names, animals.ratios(), 5.0, (4.0, 6.0, 0.0), {"dog": 4, "eel": 2})
    assert {"dog": 0.4, "eel": 0.2} == shares.new
    assert ["cat", "other (dog, eel)"] == [shares.named(name) for name in ("cat", "other")]


def test_a_references_name_depends_on_its_content() -> None:
    """Equal bins have equal names in all gateways; other counts, edges or values give another name."""
    one = enum_bins({"A": 5, "B": 5})
    assert one.id == enum_bins({"B": 5, "A": 5}).id
    others = (enum_bins({"A": 6, "B": 5}), enum_bins({"A": 5, "C": 5}), scalar_bins([1.0, 2.0]))
    assert 4 == len({one.id, *(other.id for other in others)})


def test_categories_are_ranked_and_the_rest_is_other() -> None:
    """At most 100 of them have a bin."""
    bins = enum_bins({"b": 1, "a": 3, "other": 2}, missing=4)
    assert (("a", "b", "other", "missing"), (3.0, 1.0, 2.0, 4.0)) == (bins.names, bins.counts)
    assert 102 == len(enum_bins({str(i): 1 for i in range(500)}).names)
    assert [0, 2, 3] == [bins.index(value) for value in ("a", "eel", None)]


def test_reference_file_is_read_as_it_was_written() -> None:
    """Completely; additional information for people is ignored."""
    variables = {"x": scalar_bins([1.0, 2.0, 3.0]), "label": enum_bins({"a": 1, "b": 2})}
    assert variables == drift.decode(drift.encode(variables, endpoint="e", note="hello"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", '"format": 1'),
        ('{"format": 1}', "no variables"),
        ('{"format": 1, "variables": {"x": {"kind": "scalar", "edges": [1], "counts": [1, 2]}}}', "3 counts expected"),
        ('{"format": 1, "variables": {"x": {"kind": "scalar", "edges": [2, 1], "counts": [1, 2, 3, 4]}}}', "ascend"),
        ('{"format": 1, "variables": {"x": {"kind": "scalar", "edges": [1], "counts": [0, 0, 0]}}}', "above 0"),
        ('{"format": 1, "variables": {"x": {"kind": "set", "counts": [1]}}}', "scalar or enum"),
        ('{"format": 1, "variables": {"x": {"kind": "enum", "values": ["other"], "counts": [1, 1, 1]}}}', "other"),
        ('{"format": 1, "variables": {"x": 5}}', "variable x"),
    ],
)
def test_an_unusable_reference_is_refused_with_the_reason(text: str, message: str) -> None:
    """The reason names the variable."""
    with pytest.raises(BadReference) as caught:
        drift.decode(text)
    assert message in str(caught.value)


def test_folder_of_references_is_read_when_it_changes(tmp_path: Path) -> None:
    """By endpoint url; a broken file affects no other; a deleted file is dropped."""
    references = References(tmp_path)
    assert (False, {}) == (references.read(), references.of("e/1.0"))
    (tmp_path / "e").mkdir()
    bins = {"x": scalar_bins([1.0, 2.0])}
    (tmp_path / "e" / "1.0.json").write_text(drift.encode(bins))
    (tmp_path / "broken.json").write_text(json.dumps({}))
    assert (True, bins, {}) == (references.read(), references.of("e/1.0"), references.of("broken"))
    assert (False, bins) == (references.read(), references.of("e/1.0"))
    (tmp_path / "e" / "1.0.json").unlink()
    assert (True, {}) == (references.read(), references.of("e/1.0"))


@pytest.mark.parametrize(
    "words",
    [
        '"none"', '{"texts": 10}', '{"texts": 10, "usual": []}', '{"texts": 0, "usual": ["a"]}',
        '{"texts": "x", "usual": ["a"]}', '{"texts": 10, "usual": 3}',
    ],
)  # fmt: skip
def test_invalid_words_are_refused_with_the_reason(words: str) -> None:
    """A reference without words is valid."""
    with pytest.raises(drift.BadReference, match="words"):
        drift.decode(f'{{"format": 1, "variables": {{}}, "words": {words}}}')
    assert drift.decode('{"format": 1, "variables": {}}').words is None


def test_a_captured_reference_overrides_the_models_own() -> None:
    """Variable by variable, and its words if it has some."""
    one, other = drift.enum_bins({"a": 1}), drift.enum_bins({"b": 1})
    words = drift.Words(2.0, ("w",))
    found = drift.Reference({"x": one}).over(drift.Reference({"x": other, "y": other}, words))
    assert ({"x": one, "y": other}, words) == (found, found.words)
    # Shares of unusual words mean something only beside the words that they were counted with.
    counted = drift.Reference({"x": other, "unusual_word_ratio": other}, words)
    renewed = drift.Reference({"x": one}, drift.Words(2.0, ("v",)))
    assert {"x": one} == renewed.over(counted)
    assert {**counted, "y": one} == drift.Reference({"y": one}).over(counted)


@pytest.mark.parametrize(
    ("days", "told"),
    [(0.0, "less than a day"), (29.6, "30 days"), (1234.0, "1,234 days"), (math.inf, "more than 10,000 days")],
)
def test_evidence_reads_the_same_on_the_page_in_the_report_and_in_the_terminal(days: float, told: str) -> None:
    """One wording, that none of them writes by itself."""
    assert told == drift.in_days(days)
