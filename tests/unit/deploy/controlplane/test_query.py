"""Rules of ClearML's list queries."""

# ruff: noqa: D103 - a test's name states its rule

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.controlplane import query
from deploy.controlplane.envelope import ApiError

SCHEMA = query.Schema(
    list_fields=frozenset({"id", "tags", "system_tags", "project", "status"}),
    flag_fields=frozenset({"ready"}),
    dotted_prefixes=("metadata.",),
)

TAGS = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True)


def ids(documents: list[dict[str, Any]], body: dict[str, Any]) -> str:
    return "".join(doc["id"] for doc in query.select(documents, body, SCHEMA))


def tagged(**tags: list[str]) -> list[dict[str, Any]]:
    return [{"id": name, "tags": values} for name, values in tags.items()]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["a"], "xz"),
        (["a", "b"], "xyz"),
        (["-b"], "xw"),
        (["a", "-b"], "x"),
        (["__$all", "a", "b"], "z"),
        (["__$and", "a", "b"], "z"),
        (["__$all", "a", "-b"], "x"),
        (["__$all", "a", "__$not", "b"], "x"),
        (["__$all", "a", "__$or", "b"], "z"),
        (["__$any", "a", "b"], "xyz"),
        (["__$or", "b"], "yz"),
        (["__$not", "a", "b"], "y"),
        ([None], "w"),
        (["a", None], "xzw"),
        (["__$not", None], "xyz"),
        ([], "xyzw"),
    ],
)
def test_list_filter_selects_by_its_operators(values: list[Any], found: str) -> None:
    """Plain values are any-of, a minus excludes, the operators switch to all-of, any-of and not; null means empty."""
    documents = tagged(x=["a"], y=["b"], z=["a", "b"], w=[])
    assert ids(documents, {"tags": values}) == found


def test_scalar_field_is_filtered_like_a_list_of_one() -> None:
    documents = [{"id": "x", "status": "created"}, {"id": "y", "status": "stopped"}, {"id": "z"}]
    assert ids(documents, {"status": ["created", None]}) == "xz"


def test_name_is_an_unanchored_case_sensitive_regular_expression() -> None:
    documents = [{"id": "x", "name": "serving demo"}, {"id": "y", "name": "Serving"}, {"id": "z", "name": "my serving"}]
    assert ids(documents, {"name": "serving"}) == "xz"
    assert ids(documents, {"name": "^serving\\ demo$"}) == "x"


def test_malformed_name_pattern_is_refused() -> None:
    with pytest.raises(ApiError) as error:
        query.select([], {"name": "("}, SCHEMA)
    assert (error.value.code, error.value.subcode) == (400, 21)


def test_hidden_documents_are_left_out_unless_searched_or_named() -> None:
    documents = [{"id": "x", "system_tags": ["hidden"]}, {"id": "y", "system_tags": []}]
    assert ids(documents, {}) == "y"
    assert ids(documents, {"search_hidden": True}) == "xy"
    assert ids(documents, {"id": ["x"]}) == "x"


def test_unknown_keys_of_a_body_are_ignored() -> None:
    assert ids([{"id": "x"}], {"method": "get", "allow_public": True, "tags": None}) == "x"


def test_flag_filter_counts_a_missing_flag_as_false() -> None:
    assert ids([{"id": "x", "ready": True}, {"id": "y"}], {"ready": False}) == "y"


def test_dotted_filter_reaches_into_metadata_also_for_keys_with_dots() -> None:
    documents = [{"id": "x", "metadata": {"a.b": {"value": "1"}}}, {"id": "y", "metadata": {"a.b": {"value": "2"}}}]
    assert ids(documents, {"metadata.a.b.value": "1"}) == "x"


def test_time_bounds_compare_and_a_plain_value_is_a_prefix() -> None:
    documents = [{"id": "x", "created": "2026-11-20T10:00:00.000000+00:00"}, {"id": "y", "created": "2026-12-01T00:00"}]
    assert ids(documents, {"created": [">=2026-11-30"]}) == "y"
    assert ids(documents, {"created": ["<2026-11-30", ">2026-11-01"]}) == "x"


def test_multi_field_pattern_searches_any_of_the_fields() -> None:
    documents = [{"id": "x", "name": "n", "comment": "blue"}, {"id": "y", "name": "blue"}, {"id": "z", "name": "red"}]
    assert ids(documents, {"_any_": {"fields": ["name", "comment"], "pattern": "blu"}}) == "xy"


def test_order_is_insertion_unless_asked_and_ties_of_descending_are_newest_first() -> None:
    documents = [{"id": "x", "created": "1"}, {"id": "y", "created": "2"}, {"id": "z", "created": "1"}]
    assert ids(documents, {}) == "xyz"
    assert ids(documents, {"order_by": ["-created"]}) == "yzx"
    assert ids(documents, {"order_by": ["created"]}) == "xzy"


def test_missing_values_sort_before_all_others() -> None:
    assert ids([{"id": "x", "n": 1}, {"id": "y"}, {"id": "z", "n": "a"}], {"order_by": ["n"]}) == "yxz"


@given(size=st.integers(1, 7), total=st.integers(0, 30))
def test_pages_cover_everything_once_and_end_with_a_short_one(size: int, total: int) -> None:
    """Clients ask for pages while they are full: the loop must end and see every document exactly once."""
    documents = [{"id": str(number)} for number in range(total)]
    seen: list[str] = []
    number = 0
    while True:
        found = query.select(documents, {"page": number, "page_size": size}, SCHEMA)
        seen += [doc["id"] for doc in found]
        if len(found) < size:
            break
        number += 1
    assert seen == [doc["id"] for doc in documents]


def test_page_size_is_capped() -> None:
    assert len(query.page([{"id": str(n)} for n in range(600)], {"page": 0, "page_size": 10_000})) == 500


def test_bad_page_is_refused() -> None:
    with pytest.raises(ApiError):
        query.page([], {"page": -1})


def test_only_fields_gives_named_paths_and_the_id() -> None:
    document = {"id": "x", "name": "n", "execution": {"artifacts": [{"key": "k", "uri": "u"}], "model": 1}, "tags": []}
    assert query.project(document, ["name"]) == {"id": "x", "name": "n"}
    assert query.project(document, ["execution.artifacts.key"]) == {
        "id": "x",
        "execution": {"artifacts": [{"key": "k"}]},
    }
    assert query.project(document, None) == document
    assert query.project(document, ["missing.path"]) == {"id": "x"}


def test_projection_never_changes_the_document() -> None:
    document = {"id": "x", "a": {"b": 1, "c": 2}}
    query.project(document, ["a.b"])["a"]["b"] = 9
    assert document == {"id": "x", "a": {"b": 1, "c": 2}}


@given(tags=TAGS, wanted=TAGS)
def test_any_of_and_none_of_split_all_documents(tags: list[str], wanted: list[str]) -> None:
    """A document passes a plain filter exactly when it fails the same filter with minus signs."""
    plain = query.ListFilter.parse(wanted).accepts(tags)
    negated = query.ListFilter.parse([f"-{tag}" for tag in wanted]).accepts(tags)
    assert not wanted or plain is not negated


@given(tags=TAGS, wanted=TAGS)
def test_all_of_accepts_exactly_the_supersets(tags: list[str], wanted: list[str]) -> None:
    assert query.ListFilter.parse(["__$all", *wanted]).accepts(tags) is (set(wanted) <= set(tags))


def test_exact_values_are_only_those_an_index_can_answer() -> None:
    assert query.exact(["a", "b"]) == ["a", "b"]
    assert query.exact("a") == ["a"]
    assert query.exact(["-a"]) is None
    assert query.exact(["__$all", "a"]) is None
    assert query.exact([None]) is None
    assert query.exact(None) is None
