"""Feedback ids: what they say, who can read them, and when an answer has none."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import catalog
from gateway.metrics.feedback_ids import MAX_CHARS, MAX_ROWS, FeedbackIds, Row, feedback_ids
from gateway.trace import Trace

KEY = b"a key of many characters"
IDS = FeedbackIds([KEY])


def id_of(answer: Any, ids: FeedbackIds = IDS, outcome: str = "ok") -> str:
    """Return the id of an answer of e/3."""
    trace = Trace("r")
    trace.endpoint, trace.version, trace.answer, trace.outcome = "e", "3", answer, outcome
    ids.answered(trace)
    return trace.feedback_id.decode()


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), st.floats(0, 1)),
        min_size=1,
        max_size=8,
    )
)
def test_an_id_says_the_labels_and_the_bins_of_the_scores(rows: list[tuple[str, float]]) -> None:
    """Of every row, in their order."""
    found = IDS.read(id_of({"results": [{"label": label, "score": score} for label, score in rows]}))
    assert found is not None
    assert ("e", "3") == found[:2]
    assert [label for label, _ in rows] == [row.label for row in found.rows]
    for (_, score), row in zip(rows, found.rows, strict=True):
        assert row.score is not None
        assert bisect_left(catalog.RATIO_BUCKETS, score) == bisect_left(catalog.RATIO_BUCKETS, row.score)


def test_a_hook_may_have_any_score() -> None:
    """One that is no share is left out."""
    for score in (None, "much", 17.0, float("nan"), True):
        found = IDS.read(id_of({"label": "spam", "score": score}))
        assert found is not None
        assert (Row("spam", None),) == found.rows


def test_an_answer_without_labels_has_no_id() -> None:
    """Nor has one with too many texts or too long labels, nor a failure."""
    many: Any = {"results": [{"label": "a"}] * (MAX_ROWS + 1)}
    long = {"results": [{"label": "a" * 100}] * MAX_ROWS}
    mixed = {"results": [{"label": "a"}, {"error": "x"}]}
    odd = ({"results": "abc"}, {"label": 3}, {"label": ""}, {"label": "\ud800"})
    answer: Any
    for answer in (None, b"x", [], {}, {"results": []}, *odd, many, long, mixed):
        assert "" == id_of(answer)
    assert "" == id_of({"label": "a"}, outcome="internal")
    assert len(id_of({"results": [{"label": "POSITIVE", "score": 0.98}] * MAX_ROWS})) <= MAX_CHARS


def test_keys_can_be_changed() -> None:
    """The first one signs, and all are accepted."""
    after = FeedbackIds([b"a new key of many characters", KEY])
    answer = {"label": "a", "score": 0.5}
    assert IDS.read(id_of(answer)) == after.read(id_of(answer)) == after.read(id_of(answer, after)) is not None
    assert IDS.read(id_of(answer, after)) is None


@pytest.mark.parametrize("content", ["", "short", "a key of many characters\nshort"])
def test_a_key_file_that_cannot_be_used_is_found_at_the_start(tmp_path: Path, content: str) -> None:
    """With the setting's name and what to write."""
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"TRITON_GATEWAY_FEEDBACK_KEY_FILE: .*openssl rand"):
        feedback_ids(str(path))
    with pytest.raises(ValueError, match="cannot be read"):
        feedback_ids(str(tmp_path / "none"))
    assert feedback_ids("") is None
