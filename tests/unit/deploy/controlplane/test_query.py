"""Rules of ClearML's list queries, as far as the stock CLI, the SDK and the gateway use them."""

# ruff: noqa: D103 - a test's name states its rule

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.controlplane import query
from deploy.controlplane.envelope import ApiError


def ids(documents: list[dict[str, Any]], body: dict[str, Any]) -> str:
    return "".join(doc["id"] for doc in query.select(documents, body))


@pytest.mark.parametrize(
    ("values", "found"),
    [(["a"], "xz"), ("a", "xz"), (["a", "b"], "xyz"), (["-b"], "xw"), (["a", "-b"], "x"), (["-a", "-b"], "w"),
     ([], "xyzw")],
)  # fmt: skip
def test_list_filter_takes_any_of_its_values_and_none_of_the_excluded_ones(values: Any, found: str) -> None:
    tags = {"x": ["a"], "y": ["b"], "z": ["a", "b"], "w": []}
    assert ids([{"id": name, "tags": of} for name, of in tags.items()], {"tags": values}) == found


@pytest.mark.parametrize(
    "body",
    [{"tags": ["__$all", "a"]}, {"tags": ["__$not", "a"]}, {"_any_": {"pattern": "x", "fields": ["name"]}},
     {"created": [">=2026-01-01"]}, {"include_subprojects": True}],
)  # fmt: skip
def test_what_is_not_known_here_is_refused_not_ignored(body: dict[str, Any]) -> None:
    """An ignored filter would answer with wrong documents."""
    with pytest.raises(ApiError) as refused:
        query.select([{"id": "x"}], body)
    assert (refused.value.code, refused.value.subcode) == (400, 12)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)+$", "(.*)*(.*)*(.*)*x$", "(a|b)*a(a|b){500}c"])
def test_pattern_that_would_take_minutes_by_backtracking_is_searched_at_once(pattern: str) -> None:
    documents = [{"id": str(number), "name": "a" * 5000 + f"b{number}"} for number in range(20)]
    assert ids(documents, {"name": pattern}) == ""


@pytest.mark.parametrize(
    "pattern", ["(?=a)b", r"(a)\1", "[", "*", "(" * 5000, "(x{1000}){1000}", "((((a{100}){100}){100}){100}){100}"]
)
def test_pattern_that_cannot_be_searched_in_bounded_time_is_refused_and_says_why(pattern: str) -> None:
    with pytest.raises(ApiError, match=r"^Malformed regular expression: .{10,}") as refused:
        query.select([], {"name": pattern})
    assert (refused.value.code, refused.value.subcode) == (400, 21)


def test_order_is_insertion_unless_asked_and_ties_of_descending_are_newest_first() -> None:
    documents = [{"id": "x", "created": "1"}, {"id": "y", "created": "2"}, {"id": "z", "created": "1"}]
    assert ids(documents, {}) == "xyz"
    assert ids(documents, {"order_by": ["-created"]}) == "yzx"
    assert ids(documents, {"order_by": ["created"]}) == "xzy"
    documents = [{"id": "x", "n": 10}, {"id": "y"}, {"id": "z", "n": "a"}, {"id": "w", "n": 9}]
    assert ids(documents, {"order_by": ["n"]}) == "ywxz"


@given(size=st.integers(1, 7), total=st.integers(0, 30))
def test_pages_cover_everything_once_and_end_with_a_short_one(size: int, total: int) -> None:
    """Clients ask for pages while they are full: the loop must end and see every document exactly once."""
    documents = [{"id": str(number)} for number in range(total)]
    pages = [query.select(documents, {"page": number, "page_size": size}) for number in range(total // size + 1)]
    assert [doc for page in pages for doc in page] == documents
    assert len(pages[-1]) < size


def test_page_size_is_capped_and_a_negative_page_is_refused() -> None:
    documents = [{"id": str(number)} for number in range(600)]
    assert len(query.select(documents, {"page": 0, "page_size": 10_000})) == 500
    with pytest.raises(ApiError):
        query.select(documents, {"page": -1})


def test_only_fields_gives_named_paths_and_the_id_and_changes_no_document() -> None:
    document = {"id": "x", "name": "n", "script": {"binary": "b", "diff": "d"}, "tags": []}
    only = {
        ("name",): {"id": "x", "name": "n"},
        ("script.binary", "tags"): {"id": "x", "script": {"binary": "b"}, "tags": []},
        ("missing.path", "tags.x"): {"id": "x"},
        (): document,
    }
    for fields, found in only.items():
        assert query.select([document], {"only_fields": list(fields)}) == [found]
    assert document["script"] == {"binary": "b", "diff": "d"}
