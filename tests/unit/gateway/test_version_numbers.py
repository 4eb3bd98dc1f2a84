"""Version numbers in our records: each is given once, to one model, even if many model syncs assign them at once."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.version_numbers import Numbers, binding, binding_of, decode, endpoint_of, others, service, step

Records = dict[str, dict[str, object]]


def write(records: Records, numbers: Numbers, newest: list[str], **more: object) -> Records:
    """Return what a model sync that has read ``numbers`` adds to the records."""
    decided = step(numbers, newest, **{"known": {}, **more})
    added = [binding("claim", "e", *bound) for bound in decided.claims]
    return {**records, **dict(added + [binding("given", "e", *bound) for bound in decided.given])}


def read(records: Records) -> Numbers:
    """Return what a model sync reads now."""
    return decode(records).get("e", Numbers())


def test_a_number_is_claimed_and_then_assigned() -> None:
    """In two steps, with a read between them. The newest model gets the highest number."""
    records = write({}, Numbers(), ["b", "a"])
    assert {} == read(records).given
    assert {1: frozenset("a"), 2: frozenset("b")} == read(records).claims
    records = write(records, read(records), ["b", "a"])
    assert {1: "a", 2: "b"} == read(records).given
    assert records == write(records, read(records), ["b", "a"])
    for _ in range(2):
        records = write(records, read(records), ["c"])
    assert {1: "a", 2: "b", 3: "c"} == read(records).given


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.lists(st.sampled_from("abcdef"), unique=True)), max_size=40
    ),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=3),
)
def test_a_number_never_has_two_models_however_reads_and_writes_interleave(
    schedule: list[tuple[int, bool, list[str]]], known: dict[str, int]
) -> None:
    """Each model sync sees its own models, decides by an old read, and writes late. Numbers are only added."""
    records: Records = {}
    copies, names = [read(records)] * 4, dict[int, str]()
    for sync, is_read, models in schedule:
        if is_read:
            copies[sync] = read(records)
        else:
            records = write(records, copies[sync], models, known=known)
        now = read(records).given
        assert names.items() <= now.items()
        names = dict(now)
        keys = [key for key in records if key.startswith("given")]
        assert len(keys) == len(names), "no number was ever given twice"
    for _ in range(4):
        records = write(records, read(records), list("abcdef"), known=known)
    assert set("abcdef") == set(read(records).given.values())


def test_existing_numbers_are_adopted_until_the_first_own_ones() -> None:
    """No url changes its meaning with an upgrade. Afterwards other writers are ignored."""
    records = write({}, Numbers(), ["b", "a"], known={"a": 7})
    assert {7: frozenset("a"), 8: frozenset("b")} == read(records).claims
    records = write(records, read(records), ["b", "a"], known={"a": 7})
    assert {7: "a", 8: "b"} == read(records).given
    assert records == write(records, read(records), ["b", "a"], known={"b": 7, "a": 8})


def test_a_number_that_changes_while_it_is_adopted_is_not_used() -> None:
    """A stock container restarts at that moment, so the url may have answered with either model."""
    records = write({}, Numbers(), ["b", "a"], known={"a": 1})
    records = write(records, read(records), ["b", "a"], known={"b": 1})
    for _ in range(3):
        records = write(records, read(records), ["b", "a"], known={"b": 1})
    assert 1 not in read(records).given
    assert {"a", "b"} == set(read(records).given.values())


def test_unreadable_records_are_ignored() -> None:
    """They were edited in the web application."""
    records: Records = {
        "x": {"record": "given"}, "y": {"record": "given", "endpoint": "e", "number": "two", "model": "m"},
        "z": {"endpoint": "e"}, **dict([binding("given", "e", 2, "b"), service("e", {2})]),
        "w": {"record": "served", "endpoint": "f", "versions": ["one"]},
        "v": {"record": "claim", "endpoint": "e", "number": math.inf, "model": "m"},
    }  # fmt: skip
    assert {"e": Numbers({2: "b"}, {2: frozenset("b")}, frozenset({2}))} == decode(records)


def test_entries_of_all_writers_are_read() -> None:
    """The stock containers', ours, and broken ones."""
    assert ("a/b", (3, "m")) == (endpoint_of("a/b/3", {}), binding_of({"version": "3", "model_id": "m"}))
    assert "a/b" == endpoint_of("x", {"serving_url": "/a/b/"})
    for broken in ({}, {"version": "x", "model_id": "m"}, {"version": "1"}, "text", None):
        assert binding_of(broken) is None
    assert [(2, "a"), (3, "c")] == others(Numbers({1: "a", 2: "b"}), [(1, "a"), (2, "a"), (3, "c")])
