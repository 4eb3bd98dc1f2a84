"""Requests are limited by the work they cause. No cost grows with the product of two sizes of a request."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from preprocessing.errors import InvalidInput
from preprocessing.processor import TextProcessor
from preprocessing.tokenizer import TextTokenizer
from preprocessing.types import Prepared
from preprocessing.windows import Windower

from .conftest import CLASSIFIER, ENCODER, WORDS, MakeFolder, word_piece

MASK = len(WORDS)
VOCABULARY = {**{word: i for i, word in enumerate(WORDS)}, "[MASK]": MASK}
MANY = {**VOCABULARY, **{f"w{i}": MASK + 1 + i for i in range(8000)}}
BERT = {"model_type": "bert", "max_position_embeddings": 64, "type_vocab_size": 2}
MASKED = {**BERT, "architectures": ["BertForMaskedLM"], "vocab_size": len(MANY)}
INFERENCE = {
    **BERT, "architectures": ["BertForSequenceClassification"], "vocab_size": len(WORDS),
    "id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"},
}  # fmt: skip
ANSWERING = {**BERT, "architectures": ["BertForQuestionAnswering"], "vocab_size": len(WORDS)}
TAGGING = {
    **BERT, "architectures": ["BertForTokenClassification"], "vocab_size": len(WORDS),
    "id2label": {"0": "O", "1": "B-X"},
}  # fmt: skip
RANKING = {**INFERENCE, "id2label": {"0": "LABEL_0"}}


def whole_texts(vocabulary: dict[str, int]) -> Tokenizer:
    """Return a BERT tokenizer of these words without truncation and padding."""
    tokenizer = word_piece(vocabulary)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.add_special_tokens(["[MASK]"])
    return tokenizer


@pytest.fixture
def fill_mask(make_folder: MakeFolder) -> Path:
    """A model that predicts one of 8,000 words."""
    files = {"tokenizer_config.json": {"mask_token": "[MASK]"}}
    return make_folder(files, tokenizer=whole_texts(MANY), **MASKED)


class Counting:
    """A tokenizer that counts its input characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.chars = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts: list[Any], **options: Any) -> Any:
        self.chars += sum(len(part) for text in texts for part in ([text] if isinstance(text, str) else text))
        return self._tokenizer.encode_batch_fast(texts, **options)


# --- the way in -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "options", "body"),
    [
        (INFERENCE, {}, {"text": "a " * 500, "parameters": {"candidate_labels": [f"l{i}" for i in range(200)]}}),
        (RANKING, {"task": "ranking"}, {"query": "a " * 500, "documents": ["b"] * 200}),
        (ANSWERING, {}, {"question": ["a"] * 200, "context": "b " * 500}),
    ],
)
def test_a_text_counts_for_every_row_it_becomes(
    make_folder: MakeFolder, config: dict[str, Any], options: dict[str, str], body: dict[str, Any]
) -> None:
    """1 kB becomes 200 kB: too much for the event loop, although the body is small."""
    task = {} if options or config is not INFERENCE else {"task": "zero-shot-classification"}
    processor = TextProcessor.from_folder(make_folder(**config), options={**options, **task})
    small = {name: value[:1] if isinstance(value, list) else value for name, value in body.items()}
    if "parameters" in small:
        small["parameters"] = {"candidate_labels": ["l0"]}
    assert processor.encodes_off_loop(processor.parse(body))
    assert not processor.encodes_off_loop(processor.parse(small))


@pytest.mark.parametrize(
    ("body", "much"),
    [
        ({"text": "x" * 80}, False),
        ({"text": "x" * 101}, True),
        ({"text": ["x" * 30] * 4}, True),
        ({"text": ["x"] * 10}, False),
        ({"text": ["x"] * 20}, True),
        ({"text": "x" * 60, "text_pair": "x" * 60}, True),
    ],
)
def test_the_offload_limit_counts_characters_and_rows_of_the_whole_request(
    classifier: Path, body: object, much: bool
) -> None:
    """Beyond it, a request is tokenized in a thread."""
    processor = TextProcessor.from_folder(classifier, options={"offload_chars": 100})
    assert much == processor.encodes_off_loop(processor.parse(body))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_of_many_pairs_is_tokenized_once(side: str) -> None:
    """The rows are the same as for each pair alone."""
    counting = Counting(whole_texts(VOCABULARY))
    counting.enable_truncation(16, strategy="longest_first", direction=side)
    options: dict[str, Any] = {"max_length": 16, "unknown_id": 1, "zero_types": True, "truncation_side": side}
    tokenizer = TextTokenizer(counting, **options)  # type: ignore[arg-type]
    text = "good film hello " * 100
    pairs = [(text, "a " * i + "b") for i in range(20)] + [("hello", text)]
    rows = tokenizer.encode_batch(pairs)
    assert counting.chars < 2 * len(text)
    cached = TextTokenizer(at_sixteen(side), word_cache=True, **options)
    assert cached.words is not None
    for _ in ("learning", "knowing"):
        again = cached.encode_batch(pairs)
        assert [row.packed_ids for row in rows] == [row.packed_ids for row in again]
        assert [(row.truncated, row.packed_type_ids) for row in rows] == [
            (row.truncated, row.packed_type_ids) for row in again
        ]
    for pair, row in zip(pairs, rows, strict=True):
        (alone,) = tokenizer.encode_batch([pair])
        assert (alone.packed_ids, alone.truncated) == (row.packed_ids, row.truncated)


def at_sixteen(side: str) -> Tokenizer:
    """The one above, at sixteen tokens."""
    tokenizer = whole_texts(VOCABULARY)
    tokenizer.enable_truncation(16, strategy="longest_first", direction=side)
    return tokenizer


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("keeps_all", [True, False])
def test_windows_of_a_repeated_text_are_those_of_the_text_alone(side: Any, keeps_all: bool) -> None:
    """All its rows share one encoding, which none of them changes."""
    from preprocessing.types import Windows

    windower = Windower(whole_texts(VOCABULARY), max_length=16, truncation_side=side, unknown_id=1)
    windows = Windows(2, cuts="first", keeps_all=keeps_all)
    text = "good film hello world a b c " * 5
    pairs = [(text, "a"), (text, "a b c"), ("bad", "a"), (text, "a")]
    found = windower.encode(pairs, windows)
    alone = [(i, window) for i, pair in enumerate(pairs) for window in windower.encode([pair], windows)]
    assert [i for i, _ in alone] == [window.source for window in found]
    for (_, one), other in zip(alone, found, strict=True):
        assert one.packed_ids == other.packed_ids
        assert (one.first, one.truncated, one.packed_type_ids) == (other.first, other.truncated, other.packed_type_ids)
        assert np.array_equal(one.offsets, other.offsets)  # type: ignore[arg-type]
        assert np.array_equal(one.sequence, other.sequence)
        assert np.array_equal(one.words, other.words)


@pytest.mark.parametrize(
    ("config", "body"),
    [
        (ANSWERING, {"question": "a", "context": "b " * 6000, "parameters": {"doc_stride": 63}}),
        (TAGGING, {"text": "b " * 6000, "parameters": {"stride": 63}}),
    ],
)
def test_windows_with_a_tiny_step_are_refused_before_they_are_made(
    make_folder: MakeFolder, config: dict[str, Any], body: dict[str, Any]
) -> None:
    """One window per token: some 6,000 of 64 tokens, with megabytes of arrays."""
    processor = TextProcessor.from_folder(make_folder(**config))
    request = processor.parse(body)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="at most 1024"):
            processor.encode(request)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_long_template_and_many_labels_do_not_multiply(make_folder: MakeFolder) -> None:
    """200,000 characters × 200 labels would be 40 MB."""
    options = {"task": "zero-shot-classification"}
    processor = TextProcessor.from_folder(make_folder(**INFERENCE), options=options)
    parameters = {"candidate_labels": [f"l{i}" for i in range(200)], "hypothesis_template": "x" * 200_000 + "{}"}
    with pytest.raises(InvalidInput, match="at most 1000000 are taken"):
        processor.parse({"text": "a", "parameters": parameters})
    assert processor.parse({"text": "a", "parameters": {**parameters, "candidate_labels": ["a", "b"]}})
    few = {"candidate_labels": [f"l{i}" for i in range(11)]}
    assert 1023 == len(processor.parse({"text": ["a"] * 93, "parameters": few}).texts)
    with pytest.raises(InvalidInput, match="1034 rows, at most 1024"):
        processor.parse({"text": ["a"] * 94, "parameters": few})


# --- the way out ------------------------------------------------------------------------------------------------------


def test_every_token_for_every_mask_is_refused_with_the_limit(fill_mask: Path) -> None:
    """The body has 1 KiB, the answer would have hundreds of megabytes."""
    processor = TextProcessor.from_folder(fill_mask)
    body = {"text": "[MASK] " * 60, "parameters": {"top_k": 30_522}}
    with pytest.raises(InvalidInput, match=r"answer .* at most 134217728 are written .*max_answer_bytes"):
        processor.prepare(body)
    assert not processor.prepare({"text": "[MASK] a"}).finishes_off_loop
    assert processor.prepare({"text": "[MASK] a", "parameters": {"top_k": 5000}}).finishes_off_loop
    raised = TextProcessor.from_folder(fill_mask, options={"max_answer_bytes": 1 << 30})
    assert isinstance(raised.prepare(body), Prepared)


def test_the_estimated_answer_size_is_near_the_real_one(fill_mask: Path) -> None:
    """It must not be much too low, because the limit uses it."""
    import orjson

    processor = TextProcessor.from_folder(fill_mask)
    prepared = processor.prepare({"text": "[MASK] a b [MASK] good film", "parameters": {"top_k": 500}})
    logits = np.random.default_rng(0).normal(size=(1, prepared.rows[0].n_tokens, len(MANY))).astype(np.float32)
    written = len(orjson.dumps(processor.finish({"logits": logits}, prepared)))
    estimate = processor.head.answer_bytes(prepared, logits.nbytes)
    assert written / 2 < estimate < written * 4


def test_outputs_of_many_rows_are_refused_with_the_limit(fill_mask: Path) -> None:
    """By the sizes of the model's first answer, of which token vectors take a number of bytes per token."""
    processor = TextProcessor.from_folder(fill_mask, options={"max_output_bytes": 100_000})
    one = processor.prepare({"text": "[MASK] a"})
    processor.finish({"logits": np.zeros((1, 4, len(MANY)), np.float32)}, one)
    assert processor.prepare({"text": "[MASK] a"})
    with pytest.raises(InvalidInput, match=r"outputs .* at most 100000 are held .*max_output_bytes"):
        processor.prepare({"text": ["[MASK] a", "[MASK] b"]})


@pytest.mark.parametrize(
    ("config", "options", "body"),
    [
        (CLASSIFIER, {}, {"text": ["a"] * 50}),
        (ENCODER, {}, {"text": ["a"] * 50}),
        (TAGGING, {}, {"text": ["a b c"] * 50}),
        (ANSWERING, {}, {"question": "a", "context": "b c " * 20, "parameters": {"top_k": 50, "max_answer_len": 30}}),
        (RANKING, {"task": "ranking"}, {"query": "a", "documents": ["b"] * 50}),
        (
            INFERENCE, {"task": "zero-shot-classification"},
            {"text": ["a"] * 5, "parameters": {"candidate_labels": ["x" * 400, "y"]}},
        ),
    ],
)  # fmt: skip
def test_every_task_has_a_limit(
    make_folder: MakeFolder, config: dict[str, Any], options: dict[str, str], body: object
) -> None:
    """The refusal names it."""
    folder = make_folder(**config)
    assert TextProcessor.from_folder(folder, options=options).prepare(body)
    with pytest.raises(InvalidInput, match="at most 1500 are written"):
        TextProcessor.from_folder(folder, options={**options, "max_answer_bytes": 1500}).prepare(body)


def test_a_target_is_one_token(fill_mask: Path) -> None:
    """Of a word that is none, the first one."""
    processor = TextProcessor.from_folder(fill_mask)
    found = processor.parse({"text": "[MASK]", "parameters": {"targets": ["good", "goods", "film"]}}).options["targets"]
    assert [VOCABULARY["good"], VOCABULARY["film"]] == found
