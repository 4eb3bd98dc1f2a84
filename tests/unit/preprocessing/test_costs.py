"""Requests are limited by the work they cause. No cost grows with the product of two sizes of a request."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer

from preprocessing.errors import InvalidInput
from preprocessing.processor import TextProcessor
from preprocessing.tokenizer import TextTokenizer
from preprocessing.types import Prepared, Window, Windows
from preprocessing.windows import Windower

from .conftest import CLASSIFIER, ENCODER, WORDS, MakeFolder, word_piece

MASK = len(WORDS)
VOCABULARY = {**{word: i for i, word in enumerate(WORDS)}, "[MASK]": MASK}
MANY = {**VOCABULARY, **{f"w{i}": MASK + 1 + i for i in range(8000)}}
FOR = {"model_type": "bert", "max_position_embeddings": 64, "type_vocab_size": 2, "vocab_size": len(WORDS)}
PAIRS = {"architectures": ["BertForSequenceClassification"]}
MODELS: dict[str, dict[str, Any]] = {
    "text-classification": CLASSIFIER,
    "sentence-embeddings": ENCODER,
    "zero-shot-classification": {
        **FOR, **PAIRS, "id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"}},
    "ranking": {**FOR, **PAIRS, "id2label": {"0": "LABEL_0"}},
    "question-answering": {**FOR, "architectures": ["BertForQuestionAnswering"]},
    "token-classification": {
        **FOR, "architectures": ["BertForTokenClassification"], "id2label": {"0": "O", "1": "B-X"}},
    "fill-mask": {**FOR, "architectures": ["BertForMaskedLM"], "vocab_size": len(MANY)},
}  # fmt: skip
"""A model for each task; that for fill-mask predicts one of 8,000 words."""
Load = Callable[..., TextProcessor]


@pytest.fixture
def load(make_folder: MakeFolder) -> Load:
    """Load the model of a task, with options."""

    def load(task: str, **options: Any) -> TextProcessor:
        files, tokenizer = {}, None
        if task == "fill-mask":
            files, tokenizer = {"tokenizer_config.json": {"mask_token": "[MASK]"}}, whole_texts(MANY)
        folder = make_folder(files, tokenizer=tokenizer, **MODELS[task])
        return TextProcessor.from_folder(folder, options={"task": task, **options})

    return load


def whole_texts(vocabulary: dict[str, int]) -> Tokenizer:
    """Return a BERT tokenizer of these words without truncation and padding."""
    tokenizer = word_piece(vocabulary)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.add_special_tokens(["[MASK]"])
    return tokenizer


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


OFFLOADED: list[tuple[str, object, object]] = [
    ("text-classification", {"text": "x" * 80}, {"text": "x" * 101}),
    ("text-classification", {"text": ["x" * 30] * 2}, {"text": ["x" * 30] * 4}),
    ("text-classification", {"text": ["x"] * 10}, {"text": ["x"] * 20}),
    ("text-classification", {"text": "x" * 40, "text_pair": "x" * 40}, {"text": "x" * 60, "text_pair": "x" * 60}),
    # a text counts for every row it becomes
    *(("zero-shot-classification", *({"text": "a " * 20, "parameters": {"candidate_labels": some}} for some in labels))
      for labels in [(["l"], ["l", "m"])]),
    ("ranking", {"query": "a " * 30, "documents": ["b"]}, {"query": "a " * 30, "documents": ["b", "c"]}),
    ("question-answering", {"question": ["a"], "context": "b " * 30}, {"question": ["a"] * 2, "context": "b " * 30}),
]  # fmt: skip
"""A task, a request that is tokenized on the loop, and one that is not."""


@pytest.mark.parametrize(("task", "small", "large"), OFFLOADED)
def test_the_offload_limit_counts_characters_and_rows_of_the_whole_request(
    load: Load, task: str, small: object, large: object
) -> None:
    """Beyond it, a request is tokenized in a thread."""
    processor = load(task, offload_chars=100)
    assert [False, True] == [processor.encodes_off_loop(processor.parse(body)) for body in (small, large)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_of_many_pairs_is_tokenized_once(side: Any) -> None:
    """The rows are the same as for each pair alone."""
    counting = Counting(whole_texts(VOCABULARY))
    counting.enable_truncation(16, strategy="longest_first", direction=side)
    tokenizer = TextTokenizer(counting, max_length=16, unknown_id=1, zero_types=True, truncation_side=side)  # type: ignore[arg-type]
    text = "good film hello " * 100
    pairs = [(text, "a " * i + "b") for i in range(20)] + [("hello", text)]
    rows = tokenizer.encode_batch(pairs)
    assert counting.chars < 2 * len(text)
    for pair, row in zip(pairs, rows, strict=True):
        (alone,) = tokenizer.encode_batch([pair])
        assert (alone.packed_ids, alone.truncated) == (row.packed_ids, row.truncated)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("keeps_all", [True, False])
def test_windows_of_a_repeated_text_are_those_of_the_text_alone(side: Any, keeps_all: bool) -> None:
    """All its rows share one encoding, which none of them changes."""

    def values(source: int, row: Window) -> tuple[object, ...]:
        arrays = [array.tolist() for array in (row.offsets, row.sequence, row.words)]
        return source, row.packed_ids, row.packed_type_ids, row.first, row.truncated, arrays

    windower = Windower(whole_texts(VOCABULARY), max_length=16, truncation_side=side, unknown_id=1)
    windows = Windows(2, cuts="first", keeps_all=keeps_all)
    text = "good film hello world a b c " * 5
    pairs = [(text, "a"), (text, "a b c"), ("bad", "a"), (text, "a")]
    alone = [values(i, row) for i, pair in enumerate(pairs) for row in windower.encode([pair], windows)]
    assert alone == [values(row.source, row) for row in windower.encode(pairs, windows)]


def test_a_text_of_several_rows_is_counted_once(load: Load) -> None:
    """Its tokens are those of all its rows; how many rows, if texts may be divided."""
    processor = load("token-classification")
    prepared = processor.prepare({"text": ["a b " * 80, "a"]})
    sizes = [row.n_tokens for row in prepared.rows]
    expected = {"tokens": [sum(sizes[:-1]), 3], "windows": [len(sizes) - 1, 1]}
    assert expected == processor.head.counted(prepared)
    assert len(sizes) > 2


@pytest.mark.parametrize(
    ("task", "body"),
    [
        ("question-answering", {"question": "a", "context": "b " * 6000, "parameters": {"doc_stride": 63}}),
        ("token-classification", {"text": "b " * 6000, "parameters": {"stride": 63}}),
    ],
)
def test_windows_with_a_tiny_step_are_refused_before_they_are_made(load: Load, task: str, body: object) -> None:
    """One window per token: some 6,000 of 64 tokens, with megabytes of arrays."""
    processor = load(task)
    request = processor.parse(body)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="at most 1024"):
            processor.encode(request)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_long_template_and_many_labels_do_not_multiply(load: Load) -> None:
    """200,000 characters × 200 labels would be 40 MB."""
    processor = load("zero-shot-classification")
    parameters = {"candidate_labels": [f"l{i}" for i in range(200)], "hypothesis_template": "x" * 200_000 + "{}"}
    with pytest.raises(InvalidInput, match="at most 1000000 are taken"):
        processor.parse({"text": "a", "parameters": parameters})
    assert processor.parse({"text": "a", "parameters": {**parameters, "candidate_labels": ["a", "b"]}})
    few = {"candidate_labels": [f"l{i}" for i in range(11)]}
    assert 1023 == len(processor.parse({"text": ["a"] * 93, "parameters": few}).texts)
    with pytest.raises(InvalidInput, match="1034 rows, at most 1024"):
        processor.parse({"text": ["a"] * 94, "parameters": few})


# --- the way out ------------------------------------------------------------------------------------------------------


def test_every_token_for_every_mask_is_refused_with_the_limit(load: Load) -> None:
    """The body has 1 KiB, the answer would have hundreds of megabytes. A target is one token, of a word that is none
    the first one.
    """
    processor = load("fill-mask")
    body = {"text": "[MASK] " * 60, "parameters": {"top_k": 30_522}}
    with pytest.raises(InvalidInput, match=r"answer .* at most 134217728 are written .*max_answer_bytes"):
        processor.prepare(body)
    assert isinstance(load("fill-mask", max_answer_bytes=1 << 30).prepare(body), Prepared)
    assert not processor.prepare({"text": "[MASK] a"}).finishes_off_loop
    assert processor.prepare({"text": "[MASK] a", "parameters": {"top_k": 5000}}).finishes_off_loop
    found = processor.parse({"text": "[MASK]", "parameters": {"targets": ["good", "goods", "film"]}}).options["targets"]
    assert [VOCABULARY["good"], VOCABULARY["film"]] == found


def test_sizes_of_answers_and_outputs_are_estimated_for_their_limits(load: Load) -> None:
    """An answer's not much too low. Outputs by the sizes of the model's first answer, of which token vectors take a
    number of bytes per token.
    """
    processor = load("fill-mask", max_output_bytes=2_000_000)
    prepared = processor.prepare({"text": "[MASK] a b [MASK] good film", "parameters": {"top_k": 500}})
    logits = np.random.default_rng(0).normal(size=(1, prepared.rows[0].n_tokens, len(MANY))).astype(np.float32)
    written = len(orjson.dumps(processor.finish({"logits": logits}, prepared)))
    estimate = processor.head.answer_bytes(prepared, logits.nbytes)
    assert written / 2 < estimate < written * 4
    n = 2_000_000 // (4 * 4 * len(MANY))
    assert processor.prepare({"text": ["[MASK] a"] * n})
    with pytest.raises(InvalidInput, match=r"outputs .* at most 2000000 are held .*max_output_bytes"):
        processor.prepare({"text": ["[MASK] a"] * (n + 1)})


ANSWERS: dict[str, object] = {
    "text-classification": {"text": ["a"] * 50},
    "sentence-embeddings": {"text": ["a"] * 50},
    "token-classification": {"text": ["a b c"] * 50},
    "question-answering": {
        "question": "a", "context": "b c " * 20, "parameters": {"top_k": 50, "max_answer_len": 30}},
    "ranking": {"query": "a", "documents": ["b"] * 50},
    "zero-shot-classification": {"text": ["a"] * 5, "parameters": {"candidate_labels": ["x" * 400, "y"]}},
}  # fmt: skip
"""Bodies whose answers take more than 1,500 bytes."""


@pytest.mark.parametrize("task", ANSWERS)
def test_every_task_has_a_limit(load: Load, task: str) -> None:
    """The refusal names it."""
    assert load(task).prepare(ANSWERS[task])
    with pytest.raises(InvalidInput, match="at most 1500 are written"):
        load(task, max_answer_bytes=1500).prepare(ANSWERS[task])
