"""Drift's mathematics: distances, noise, bins; silent on samples of one distribution, loud when it moved."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import drift
from gateway.metrics.drift import MISSING, BadReference, Bins, Verdict, bucket_bins, count, enum_bins, scalar_bins
from gateway.metrics.references import References

COUNTS = st.lists(st.integers(0, 10_000), min_size=2, max_size=30).filter(lambda counts: sum(counts) > 0)


@given(COUNTS)
def test_identical_distributions_have_no_distance(counts: list[int]) -> None:
    """PSI and Jensen–Shannon of anything and itself are 0."""
    assert 0 == drift.psi(counts, counts)
    assert abs(drift.jensen_shannon(counts, counts)) < 1e-12


@given(COUNTS, st.randoms(use_true_random=False))
def test_distances_are_symmetric_and_bounded(counts: list[int], random: object) -> None:
    """PSI is at least 0; Jensen–Shannon at most ln 2."""
    other = list(counts)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert drift.psi(counts, other) >= 0
    assert math.isclose(drift.psi(counts, other), drift.psi(other, counts), abs_tol=1e-12)
    assert -1e-12 <= drift.jensen_shannon(counts, other) <= math.log(2)


@given(COUNTS)
def test_shares_add_up_and_none_is_zero(counts: list[int]) -> None:
    """So that a logarithm of their ratio exists."""
    found = drift.shares(counts)
    assert math.isclose(1.0, float(found.sum()))
    assert (found > 0).all()


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 6.6349), (2, 9.2103), (9, 21.6660), (11, 24.7250), (30, 50.8922), (99, 134.6416)]
)
def test_chi_square_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    """99 %."""
    assert abs(drift.chi2_quantile(0.99, degrees) - quantile) < 1e-4


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
    """What /metrics tells is enough for a reference."""
    bins = bucket_bins((1.0, 2.0, 3.0, 4.0, math.inf), (5, 5, 0, 80, 10), bins=5)
    assert Bins("scalar", (4.0,), (), (90.0, 10.0, 0.0)) == bins
    assert 100 == bucket_bins((1.0, math.inf), (100, 0)).total


def test_what_never_occurred_in_the_reference_has_a_bin_of_its_own() -> None:
    """Texts without a single unknown token, then some with: the difference is seen, whatever made the reference."""
    captured = bucket_bins((0.0, 0.01, 0.02, math.inf), (1_000.0, 0.0, 0.0, 0.0))
    of_values = scalar_bins([0.0] * 1_000)
    for reference in (captured, of_values):
        assert ("0", "+Inf", MISSING) == reference.names
        assert (1_000.0, 0.0, 0.0) == reference.counts
        now = count(reference, [0.0] * 900 + [0.2] * 100)
        verdict = Verdict("e", "1", "x", reference.names, reference.ratios(), tuple(now), reference.total)
        assert "drift" == verdict.state


def test_a_small_change_that_is_no_chance_is_called_moved() -> None:
    """Neither steady, which it is not, nor drift, which nobody should be woken for."""
    reference = enum_bins({"A": 50_000, "B": 50_000})

    def verdict(a: int, b: int) -> Verdict:
        return Verdict("e", "1", "x", reference.names, reference.ratios(), (a, b, 0, 0), reference.total)

    assert "moved" == verdict(5_300, 4_700).state
    assert "steady" == verdict(5_030, 4_970).state
    assert "drift" == verdict(6_300, 3_700).state


def test_a_reference_is_named_by_its_content() -> None:
    """The same bins have one name in every gateway; other counts, edges or values another."""
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


def alarm(reference: Bins, counts: np.ndarray) -> bool:
    """Whether an alert fires on these counts."""
    verdict = Verdict("e", "1", "x", reference.names, reference.ratios(), tuple(counts), reference.total)
    assert math.isclose(drift.psi(reference.counts, counts), verdict.psi, abs_tol=1e-12)
    return verdict.state == "drift"


KINDS = ["normal", "lognormal", "categories", "tokens"]


def sample(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """Values of one kind of variable."""
    if kind == "normal":
        return rng.normal(size=n)
    if kind == "lognormal":
        return rng.lognormal(3, 0.6, size=n)
    if kind == "tokens":
        return rng.poisson(12, size=n).astype(float)
    return rng.choice(4, p=[0.6, 0.3, 0.08, 0.02], size=n)


def bins_of(kind: str, values: np.ndarray) -> Bins:
    """The reference made of these values."""
    if kind == "categories":
        return enum_bins({str(v): int((values == v).sum()) for v in np.unique(values)})
    return scalar_bins(values)


def seen(bins: Bins, values: np.ndarray) -> np.ndarray:
    """What the gateway would have counted."""
    return drift.count(bins, [str(int(v)) for v in values] if bins.kind == "enum" else values.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_traffic_like_the_reference_raises_no_alarm(kind: str) -> None:
    """1 200 windows of 100 to 10 000 requests: at most 1 % false alarms (PSI > 0.1 alone has up to 39 %)."""
    rng = np.random.default_rng(5)
    alarms = []
    for i in range(300):
        reference = bins_of(kind, sample(kind, rng, int(rng.choice([1_000, 5_000, 20_000]))))
        n = int(10 ** rng.uniform(2, 4)) if i >= 100 else [100, 600, 1_000, 10_000][i % 4]
        alarms.append(alarm(reference, seen(reference, sample(kind, rng, n))))
    assert sum(alarms) <= 0.01 * len(alarms)


@pytest.mark.parametrize("seed", range(20))
def test_shifts_raise_an_alarm_in_the_first_window_that_counts(seed: int) -> None:
    """Half a standard deviation; ten points of a label; another language's tokens and unknown words."""
    rng = np.random.default_rng(seed)
    normal = scalar_bins(rng.normal(size=5_000))
    first = drift.PER_BIN * len(normal.names)
    assert alarm(normal, seen(normal, rng.normal(0.5, 1, size=first)))
    unknown = scalar_bins(rng.beta(1, 40, size=5_000))
    assert alarm(unknown, seen(unknown, rng.beta(4, 10, size=drift.PER_BIN * len(unknown.names))))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_label_that_moves_by_ten_points_raises_an_alarm_in_the_first_window_that_can_tell(share: float) -> None:
    """PSI alone misses most of these; the share's own test has them once its noise is below five points."""
    rng = np.random.default_rng(11)
    reference = enum_bins({"0": 5_000 * share, "1": 5_000 * (1 - share)})
    spread = drift.SHIFT_SIGMAS**2 * share * (1 - share)
    first = max(4 * drift.PER_BIN, math.ceil(1 / (drift.SHIFT_ALERT**2 / spread - 1 / 5_000)))
    assert first < 1_500
    for _ in range(50):
        now = (rng.random(first) >= share + 0.1).astype(int)
        assert alarm(reference, seen(reference, now))


def test_too_few_requests_never_raise_an_alarm() -> None:
    """Under 50 per bin nothing is said, whatever was seen."""
    reference = scalar_bins(np.random.default_rng(3).normal(size=1_000))
    everything_new = np.full(drift.PER_BIN * len(reference.names) - 1, 99.0)
    assert not alarm(reference, seen(reference, everything_new))


def test_reference_file_is_read_as_it_was_written() -> None:
    """All of it; people's notes are ignored."""
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
def test_reference_that_cannot_be_used_says_why(text: str, message: str) -> None:
    """Naming the variable."""
    with pytest.raises(BadReference) as caught:
        drift.decode(text)
    assert message in str(caught.value)


def test_folder_of_references_is_read_when_it_changes(tmp_path: Path) -> None:
    """By endpoint url; a broken file harms no other; a file that goes is forgotten."""
    references = References(tmp_path)
    assert (False, {}) == (references.look(), references.of("e/1.0"))
    (tmp_path / "e").mkdir()
    bins = {"x": scalar_bins([1.0, 2.0])}
    (tmp_path / "e" / "1.0.json").write_text(drift.encode(bins))
    (tmp_path / "broken.json").write_text(json.dumps({}))
    assert (True, bins, {}) == (references.look(), references.of("e/1.0"), references.of("broken"))
    assert (False, bins) == (references.look(), references.of("e/1.0"))
    (tmp_path / "e" / "1.0.json").unlink()
    assert (True, {}) == (references.look(), references.of("e/1.0"))
