"""The mathematics of drift: shares, noise and bins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import drift
from gateway.metrics.drift import BadReference, Reference, References, folded, reference_of


def test_a_reference_of_a_number_has_about_ten_bins_of_whole_buckets() -> None:
    """Of equal frequency; what lies above the highest one has a bin of its own."""
    normal = np.random.default_rng(1).normal(size=10_000)
    bounds = np.linspace(-3, 3, 241)
    counted, _ = np.histogram(normal, [-np.inf, *bounds, np.inf])
    counts = dict(zip([*map(drift.bin_of, bounds), drift.ABOVE], counted.tolist(), strict=True))
    made = reference_of(counts)
    assert 9 <= len(made) - 1 <= 10
    assert (10_000, 0) == (sum(made.values()), made["missing"])
    assert all(900 < count < 1_200 for count in list(made.values())[:-2])
    coarse = reference_of({"1": 5, "2": 5, "3": 0, "4": 80, "+Inf": 10, "missing": 3})
    assert {"2": 10, "4": 80, "+Inf": 10, "missing": 3} == coarse
    for alone in ({"1": 100}, {"0": 0, "1": 100, "2": 0}):
        assert {"1": 100, "+Inf": 0, "missing": 0} == reference_of(alone | {"+Inf": 0})


def test_a_reference_of_categories_has_those_that_occurred() -> None:
    """The most frequent first, at most a hundred; the rest is `other`."""
    made = reference_of({"b": 1, "missing": 4, "a": 3, "never": 0, "other": 2})
    assert [("a", 3.0), ("b", 1.0), ("other", 2.0), ("missing", 4.0)] == [*made.items()]
    many = reference_of({str(i): 1 for i in range(500)})
    assert (102, 400) == (len(many), many["other"])
    for nothing in ({}, {"other": 3, "missing": 4}, {"1": 0, "+Inf": 0, "missing": 4}):
        with pytest.raises(BadReference):
            reference_of(nothing)


@given(st.lists(st.integers(0, 1_000), min_size=6, max_size=6).filter(lambda counts: sum(counts[:5]) > 0))
def test_counts_are_folded_into_a_references_bins(counts: list[int]) -> None:
    """None is lost; those that it was made of give the reference itself."""
    bins = dict(zip(("1", "2", "5", "10", "+Inf", "missing"), map(float, counts), strict=True))
    made = reference_of(bins)
    assert made == folded(bins, made)
    names = {"a": 1.0, "b": 2.0, "c": 4.0, "missing": 8.0}
    assert {"b": 2.0, "other": 5.0, "missing": 8.0} == folded(names, {"b": 1.0, "other": 0.0, "missing": 0.0})
    assert {"2": 3.0, "+Inf": 4.0, "missing": 0.0} == folded({"1": 1, "2": 2, "3": 4}, ("2", "+Inf", "missing"))


def test_reference_file_is_read_as_it_was_written() -> None:
    """Completely; additional information for people is ignored. Bins may be in any order, and those without values left
    out.
    """
    variables = {"x": reference_of({"1": 2, "2": 1, "+Inf": 3}), "label": reference_of({"a": 1, "b": 2})}
    read = drift.decode(drift.encode(Reference(variables), endpoint="e", note="hello")).bins
    assert [[*bins.items()] for bins in variables.values()] == [[*read[name].items()] for name in variables]
    learned = Reference({"unusual_word_ratio": {"1": 1, "+Inf": 0, "missing": 0}}, ("the", "schön"), (0.25, -0.1234567))
    assert Reference(learned.bins, learned.words, (0.25, -0.123457)) == drift.decode(drift.encode(learned))
    by_hand = drift.decode('{"format": 1, "variables": {"x": {"+Inf": 1, "10": 1, "2.0": 3}, "a": {"dog": 2}}}').bins
    assert ["2", "10", "+Inf", "missing"] == [*by_hand["x"]]
    assert {"dog": 2, "other": 0, "missing": 0} == by_hand["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2, "variables": {}}', "format"),
        ('{"format": 1, "variables": {"x": {"1": 0, "+Inf": 0}}}', "variable x"),
        ('{"format": 1, "variables": {"x": {"a": -1}}}', "variables.x.a"),
        ('{"format": 1, "variables": {"x": {"a": NaN}}}', "variables.x.a"),
        ('{"format": 1, "variables": {"x": {"low": 1, "+Inf": 1}}}', "low"),
        ('{"format": 1, "variables": {"unusual_word_ratio": {"1": 1, "+Inf": 0}}}', "needs words"),
        ('{"format": 1, "variables": {"embedding_cosine": {"1": 1, "+Inf": 0}}, "mean": [0, 0]}', "a mean"),
    ],
)
def test_an_unusable_reference_is_refused_with_the_reason(text: str, message: str) -> None:
    """The reason names the place."""
    with pytest.raises(BadReference, match=message):
        drift.decode(text)


def test_folder_of_references_is_read_when_it_changes(tmp_path: Path) -> None:
    """By endpoint url; a broken file affects no other; a deleted file is dropped."""
    references = References(tmp_path)
    assert (False, None) == (references.read(), references.of("e/1.0"))
    (tmp_path / "e").mkdir()
    captured = Reference({"x": reference_of({"1": 1, "+Inf": 1})})
    (tmp_path / "e" / "1.0.json").write_text(drift.encode(captured))
    (tmp_path / "broken.json").write_text(json.dumps({}))
    assert (True, captured, None) == (references.read(), references.of("e/1.0"), references.of("broken"))
    assert (False, captured) == (references.read(), references.of("e/1.0"))
    (tmp_path / "e" / "1.0.json").unlink()
    assert (True, None) == (references.read(), references.of("e/1.0"))
