from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput, UnsupportedTask
from preprocessing.heads import HEADS, head_for
from preprocessing.heads.base import Head, parse_texts
from preprocessing.heads.embedding import SentenceEmbedding
from preprocessing.types import Encoded, Prepared

# --- texts and outputs, of every task ---------------------------------------------------------------------------------

SMALL = TaskConfig(task="text-classification", max_rows=3, max_chars=10)


def refusal(body: object, *, pairs: bool = True) -> InvalidInput:
    """Return the error of parsing this body."""
    with pytest.raises(InvalidInput) as caught:
        parse_texts(body, SMALL, pairs=pairs)
    return caught.value


FORMS: list[tuple[object, list[Any], bool]] = [
    ({"text": "a"}, ["a"], False),
    ({"text": ["a"]}, ["a"], True),
    ({"text": "a", "text_pair": "b"}, [("a", "b")], False),
    ({"text": "a", "text_pair": None, "parameters": None}, ["a"], False),
    ({"text": ["a", "c"], "text_pair": ["b", "d"]}, [("a", "b"), ("c", "d")], True),
    ({"text": "\x00 \U0001f600 שלום"}, ["\x00 \U0001f600 שלום"], False),
]


@pytest.mark.parametrize(("body", "texts", "is_batch"), FORMS)
def test_forms_of_a_request(body: object, texts: list[Any], is_batch: bool) -> None:
    """A list stays a list, whatever its length."""
    assert (texts, is_batch, {}) == parse_texts(body, SMALL, pairs=True)


PAIR = {"text": "a", "text_pair": "b"}
FAULTS: list[tuple[str | None, list[object]]] = [
    (None, [None, "a", ["a"], 3, True, b"a"]),
    ("text", [
        {}, {"text": []}, {"text": ["a"] * 4}, {"text": "x" * 11},
        *({"text": value} for value in (None, 3, 1.5, True, {"text": "a"})),
        *({"text": value} for value in ("", " ", "\n\t", "\u3000", "\xa0")),
        *({"text": value} for value in ("\ud800", "a\udfff", "\udc00\ud800")),
    ]),
    ("text[0]", [{"text": [["a", "b"]]}, {"text": [PAIR]}]),
    ("text[1]", [*({"text": ["a", value]} for value in (None, 3, {"text": "a"}, " ", "\ud800"))]),
    ("text_pair", [
        {"text": ["a", "b"], "text_pair": ["c"]}, {"text": ["a"], "text_pair": "c"}, {"text": "a", "text_pair": ["c"]},
        {"text": "a", "text_pair": 3}, {"text": "a", "text_pair": ""},
    ]),
    ("text_pair[0]", [{"text": ["a"], "text_pair": ["\ud800"]}]),
    ("parameters", [{"text": "a", "parameters": []}, {"text": "a", "parameters": "top"}]),
    ("inputs", [{"inputs": "a"}]),
    # a quoted name cannot break or bloat a log line
    ("\\n" * 20, [{"text": "a", "\n" * 1000: 1}]),
]  # fmt: skip
"""The field that is named → bodies: another type, empty, too many, too long, half a surrogate pair, mixed forms."""


@pytest.mark.parametrize(("field", "bodies"), FAULTS, ids=range(len(FAULTS)))
def test_a_body_that_is_not_taken_is_refused_by_its_field(field: str | None, bodies: list[object]) -> None:
    """One request has one form, and white space of any script counts as empty. A task may take no pairs."""
    for body in bodies:
        assert field == refusal(body).field, body
    assert "text_pair" == refusal(PAIR, pairs=False).field


def test_preferred_output_wins_then_the_only_one() -> None:
    """Exporters use different names: pooled ones first, then tokens. BERT's pooler_output is no sentence's embedding.
    With two unknown names, a guess would be unsafe.
    """
    head = SentenceEmbedding(SMALL)
    for names, chosen in (
        (["token_embeddings", "sentence_embedding"], "sentence_embedding"), (["output_0"], "output_0"),
        (["last_hidden_state", "pooler_output"], "last_hidden_state"),
    ):  # fmt: skip
        assert (chosen,) == head.select_outputs(names)
    for names, said in ((["a", "c"], "a, c"), ([], "none")):
        with pytest.raises(InvalidBundle, match=said):
            head.select_outputs(names)
        with pytest.raises(InvalidOutput, match="expected sentence_embedding"):
            head.take({name: np.zeros(1) for name in names})


# --- tasks ------------------------------------------------------------------------------------------------------------

LABELS = {"zero-shot-classification": ("entailment", "neutral", "contradiction"), "ranking": ("relevance",)}


class AnyVocabulary:
    """Every id is the mask token of the pages."""

    is_word_aware = True

    def token_of(self, token_id: int) -> str:
        return "[MASK]"


def head_of(**config: Any) -> Head:
    """Return the head of a model."""
    return head_for(TaskConfig(**config), cast("Any", AnyVocabulary()))


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
    """Of another type, out of range, or unknown; the last value that fits, and the example of its description, are
    taken.
    """
    head = head_of(task=task, labels=LABELS.get(task, ("a", "b")), pooling=("mean",), mask_id=1)
    example = cast("Any", head.describe()["example"])
    assert (task, True) == (head.task, bool(head.parse(example).texts))
    body = {name: value for name, value in example.items() if name != "parameters"}
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


THREE: dict[str, Any] = {"task": "text-classification", "labels": ("NO", "MAYBE", "YES"), "activation": "softmax"}


@pytest.mark.parametrize(
    ("logits", "top_k", "endpoint", "labels"),
    [
        ([0, 1, 2], None, 1, ["YES"]),
        ([0, 1, 2], 2, 1, ["YES", "MAYBE"]),
        ([0, 1, 2], 99, None, ["YES", "MAYBE", "NO"]),
        ([1, 1, 1], None, None, ["NO", "MAYBE", "YES"]),
    ],
)
def test_the_best_labels_are_listed(logits: Any, top_k: int | None, endpoint: int | None, labels: list[str]) -> None:
    """As many as the request says, else the endpoint; equal scores in the model's order, the same in every call.

    At the top level for one text, in its order for a list, also for one of one item; cuts only where there are.
    """
    head = head_of(**THREE, top_k=endpoint)
    for is_cut, text in ((False, "a"), (True, "a"), (False, ["a"]), (True, ["a"])):
        request = head.parse({"text": text, "parameters": {"top_k": top_k}})
        prepared = Prepared([Encoded(np.arange(4), truncated=is_cut)], request)
        answer: Any = head.render(head.decode({"logits": np.array([logits], np.float32)}, prepared), prepared)
        if isinstance(text, list):
            answer = {**answer.pop("results")[0], **{name: values[0] for name, values in answer.items()}}
        assert (labels, 4, is_cut) == (list(answer["scores"]), answer["tokens"], answer.get("truncated", False))


@pytest.mark.parametrize(
    "logits",
    [
        *(np.zeros(shape) for shape in ((1, 2), (2, 3), (3,), (1, 3, 1), (1, 0))),
        *(np.array([[0, value, 1]]) for value in (np.nan, np.inf, -np.inf)),
    ],
)
def test_logits_that_are_no_scores_are_refused(logits: Any) -> None:
    """Of another shape, for a model with other labels than its config; JSON has no NaN."""
    head = head_of(**THREE)
    prepared = Prepared([Encoded(np.arange(4))], head.parse({"text": "a"}))
    with pytest.raises(InvalidOutput):
        head.decode({"logits": logits.astype(np.float32)}, prepared)
