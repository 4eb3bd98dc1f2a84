"""The meaning of endpoint patterns, and the rights of callers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.callers.access import Access
from gateway.callers.rights import Caller, matches
from gateway.errors import NotPermitted

PART = st.text("ab", min_size=1, max_size=3)
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
PATTERN = st.lists(st.text("ab*?", min_size=1, max_size=4), min_size=1, max_size=3).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "path", "means"),
    [
        ("sentiment", "sentiment/2", True), ("sentiment", "sentiment-eu", False), ("sentiment/2", "sentiment", False),
        ("sentiment/2", "sentiment/20", False), ("*", "anything/at/all", True), ("/sentiment/", "sentiment", True),
        ("Sentiment", "sentiment", False), ("a[12]", "a2/1", True),
    ],
)  # fmt: skip
def test_a_pattern_matches_an_endpoint_and_its_versions(pattern: str, path: str, means: bool) -> None:
    """A star matches within one part of the path. A mere prefix does not match."""
    assert means is matches(pattern, path)


@given(PATTERN, PATH)
def test_a_pattern_is_a_regular_expression_of_whole_parts(pattern: str, path: str) -> None:
    """Both forms match the same endpoints."""
    wanted = "".join({"*": "[^/]*", "?": "[^/]"}.get(letter, letter) for letter in pattern)
    assert matches(pattern, path) is bool(re.fullmatch(wanted + "(/.*)?", path))


def test_long_paths_are_not_matched() -> None:
    """Callers choose them, so they must cost no time."""
    assert not Caller("k", "t", ("*",)).reaches("a" * 1001)


def test_a_refusal_names_only_the_missing_right() -> None:
    """The right or the endpoint, but not the existing endpoints."""
    caller = Caller("k", "t", ("mine",), frozenset({"infer"}))
    access = Access()
    access.require(caller, "infer", "mine/1")
    with pytest.raises(NotPermitted, match="lacks the right status") as lacks:
        access.require(caller, "status")
    assert "operation_not_permitted" == lacks.value.because
    with pytest.raises(NotPermitted, match="does not cover this endpoint") as lacks:
        access.require(caller, "infer", "theirs")
    assert "endpoint_not_permitted" == lacks.value.because
    assert "mine" not in str(lacks.value)
