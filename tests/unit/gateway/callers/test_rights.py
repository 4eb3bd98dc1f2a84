"""What patterns of endpoints mean, and what a caller may do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.callers.rights import CLASSES, OPERATIONS, Caller, checked, matches
from gateway.errors import NotPermitted

PART = st.text("ab", min_size=1, max_size=3)
PATH = st.lists(PART, min_size=1, max_size=3).map("/".join)
PATTERN = st.lists(st.text("ab*?", min_size=1, max_size=4), min_size=1, max_size=3).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "path", "means"),
    [
        ("sentiment", "sentiment", True),
        ("sentiment", "sentiment/2", True),
        ("sentiment", "sentiment-eu", False),
        ("sentiment/2", "sentiment/2", True),
        ("sentiment/2", "sentiment", False),
        ("sentiment/2", "sentiment/20", False),
        ("team-*/public", "team-a/public/1", True),
        ("team-*/public", "team-a/private", False),
        ("team-*", "team-a/private", True),
        ("*", "anything/at/all", True),
        ("/sentiment/", "sentiment", True),
        ("Sentiment", "sentiment", False),
        ("a[12]", "a2/1", True),
    ],
)
def test_pattern_means_an_endpoint_and_what_is_below(pattern: str, path: str, means: bool) -> None:
    """A star stays within its part of the path, and nothing is matched by a mere beginning."""
    assert means is matches(pattern, path)


@given(PATTERN, PATH)
def test_a_pattern_is_a_regular_expression_of_whole_parts(pattern: str, path: str) -> None:
    """Two ways to say the same."""
    wanted = "".join({"*": "[^/]*", "?": "[^/]"}.get(letter, letter) for letter in pattern)
    assert matches(pattern, path) is bool(re.fullmatch(wanted + "(/.*)?", path))


@given(st.lists(PATTERN, max_size=3), st.lists(PATH, max_size=20))
def test_what_is_remembered_is_what_is_true(patterns: list[str], paths: list[str]) -> None:
    """Asking twice, in any order, gives the same."""
    caller = Caller("k", "t", tuple(patterns))
    for path in [*paths, *reversed(paths)]:
        assert caller.reaches(path) is any(matches(pattern, path) for pattern in patterns)


def test_long_paths_are_not_looked_at_and_not_remembered() -> None:
    """A caller chooses them: neither time nor memory grows with what it sends."""
    caller = Caller("k", "t", ("*a*a*a*a*b",))
    assert not caller.reaches("a" * 100_000)
    for number in range(5_000):
        caller.reaches(f"{number}")
    assert len(caller._known) <= 1024


def test_what_is_lacking_is_named_and_nothing_else() -> None:
    """The right, or the endpoint; which endpoints there are stays unsaid."""
    caller = Caller("k", "t", ("mine",), frozenset({"infer"}))
    caller.require("infer", "mine/1")
    with pytest.raises(NotPermitted, match="lacks the right status") as lacks:
        caller.require("status")
    assert "operation_not_permitted" == lacks.value.because
    with pytest.raises(NotPermitted, match="does not cover endpoint theirs") as lacks:
        caller.require("infer", "theirs")
    assert "endpoint_not_permitted" == lacks.value.because
    assert "mine" not in str(lacks.value)


def test_only_what_there_is_can_be_granted() -> None:
    """A right with a typing error would be missed when it is needed."""
    checked(OPERATIONS, ["a"], CLASSES[0])
    for operations, endpoints, priority in (
        (["infr"], ["a"], "default"), ([], ["/"], "default"), ([], ["a"], "urgent"),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            checked(operations, endpoints, priority)
