"""Version numbers in our records: each is given once, to one model."""

from __future__ import annotations

import math
from typing import Any

from gateway.version_numbers import KEPT, Numbers, binding_of, decode, encode, endpoint_of, others, taken_over


def test_the_newest_model_gets_the_highest_number_and_none_is_given_twice() -> None:
    """Also when the highest is out of service, and where a fixed endpoint has the name."""
    numbers = Numbers().with_models(["b", "a"]).serving({1, 2})
    assert ({1: "a", 2: "b"}, {1, 2}) == (numbers.models, numbers.served)
    numbers = numbers.with_models(["c", "b"], taken={3}).serving({4})
    assert {1: "a", 2: "b", 4: "c"} == numbers.models
    assert numbers == numbers.with_models(["c", "a"])


def test_models_out_of_service_are_forgotten_after_a_hundred_and_their_numbers_are_not() -> None:
    """A record has a size; what is served is always remembered."""
    numbers = Numbers().with_models(["old"]).serving({1})
    for n in range(1000):
        numbers = numbers.with_models([f"m{n}"]).serving({1, numbers.last + 1})
    assert (KEPT + 1, 1001, "old") == (len(numbers.models), numbers.last, numbers.models[1])
    assert 1002 == numbers.with_models(["m0"]).by_model["m0"]


def test_a_record_is_read_as_it_was_written_and_an_unreadable_one_is_ignored() -> None:
    """They can be edited in the web application."""
    numbers = Numbers({2: "b", 3: "c"}, 5, frozenset({3}), matches_none=True)
    broken: list[Any] = [
        {}, {"models": 3}, {"models": {"two": "m"}, "last": 1, "served": []},
        {"models": {}, "last": math.inf, "served": []}, {"models": {}, "last": 1, "served": ["x"]},
    ]  # fmt: skip
    records = {"e": encode(numbers), **{str(n): value for n, value in enumerate(broken)}}
    assert {"e": numbers} == decode(records)


def test_numbers_of_clearml_serving_are_taken_over() -> None:
    """One number per model, one model per number."""
    found = taken_over([(7, "a"), (8, "a"), (7, "b"), (9, "c")])
    assert Numbers({7: "a", 9: "c"}, 9, frozenset({7, 9})) == found
    assert Numbers() == taken_over([])


def test_entries_of_all_writers_are_read() -> None:
    """The stock containers', ours, and broken ones."""
    assert ("a/b", (3, "m")) == (endpoint_of("a/b/3", {}), binding_of({"version": "3", "model_id": "m"}))
    assert "a/b" == endpoint_of("x", {"serving_url": "/a/b/"})
    for broken in ({}, {"version": "x", "model_id": "m"}, {"version": "1"}, "text", None):
        assert binding_of(broken) is None
    assert [(2, "a"), (3, "c")] == others(Numbers({1: "a", 2: "b"}), [(1, "a"), (2, "a"), (3, "c")])
