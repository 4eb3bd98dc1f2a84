from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput
from preprocessing.heads.base import parse_texts
from preprocessing.heads.embedding import SentenceEmbedding

CONFIG = TaskConfig(task="text-classification", max_rows=3, max_chars=10)


def refusal(body: object, *, pairs: bool = True) -> InvalidInput:
    """Return the error of parsing this body."""
    with pytest.raises(InvalidInput) as caught:
        parse_texts(body, CONFIG, pairs=pairs)
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
    assert (texts, is_batch, {}) == parse_texts(body, CONFIG, pairs=True)


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
    head = SentenceEmbedding(CONFIG)
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
