from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidInput, InvalidOption, UnsupportedTask
from preprocessing.heads import HEADS, head_for
from preprocessing.heads.base import Head, Vocabulary, WindowedHead
from preprocessing.types import ParsedRequest, Prepared, Window, Windows, pack

LABELS = {"zero-shot-classification": ("entailment", "neutral", "contradiction"), "ranking": ("relevance",)}


class AnyVocabulary:
    """Every id is a token of that name."""

    def token_of(self, token_id: int) -> str:
        return f"[{token_id}]"


def head_of(**config: Any) -> Head:
    """Return the head of a model."""
    return head_for(TaskConfig(**config), cast("Vocabulary", AnyVocabulary()))


@pytest.mark.parametrize("task", HEADS)
def test_every_task_builds_its_own_head(task: str) -> None:
    """Its description has an example that it accepts."""
    head = head_of(task=task, labels=LABELS.get(task, ("a", "b")), pooling=("mean",), mask_id=1)
    assert task == head.task
    assert head.parse(head.describe()["example"]).texts


def test_unknown_task_is_refused_with_the_known_ones() -> None:
    """For a task that config.py can name but no head does."""
    with pytest.raises(UnsupportedTask) as caught:
        head_of(task="table-question-answering")
    assert "supported are feature-extraction, fill-mask" in str(caught.value)


@pytest.mark.parametrize("template", ["It is.", "{} or {}?", "{}" * 3, "", 7, ["{}"]])
def test_a_hypothesis_has_one_place_for_the_label(template: object) -> None:
    """The pipeline refuses a second one; the label would be in the sentence twice."""
    task, labels = "zero-shot-classification", LABELS["zero-shot-classification"]
    head = head_of(task=task, labels=labels)
    parameters = {"candidate_labels": ["cat", "a {} dog"], "hypothesis_template": template}
    with pytest.raises(InvalidInput, match=r"a string with one {} where the label belongs"):
        head.parse({"text": "miau", "parameters": parameters})
    if isinstance(template, str):
        with pytest.raises(InvalidOption, match=r"one {} where the label belongs"):
            head_of(task=task, labels=labels, hypothesis_template=template)
    pairs = head.parse({"text": "miau", "parameters": {**parameters, "hypothesis_template": "A {}!"}}).texts
    assert [("miau", "A cat!"), ("miau", "A a {} dog!")] == list(pairs)


@pytest.mark.parametrize(("windows", "said"), [(Windows(), {"windows": [2, 1]}), (None, {})])
def test_a_text_of_several_rows_is_counted_once(windows: Windows | None, said: dict[str, object]) -> None:
    """Its tokens are those of all its rows; how many rows, if texts were divided."""

    def row(source: int, tokens: int) -> Window:
        places = np.zeros((tokens, 2), np.int64)
        sequence, words = np.zeros(tokens, np.int8), np.zeros(tokens, np.int32)
        return Window(
            pack(range(tokens)), None, 0, False, places, source=source, first=0, sequence=sequence, words=words
        )

    request = ParsedRequest(["a", "b"], True, windows=windows)
    found = WindowedHead().counted(Prepared([row(0, 5), row(0, 4), row(1, 3)], request))
    assert {"tokens": [9, 3], **said} == found
