"""ClearML's canary rules: which versions, which weights, and which version a routing key gets."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.errors import SpecFault
from gateway.path.canary import position_of, resolve, weighted
from gateway.spec import CanarySpec
from tests.unit.gateway.path.asks import Plane


@pytest.mark.parametrize(
    ("canary", "chosen"),
    [
        (CanarySpec("c", (1, 3), ("e/1", "e/9")), {"e/1": 0.25, "e/9": 0.75}),  # weights need not add up to one
        (CanarySpec("c", (0.1, 0.9), prefix="e/"), {"e/10": 0.1, "e/9": 0.9}),  # the newest, as many as weights
        (CanarySpec("c", (0.5, 0.5), ("e/1", "gone")), {"e/1": 1.0}),  # its share goes to the others
    ],
)
def test_versions_are_chosen_as_clearml_serving_does(canary: CanarySpec, chosen: dict[str, float]) -> None:
    """Fixed ones in their order, or those with the highest numbers under a prefix."""
    found = weighted(resolve(canary, ["e/1", "e/9", "e/10", "f/1"])).shares
    assert [*chosen.items()] == [(url, pytest.approx(share)) for url, share in found.items()]


@pytest.mark.parametrize(
    "canary",
    [
        CanarySpec("c", (), ("e/1",)), CanarySpec("c", (0.0,), ("e/1",)), CanarySpec("c", (-1.0,), ("e/1",)),
        CanarySpec("c", (float("nan"),), ("e/1",)), CanarySpec("c", (1.0, 1.0), ("e/1",)),
        CanarySpec("c", (1.0,), ("e/1",), "e"), CanarySpec("c", (1.0,)), CanarySpec("c", (1.0,), ("gone",)),
        CanarySpec("c", (1.0,), prefix="x"),
    ],
)  # fmt: skip
def test_invalid_weights_are_refused(canary: CanarySpec) -> None:
    """None raises ZeroDivisionError later, as in clearml-serving."""
    with pytest.raises(SpecFault):
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


def test_a_route_says_which_side_answers_and_who_answers_if_that_fails() -> None:
    """It is what metrics, logs and the header of the answer say."""
    made = Plane("old", "new")
    made.publish(c=weighted([("new", 1), ("old", 3)], "old"))
    found = made.table.current
    assert (made.endpoints["new"], "canary", made.endpoints["old"]) == found.resolve("c", draw=lambda: 0.1)
    assert (made.endpoints["old"], "stable", None) == found.resolve("c", draw=lambda: 0.9)
    assert ["direct", "direct", "canary", "stable"] == [route for *_, route in found.routes()]
