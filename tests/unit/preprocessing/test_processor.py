from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from preprocessing.errors import InvalidBundle, InvalidInput
from preprocessing.processor import TextProcessor

from .conftest import CLASSIFIER, MakeFolder


def test_the_whole_way_from_request_to_answer(classifier: Path) -> None:
    """Without a backend: ids in, logits out, a label."""
    processor = TextProcessor.from_folder(classifier, output_names=["logits"])
    assert "text-classification" == orjson.loads(orjson.dumps(processor.describe()))["task"], "a docs page shows it"
    prepared = processor.prepare({"text": ["good film", "bad"]})
    tensors = processor.collate_rows(prepared.rows)
    assert {"input_ids", "attention_mask", "token_type_ids"} == set(tensors)
    assert (2, 4) == tensors["input_ids"].shape
    answer: Any = processor.finish({"logits": np.array([[0, 0, 9], [9, 0, 0]], np.float32)}, prepared)
    assert ["POSITIVE", "NEGATIVE"] == [item["label"] for item in answer["results"]]
    assert [4, 3] == answer["tokens"]


def test_the_backends_metadata_overrides_the_folder(classifier: Path) -> None:
    """Names and types of inputs, and the outputs to request."""
    processor = TextProcessor.from_folder(
        classifier,
        input_names=["attention_mask", "input_ids"],
        input_dtypes={"input_ids": np.int32},
        output_names=["hidden_states", "logits"],
    )
    tensors = processor.collate_rows(processor.prepare({"text": "good"}).rows)
    assert [("attention_mask", np.int64), ("input_ids", np.int32)] == [(name, t.dtype) for name, t in tensors.items()]
    assert ("logits",) == processor.output_names


@pytest.mark.parametrize("names", [["pixel_values"], ["input_ids", "bbox"], ["attention_mask"], []])
def test_inputs_that_text_cannot_make_are_refused_at_load(classifier: Path, names: list[str]) -> None:
    """Not by the first request."""
    with pytest.raises(InvalidBundle, match="Preprocess class"):
        TextProcessor.from_folder(classifier, input_names=names)


def test_tokenizer_of_a_larger_vocabulary_is_refused_at_load(make_folder: MakeFolder) -> None:
    """Its last ids would be outside the embedding table."""
    with pytest.raises(InvalidBundle, match=r"ids up to 12.*vocab_size is 12"):
        TextProcessor.from_folder(make_folder(**{**CLASSIFIER, "vocab_size": 12}))


def test_long_text_is_truncated_or_refused_as_the_endpoint_says(classifier: Path) -> None:
    """Truncated by default."""
    body = {"text": ["a", "a " * 50]}
    assert 1 == TextProcessor.from_folder(classifier).prepare(body).n_truncated
    with pytest.raises(InvalidInput, match="longer than the 16 tokens") as caught:
        TextProcessor.from_folder(classifier, options={"long_texts": "refuse"}).prepare(body)
    assert "text[1]" == caught.value.field


def test_batches_of_several_requests_give_each_its_answer(encoder: Path) -> None:
    """Token vectors padded to the batch's longest row are pooled over each request's own tokens."""
    processor = TextProcessor.from_folder(encoder)
    short, long = processor.prepare({"text": "a"}), processor.prepare({"text": ["a b c", "b"]})
    tensors = processor.collate_rows([*short.rows, *long.rows])
    table = np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32)
    hidden = table[tensors["input_ids"]]
    alone = table[processor.collate_rows(short.rows)["input_ids"]]
    together: Any = processor.finish({"last_hidden_state": hidden[:1]}, short)
    expected: Any = processor.finish({"last_hidden_state": alone}, short)
    assert expected["embedding"].tobytes() == together["embedding"].tobytes()
