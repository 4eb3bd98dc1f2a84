from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidInput, UnsupportedTask
from preprocessing.heads import HEADS, head_for
from preprocessing.heads.base import Head, WindowedHead
from preprocessing.types import ParsedRequest, Prepared, Window, Windows, pack

LABELS = {"zero-shot-classification": ("entailment", "neutral", "contradiction"), "ranking": ("relevance",)}


class AnyVocabulary:
    """Every id is a token of that name."""

    def token_of(self, token_id: int) -> str:
        return f"[{token_id}]"


def head_of(**config: Any) -> Head:
    """Return the head of a model."""
    return head_for(TaskConfig(**config), cast("Any", AnyVocabulary()))


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


REFUSED: dict[str, list[dict[str, Any]]] = {
    "text-classification": [
        *[{"top_k": value} for value in (0, -1, True, "3", 1.0)],
        *[{"function_to_apply": value} for value in ("relu", ["softmax"])], {"topk": 3}, {"\n": 3},
    ],
    "ranking": [{"top_n": 0}, {"return_documents": 1}, {"function_to_apply": "softmax"}],
    "sentence-embeddings": [{"normalize": 1}, {"truncate_dim": 0}, {"prompt_name": "query"}, {"top_k": 3}],
    "zero-shot-classification": [
        {}, {"candidate_labels": []}, {"candidate_labels": ["a", "a"]}, {"candidate_labels": ["a", "\ud800"]},
        *[{"candidate_labels": "a", "hypothesis_template": t} for t in ("It is.", "{} or {}?", "", 7, ["{}"])],
    ],
    "fill-mask": [{"targets": ["x" * 101]}, {"targets": []}, {"targets": ["a"] * 1001}],
    "token-classification": [{"stride": 512}, {"aggregation_strategy": "last"}, {"ignore_labels": "O"}],
    "question-answering": [{"max_seq_len": 513}, {"doc_stride": 384}, {"max_seq_len": 9, "doc_stride": 9}],
    "feature-extraction": [{"top_k": 1}],
    "text-generation": [
        {"stop": ["x" * 257]}, {"stop": ["x"] * 17}, {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0},
        {"top_p": 1.1}, {"repetition_penalty": 0}, {"seed": -1}, {"seed": 1 << 63}, {"max_new_tokens": 512},
    ],
}  # fmt: skip
TAKEN = {
    "zero-shot-classification": {"candidate_labels": "a, b", "hypothesis_template": "A {}!"},
    "question-answering": {"max_seq_len": 512, "doc_stride": 383}, "token-classification": {"stride": 511},
    "text-generation": {"max_new_tokens": 511, "stop": "x", "temperature": 0, "top_p": 1, "seed": 0, "top_k": 0},
    "text-classification": {"top_k": None, "unknown": None},  # typed clients send all fields that they know
}  # fmt: skip


@pytest.mark.parametrize("task", HEADS)
def test_parameters_that_are_not_taken_are_refused_by_name(task: str) -> None:
    """Of another type, out of range, or unknown; the last value that fits is taken."""
    head = head_of(task=task, labels=LABELS.get(task, ("a", "b")), pooling=("mean",), mask_id=1)
    body = {name: value for name, value in cast("Any", head.describe()["example"]).items() if name != "parameters"}
    for parameters in REFUSED[task]:
        with pytest.raises(InvalidInput) as caught:
            head.parse({**body, "parameters": parameters})
        assert str(caught.value.field).startswith("parameters"), parameters
    assert head.parse({**body, "parameters": TAKEN.get(task, {})}).texts


def test_a_hypothesis_is_made_of_each_label() -> None:
    """A place in a label is not replaced."""
    head = head_of(task="zero-shot-classification", labels=LABELS["zero-shot-classification"])
    parameters = {"candidate_labels": ["cat", "a {} dog"], "hypothesis_template": "A {}!"}
    pairs = head.parse({"text": "miau", "parameters": parameters}).texts
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
    found = WindowedHead(TaskConfig(task="t")).counted(Prepared([row(0, 5), row(0, 4), row(1, 3)], request))
    assert {"tokens": [9, 3], **said} == found
