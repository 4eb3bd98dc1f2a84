"""``warmup.json``: valid files, and when two answers agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import SpecFault
from gateway.samples import difference, parse, read

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_an_answer_agrees_with_itself(answer: Any) -> None:
    """For any JSON value, without tolerance."""
    assert "" == difference(answer, json.loads(json.dumps(answer)), 0.0)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"label": "GOOD", "score": 0.9}, {"label": "GOOD", "score": 0.909, "tokens": 3}),
        ([0.1, 0.2], [0.105, 0.195]),
        ({"logit": 120.0}, {"logit": 120.9}),
        ([{"label": "A", "score": 0.501}, {"label": "B", "score": 0.499}],
         [{"label": "B", "score": 0.501}, {"label": "A", "score": 0.499}]),
    ],
)  # fmt: skip
def test_answers_agree_within_the_tolerance(expected: Any, actual: Any) -> None:
    """Numbers may differ a little, above 1 by a share. Additional fields are allowed. Labels have no order."""
    assert "" == difference(expected, actual, 0.01)


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        ({"label": "GOOD"}, {"label": "BAD"}, 'answer.label is "BAD" instead of "GOOD"'),
        ({"score": 0.9}, {"score": 0.88}, "answer.score is 0.88 instead of 0.9 (tolerance 0.01)"),
        ({"score": 0.9}, {}, "answer has no score"),
        ({"score": 0.9}, {"score": None}, "answer.score is null instead of 0.9"),
        ([1.0], [1.0, 2.0], "answer has 2 items instead of 1"),
        ({"tokens": 4}, {"tokens": 5}, "answer.tokens is 5 instead of 4 (tolerance 0.01)"),
        ({"ok": True}, {"ok": 1}, "answer.ok is 1 instead of true"),
        ([{"label": "A", "score": 0.9}], [{"label": "B", "score": 0.9}], "answer has no A"),
        ({"results": [{"x": [0.0]}]}, {"results": [{"x": 3}]}, "answer.results[0].x is 3 instead of a list"),
    ],
)
def test_a_disagreement_says_where_and_what(expected: Any, actual: Any, reason: str) -> None:
    """It names the first difference and its path."""
    assert reason == difference(expected, actual, 0.01)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "Input should be"),
        ({"samples": []}, "samples"),
        ({"samples": [{"answer": 1}]}, "samples.*0.*body"),
        ({"samples": [{"body": 1}], "tolerance": -1}, "tolerance"),
        ({"samples": [{"body": 1}], "format": 2}, "format"),
    ],
)
def test_an_invalid_file_is_refused(content: Any, reason: str) -> None:
    """With the reason."""
    with pytest.raises(SpecFault, match=reason):
        parse(content)


def test_a_bundle_without_the_file_has_no_samples(tmp_path: Path) -> None:
    """A damaged file is refused."""
    assert None is read(tmp_path)
    (tmp_path / "warmup.json").write_text("{")
    with pytest.raises(SpecFault, match="cannot be read"):
        read(tmp_path)
