"""ClearML's canary semantics, checked weights, sticky and monotone picks."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.dataplane.routing.canary import position_of, resolve, weighted
from gateway.errors import SpecFault
from gateway.spec import CanarySpec


def test_fixed_endpoints_keep_their_order_and_weights_are_normalised() -> None:
    """Weights need not add up to one."""
    chosen = resolve(CanarySpec("c", (1, 3), ("e/1", "e/2")), ["e/1", "e/2", "e/3"])
    assert {"e/1": 0.25, "e/2": 0.75} == weighted(chosen).shares


def test_prefix_takes_the_newest_first_by_number() -> None:
    """Version 10 is newer than 9; as many as there are weights."""
    chosen = resolve(CanarySpec("c", (0.1, 0.9), prefix="e/"), ["e/1", "e/9", "e/10", "f/1"])
    assert [("e/10", 0.1), ("e/9", 0.9)] == chosen


def test_endpoint_that_does_not_exist_gives_its_share_to_the_others() -> None:
    """As in clearml-serving: unknown endpoints are skipped, the rest is normalised."""
    chosen = resolve(CanarySpec("c", (0.5, 0.5), ("e/1", "gone")), ["e/1"])
    assert {"e/1": 1.0} == weighted(chosen).shares


@pytest.mark.parametrize(
    ("canary", "message"),
    [
        (CanarySpec("c", (), ("e/1",)), "no weights"),
        (CanarySpec("c", (0.0,), ("e/1",)), "only zero weights"),
        (CanarySpec("c", (-1.0,), ("e/1",)), "zero or more"),
        (CanarySpec("c", (float("nan"),), ("e/1",)), "zero or more"),
        (CanarySpec("c", (1.0, 1.0), ("e/1",)), "2 weights for 1 endpoints"),
        (CanarySpec("c", (1.0,), ("e/1",), "e"), "both fixed endpoints and a prefix"),
        (CanarySpec("c", (1.0,)), "names neither"),
        (CanarySpec("c", (1.0,), ("gone",)), "matches no endpoint"),
        (CanarySpec("c", (1.0,), prefix="x"), "matches no endpoint"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(canary: CanarySpec, message: str) -> None:
    """Each with its reason; none raises ZeroDivisionError later (clearml-serving does)."""
    with pytest.raises(SpecFault, match=message):
        resolve(canary, ["e/1"])


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.floats(0, 1, exclude_max=True))
def test_pick_never_chooses_a_version_of_weight_zero(weights: list[float], position: float) -> None:
    """Rounding at the borders never sends traffic where none belongs."""
    assume(sum(weights) > 1e-6)
    choices = [(f"e/{i}", w) for i, w in enumerate(weights)]
    assert dict(choices)[weighted(choices).pick(position)] > 0


@given(st.text(), st.floats(0.01, 0.98), st.floats(0.001, 0.5))
def test_key_that_saw_the_canary_keeps_it_while_its_weight_grows(key: str, weight: float, more: float) -> None:
    """Growing the first weight only moves keys towards it."""
    grown = min(weight + more, 0.99)
    position = position_of(key, "c")
    before = weighted([("new", weight), ("old", 1 - weight)]).pick(position)
    after = weighted([("new", grown), ("old", 1 - grown)]).pick(position)
    assert before == "old" or after == "new"


def test_split_over_many_keys_follows_the_weights() -> None:
    """10 000 keys: within three binomial standard deviations."""
    split = weighted([("a", 0.1), ("b", 0.9)])
    share = sum(split.pick(position_of(f"user-{i}", "c")) == "a" for i in range(10_000)) / 10_000
    assert abs(share - 0.1) < 3 * (0.1 * 0.9 / 10_000) ** 0.5


def test_split_of_random_requests_follows_the_weights() -> None:
    """10 000 requests without a key: within one point, and within three binomial standard deviations."""
    split, draw = weighted([("a", 0.25), ("b", 0.75)]), random.Random(4)
    share = sum(split.pick(draw.random()) == "a" for _ in range(10_000)) / 10_000
    assert abs(share - 0.25) <= max(0.01, 3 * (0.25 * 0.75 / 10_000) ** 0.5)


def test_a_ramp_only_adds_callers() -> None:
    """10 000 keys over 1, 5, 25, 50 and 100 %: whoever saw the canary keeps it; every answer repeats."""
    positions = {f"user-{i}": position_of(f"user-{i}", "c") for i in range(10_000)}
    seen: set[str] = set()
    for percent in (1, 5, 25, 50, 100):
        split = weighted([("new", percent), ("old", 100 - percent)])
        there = {key for key, position in positions.items() if split.pick(position) == "new"}
        assert there == {key for key in positions if split.pick(position_of(key, "c")) == "new"}
        assert seen <= there
        seen = there
    assert set(positions) == seen


def test_stable_is_the_one_a_rollout_names_else_the_largest_share() -> None:
    """Of equal shares the last: canaries are written first. A name that is not there counts for nothing."""
    choices = [("new", 0.6), ("old", 0.4)]
    assert "new" == weighted(choices).stable
    assert "old" == weighted(choices, "old").stable
    assert "new" == weighted(choices, "gone").stable
    assert "old" == weighted([("new", 1), ("old", 1)]).stable
