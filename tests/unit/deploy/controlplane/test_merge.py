"""Laws of the three-way merge."""

# ruff: noqa: D103 - a test's name states its rule

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.controlplane import merge
from deploy.tools import sections

MAPS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6)
SECTIONS = st.dictionaries(
    st.sampled_from(["a/1", "b", "c.d", "e f"]), st.fixed_dictionaries({"v": st.integers(0, 3)}), max_size=4
)


@given(base=MAPS, mine=MAPS)
def test_without_a_concurrent_change_the_write_is_taken(base: dict[str, int], mine: dict[str, int]) -> None:
    assert merge.merge_maps(base, mine, base) == mine


@given(base=MAPS, theirs=MAPS)
def test_without_a_change_of_the_writer_the_stored_value_stays(base: dict[str, int], theirs: dict[str, int]) -> None:
    assert merge.merge_maps(base, base, theirs) == theirs


@given(base=MAPS, same=MAPS)
def test_the_same_change_on_both_sides_is_made_once(base: dict[str, int], same: dict[str, int]) -> None:
    assert merge.merge_maps(base, same, same) == same


@given(base=MAPS, mine=MAPS, theirs=MAPS)
def test_every_key_comes_from_who_changed_it_and_the_writer_wins(
    base: dict[str, int], mine: dict[str, int], theirs: dict[str, int]
) -> None:
    """Per key: changed by the writer -> the writer's value, else the stored one."""
    merged = merge.merge_maps(base, mine, theirs)
    for key in base.keys() | mine.keys() | theirs.keys():
        changed = mine.get(key) != base.get(key)
        assert merged.get(key) == (mine if changed else theirs).get(key)


@given(base=MAPS, added=MAPS, also_added=MAPS)
def test_additions_under_different_keys_are_united(
    base: dict[str, int], added: dict[str, int], also_added: dict[str, int]
) -> None:
    mine = base | {f"m{key}": value for key, value in added.items()}
    theirs = base | {f"t{key}": value for key, value in also_added.items()}
    assert merge.merge_maps(base, mine, theirs) == mine | theirs


@given(candidates=st.lists(MAPS, min_size=1, max_size=4), mine=MAPS)
def test_chosen_base_makes_the_change_smallest(candidates: list[dict[str, int]], mine: dict[str, int]) -> None:
    chosen = merge.choose_base(candidates, mine)
    assert merge.distance(chosen, mine) == min(merge.distance(base, mine) for base in candidates)


def test_keys_count_before_values_when_a_base_is_chosen() -> None:
    """The CLI rewrites what it loads; a base from which nothing vanishes is likelier than one with equal values."""
    mine = {"a": 2, "b": 2, "d": 1}
    older, newer = {"a": 1, "b": 1}, {"a": 2, "b": 2, "c": 1}
    assert merge.choose_base([older, newer], mine) == older


def test_entry_rewritten_with_empty_fields_is_not_a_change() -> None:
    """The CLI leaves `version` out of an endpoint it adds and writes `version = ""` for one it has loaded."""
    loaded, rewritten = "a { v = 1 }", 'a {\n  v = 1\n  version = ""\n}\nd { v = 1 }'
    others = 'a {\n  v = 7\n  version = ""\n}\nb { v = 1 }'
    merged = merge.merge_texts([loaded, others], rewritten, others)
    assert sections.parse(merged) == {"a": {"v": 7, "version": ""}, "b": {"v": 1}, "d": {"v": 1}}


def test_later_base_is_chosen_on_a_tie() -> None:
    assert merge.choose_base([{"a": 1}, {"b": 1}], {}) == {"b": 1}


@settings(max_examples=40, deadline=None)
@given(base=SECTIONS, mine=SECTIONS, theirs=SECTIONS)
def test_texts_merge_as_their_sections_do(
    base: dict[str, object], mine: dict[str, object], theirs: dict[str, object]
) -> None:
    merged = merge.merge_texts([sections.render(base)], sections.render(mine), sections.render(theirs))
    assert sections.parse(merged) == merge.merge_maps(base, mine, theirs)


def test_text_is_kept_to_the_byte_where_nothing_is_combined() -> None:
    """Comments and layout survive whenever one side alone has changed something."""
    base, mine = "a { v = 1 }", "# mine\na {v=2}  \n"
    assert merge.merge_texts([base], mine, base) == mine
    assert merge.merge_texts([], mine, "b { v = 1 }") == mine
    assert merge.merge_texts([base], "a { v = 1 }  ", "# theirs\na { v = 3 }") == "# theirs\na { v = 3 }"


def test_two_additions_from_the_same_base_both_survive() -> None:
    """The stock tools' lost update: the second writer's copy knows nothing of the first one's endpoint."""
    base, first, second = "{}", 'a { engine = "x" }', 'b { engine = "y" }'
    assert sections.parse(merge.merge_texts([base], second, first)) == {"a": {"engine": "x"}, "b": {"engine": "y"}}


def test_reread_right_before_the_write_is_not_taken_for_its_base() -> None:
    """The SDK reads the Task again before it writes a copy that is older; the newcomer is no deletion."""
    merged = merge.merge_texts(["{}", "a { v = 1 }"], "b { v = 2 }", "a { v = 1 }")
    assert sections.parse(merged) == {"a": {"v": 1}, "b": {"v": 2}}


def test_deletion_is_a_change_like_any_other() -> None:
    merged = merge.merge_texts(["a {v=1}\nb {v=2}"], "b {v=2}", "a {v=1}\nb {v=2}\nc {v=3}")
    assert sections.parse(merged) == {"b": {"v": 2}, "c": {"v": 3}}


def test_texts_that_are_not_evaluated_are_taken_as_written() -> None:
    mine = "a = ${HOME}"
    assert merge.merge_texts(["{}"], mine, "b { v = 1 }") == mine


def test_unreadable_write_is_reported() -> None:
    with pytest.raises(sections.Unparsable):
        merge.merge_texts(["{}"], "a {", "b { v = 1 }")


def test_flattened_parameters_nest_back() -> None:
    nested = {"General": {"a": {"value": "1"}}, "Args": {"b": {"value": "2"}, "a": {"value": "3"}}}
    assert merge.nested(merge.flattened(nested)) == nested


def test_artifacts_are_identified_by_key_and_mode() -> None:
    items = [{"key": "k", "mode": "input"}, {"key": "k", "mode": "output"}]
    assert list(merge.keyed(items, "key", "mode")) == [("k", "input"), ("k", "output")]
