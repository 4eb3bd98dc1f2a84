from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidInput, InvalidOutput
from preprocessing.heads.embedding import SentenceEmbedding
from preprocessing.types import Encoded, Prepared

CONFIG = TaskConfig(task="sentence-embeddings", pooling=("mean",), normalize=False)
TOKENS = np.array([[[1, 5], [3, -5], [99, 99]], [[3, 4], [np.nan, 9], [9, 9]]], dtype=np.float32)


def answer(outputs: dict[str, Any], body: dict[str, Any], config: TaskConfig = CONFIG, lengths: Any = (2, 1)) -> Any:
    """Return the answer to a body, given the backend's outputs and each row's length."""
    head = SentenceEmbedding(config)
    prepared = Prepared([Encoded(np.arange(n)) for n in lengths], head.parse(body))
    return head.render(head.decode(outputs, prepared), prepared)


POOLED = {"sentence_embedding": np.array([[3.0, 4.0], [0.0, 2.0]], np.float32), "token_embeddings": TOKENS}
OFF, ON, SHORT = {"normalize": False}, {"normalize": True}, {"truncate_dim": 1}
VECTORS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]] = [
    # token vectors are pooled over each text's own tokens: values in the padding, even NaN, have no effect
    ({"last_hidden_state": TOKENS}, {}, {}, [[2, 0], [3, 4]]),
    ({"last_hidden_state": TOKENS}, {"normalize": True}, {}, [[1, 0], [0.6, 0.8]]),
    ({"last_hidden_state": TOKENS}, {"normalize": True}, OFF, [[2, 0], [3, 4]]),
    # a graph that pools is trusted
    (POOLED, {}, {}, [[3, 4], [0, 2]]),
    (POOLED, {"normalize": True}, {}, [[0.6, 0.8], [0, 1]]),
    # the model's own normalisation comes before the cut, the request's after
    (POOLED, {"normalize": True, "truncate_dim": 1}, {}, [[0.6], [0]]),
    (POOLED, {"normalize": True}, {**SHORT, **ON}, [[1], [0]]),
    (POOLED, {}, SHORT, [[3], [0]]),
]
"""Outputs, the model's files, parameters, and the vectors."""


@pytest.mark.parametrize(("outputs", "model", "parameters", "expected"), VECTORS, ids=range(len(VECTORS)))
def test_vectors_are_pooled_and_normalised_as_the_model_says(
    outputs: dict[str, Any], model: dict[str, Any], parameters: dict[str, Any], expected: Any
) -> None:
    """A request may override it."""
    result = answer(outputs, {"text": ["a", "b"], "parameters": parameters}, replace(CONFIG, **model))
    np.testing.assert_allclose(result["embeddings"], expected, rtol=1e-6)
    assert [2, 1] == result["tokens"]


def test_answers_can_be_written() -> None:
    """A single text's as one vector. orjson writes only contiguous arrays: a batch's are views."""
    result = answer({"x": TOKENS[:1]}, {"text": "a"}, lengths=[2])
    assert b'{"embedding":[2.0,0.0],"tokens":2}' == orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
    wide = np.zeros((2, 8), np.float32)[:, ::2]
    result = answer({"sentence_embedding": wide}, {"text": ["a", "b"]})
    assert orjson.loads(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY))["embeddings"] == [[0] * 4] * 2


PROMPTS = {"prompts": {"query": "query: ", "passage": "passage: ", "none": ""}, "default_prompt": "passage"}


@pytest.mark.parametrize(
    ("config", "parameters", "text"),
    [
        ({}, {}, "Ab"), ({"lowercase": True}, {}, "ab"), (PROMPTS, {}, "passage: Ab"),
        (PROMPTS, {"prompt_name": "query"}, "query: Ab"), (PROMPTS, {"prompt_name": "none"}, "Ab"),
    ],
)  # fmt: skip
def test_texts_are_made_as_sentence_transformers_does(config: Any, parameters: Any, text: str) -> None:
    """Stripped, lower-cased and behind the prompt; an unknown one is refused with the known names."""
    head = SentenceEmbedding(replace(CONFIG, **config))
    assert [text] == head.parse({"text": " Ab\n", "parameters": parameters}).texts
    if config is PROMPTS:
        with pytest.raises(InvalidInput, match="none, passage, query"):
            head.parse({"text": "a", "parameters": {"prompt_name": "x"}})


@pytest.mark.parametrize("shape", [(2,), (1, 4), (3, 4), (2, 1, 4), (2, 0, 4), (2, 3, 0), (2, 0), (2, 3, 4, 1)])
def test_outputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """Too few rows, too few tokens, no numbers, too many dimensions; and an overflow of half precision."""
    with pytest.raises(InvalidOutput):
        answer({"last_hidden_state": np.zeros(shape, np.float32)}, {"text": ["a", "b"]})
    with pytest.raises(InvalidOutput, match="not finite"):
        answer({"last_hidden_state": np.full((1, 2, 2), np.inf, np.float32)}, {"text": "a"}, lengths=[2])
    with pytest.raises(InvalidOutput, match="whole sentence-transformers pipeline"):  # it has layers after pooling
        answer({"last_hidden_state": TOKENS}, {"text": ["a", "b"]}, replace(CONFIG, pooling=()))
