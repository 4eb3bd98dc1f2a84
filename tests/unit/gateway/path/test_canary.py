"""ClearML's canary rules: which versions, which weights, and which version a routing key gets."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.errors import SpecFault
from gateway.path.canary import position_of, resolve, weighted
from gateway.spec import CanarySpec


def test_fixed_endpoints_keep_their_order_and_weights_are_normalised() -> None:
    """Weights need not add up to one."""
    chosen = resolve(CanarySpec("c", (1, 3), ("e/1", "e/2")), ["e/1", "e/2", "e/3"])
    assert {"e/1": 0.25, "e/2": 0.75} == weighted(chosen).shares


def test_a_prefix_selects_the_newest_versions_by_number() -> None:
    """Version 10 is newer than 9. As many versions are selected as there are weights."""
    chosen = resolve(CanarySpec("c", (0.1, 0.9), prefix="e/"), ["e/1", "e/9", "e/10", "f/1"])
    assert [("e/10", 0.1), ("e/9", 0.9)] == chosen


def test_the_share_of_an_endpoint_that_does_not_exist_goes_to_the_others() -> None:
    """As in clearml-serving: unknown endpoints are skipped, and the other weights are normalised."""
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
def test_invalid_weights_are_refused_with_a_reason(canary: CanarySpec, message: str) -> None:
    """None raises ZeroDivisionError later, as in clearml-serving."""
    with pytest.raises(SpecFault, match=message):
        resolve(canary, ["e/1"])


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.floats(0, 1, exclude_max=True))
def test_a_version_of_weight_zero_is_never_picked(weights: list[float], position: float) -> None:
    """Rounding at the borders between weights does not send it a request."""
    assume(sum(weights) > 1e-6)
    choices = [(f"e/{i}", w) for i, w in enumerate(weights)]
    assert dict(choices)[weighted(choices).pick(position)] > 0


@given(st.text(), st.floats(0.01, 0.98), st.floats(0.001, 0.5))
def test_a_key_that_was_routed_to_the_canary_stays_there_while_its_weight_grows(
    key: str, weight: float, more: float
) -> None:
    """A larger first weight only moves more keys to the first version."""
    grown = min(weight + more, 0.99)
    position = position_of(key, "c")
    before = weighted([("new", weight), ("old", 1 - weight)]).pick(position)
    after = weighted([("new", grown), ("old", 1 - grown)]).pick(position)
    assert before == "old" or after == "new"


def test_the_split_of_many_keys_follows_the_weights() -> None:
    """10 000 keys: within three binomial standard deviations."""
    split = weighted([("a", 0.1), ("b", 0.9)])
    share = sum(split.pick(position_of(f"user-{i}", "c")) == "a" for i in range(10_000)) / 10_000
    assert abs(share - 0.1) < 3 * (0.1 * 0.9 / 10_000) ** 0.5


def test_the_stable_version_is_the_one_that_a_rollout_names_or_has_the_largest_weight() -> None:
    """Of equal weights the last one, because canaries are written first. An unknown name is ignored."""
    choices = [("new", 0.6), ("old", 0.4)]
    assert "new" == weighted(choices).stable
    assert "old" == weighted(choices, "old").stable
    assert "new" == weighted(choices, "gone").stable
    assert "old" == weighted([("new", 1), ("old", 1)]).stable
