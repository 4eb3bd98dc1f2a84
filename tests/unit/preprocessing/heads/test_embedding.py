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


def test_token_vectors_are_pooled_over_each_texts_own_tokens() -> None:
    """Values in the padding, even NaN, have no effect."""
    result = answer({"last_hidden_state": TOKENS}, {"text": ["a", "b"]})
    assert [[2, 0], [3, 4]] == result["embeddings"].tolist()
    assert [2, 1] == result["tokens"]


def test_vectors_are_normalised_if_the_model_says_so() -> None:
    """A request may override it."""
    config = replace(CONFIG, normalize=True)
    result = answer({"last_hidden_state": TOKENS}, {"text": ["a", "b"]}, config)
    np.testing.assert_allclose(result["embeddings"], [[1, 0], [0.6, 0.8]], rtol=1e-6)
    body = {"text": ["a", "b"], "parameters": {"normalize": False}}
    assert [[2, 0], [3, 4]] == answer({"last_hidden_state": TOKENS}, body, config)["embeddings"].tolist()


def test_pooled_output_is_only_normalised() -> None:
    """The graph has pooled by its own configuration."""
    pooled = {"sentence_embedding": np.array([[3.0, 4.0]], np.float32), "token_embeddings": TOKENS[:1]}
    assert [3, 4] == answer(pooled, {"text": "a"}, lengths=[2])["embedding"].tolist()
    result = answer(pooled, {"text": "a"}, replace(CONFIG, normalize=True), lengths=[2])
    np.testing.assert_allclose(result["embedding"], [0.6, 0.8], rtol=1e-6)


def test_single_text_answers_one_vector() -> None:
    """As float32, which orjson writes directly."""
    result = answer({"x": TOKENS[:1]}, {"text": "a"}, lengths=[2])
    assert b'{"embedding":[2.0,0.0],"tokens":2}' == orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)


def test_answers_of_a_batch_can_be_written() -> None:
    """Rows of a split batch are views, and orjson accepts only contiguous arrays."""
    wide = np.zeros((2, 8), np.float32)[:, ::2]
    result = answer({"sentence_embedding": wide}, {"text": ["a", "b"]})
    assert orjson.loads(orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY))["embeddings"] == [[0] * 4] * 2


def test_outputs_are_requested_by_their_meaning() -> None:
    """Pooled ones first, then tokens, then the only one. BERT's pooler_output is not a sentence embedding."""
    head = SentenceEmbedding(CONFIG)
    assert ("sentence_embedding",) == head.select_outputs(["token_embeddings", "sentence_embedding"])
    assert ("last_hidden_state",) == head.select_outputs(["last_hidden_state", "pooler_output"])
    assert ("output_0",) == head.select_outputs(["output_0"])


def test_texts_are_stripped_and_lower_cased_as_sentence_transformers_does() -> None:
    """A tokenizer that sees white space would give other ids."""
    assert ["Ab"] == SentenceEmbedding(CONFIG).parse({"text": " Ab\n"}).texts
    assert ["ab"] == SentenceEmbedding(replace(CONFIG, lowercase=True)).parse({"text": "Ab"}).texts


def test_prompts_are_prepended() -> None:
    """The default one unless the request names another. An unknown one is refused with the known names."""
    prompts = {"query": "query: ", "passage": "passage: ", "none": ""}
    head = SentenceEmbedding(replace(CONFIG, prompts=prompts, default_prompt="passage"))
    assert ["passage: a"] == head.parse({"text": "a"}).texts
    assert ["query: a"] == head.parse({"text": "a", "parameters": {"prompt_name": "query"}}).texts
    assert ["a"] == head.parse({"text": "a", "parameters": {"prompt_name": "none"}}).texts
    with pytest.raises(InvalidInput, match="none, passage, query"):
        head.parse({"text": "a", "parameters": {"prompt_name": "x"}})


@pytest.mark.parametrize("shape", [(2,), (1, 4), (3, 4), (2, 1, 4), (2, 0, 4), (2, 3, 0), (2, 0), (2, 3, 4, 1)])
def test_outputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """Too few rows, too few tokens, no numbers, too many dimensions."""
    with pytest.raises(InvalidOutput):
        answer({"last_hidden_state": np.zeros(shape, np.float32)}, {"text": ["a", "b"]})


def test_vectors_that_are_not_finite_are_refused() -> None:
    """An overflow of half precision is reported as the backend's error."""
    with pytest.raises(InvalidOutput, match="not finite"):
        answer({"last_hidden_state": np.full((1, 2, 2), np.inf, np.float32)}, {"text": "a"}, lengths=[2])


def test_token_vectors_of_a_model_with_layers_after_pooling_are_refused() -> None:
    """Without those layers they would be another model's vectors."""
    with pytest.raises(InvalidOutput, match="whole sentence-transformers pipeline"):
        answer({"last_hidden_state": TOKENS}, {"text": ["a", "b"]}, replace(CONFIG, pooling=()))
