from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidOption, TokenizationFailed
from preprocessing.tokenizer import TextTokenizer

from .conftest import CLASSIFIER, WORDS, MakeFolder

TEXT = st.text(st.sampled_from([*"ab cs!\u0301\U0001f600\u05d0中\x00"]), max_size=40)


def load(folder: Path, **options: object) -> TextTokenizer:
    """Load a folder's tokenizer with the given endpoint options."""
    return TextTokenizer.from_folder(folder, TaskConfig.from_folder(folder, options))


@pytest.fixture
def tokenizer(classifier: Path) -> TextTokenizer:
    """The tokenizer of thirteen words, with at most 16 tokens."""
    return load(classifier)


def words(ids: np.ndarray) -> str:
    """Return the tokens of ids."""
    return " ".join(WORDS[i] for i in ids)


def test_texts_become_ids_with_special_tokens(tokenizer: TextTokenizer) -> None:
    """In order, as int64, without padding. Settings stored in tokenizer.json have no effect."""
    first, second = tokenizer.encode_batch(["Good films", "a b c a b c"])
    assert ["[CLS] good film ##s [SEP]", "[CLS] a b c a b c [SEP]"] == [words(first.ids), words(second.ids)]
    assert (np.int64, 5) == (first.ids.dtype, first.n_tokens)


def test_unknown_tokens_are_counted(tokenizer: TextTokenizer) -> None:
    """Their share shows drift in the vocabulary."""
    assert [0, 2, 1] == [row.n_unknown for row in tokenizer.encode_batch(["good", "xyz good 中", ("a", "zzz")])]


def test_unigram_counts_unknown_tokens(make_folder: MakeFolder) -> None:
    """The binding does not expose a Unigram model's unknown id; the file has it."""
    model = models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("a", -1.0), ("b", -1.0)], unk_id=1)
    row = load(make_folder(tokenizer=Tokenizer(model), **{**CLASSIFIER, "vocab_size": 4})).encode_batch(["a中b"])[0]
    assert ([2, 1, 3], 1) == (row.ids.tolist(), row.n_unknown)


def test_byte_level_models_have_no_unknown_token(make_folder: MakeFolder) -> None:
    """GPT-2's files name its end-of-text token as unknown; it is an ordinary token."""
    alphabet = {char: i for i, char in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"])}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    files = {"tokenizer_config.json": {"unk_token": "<|endoftext|>"}}
    folder = make_folder(files, tokenizer=tokenizer, **{**CLASSIFIER, "vocab_size": 300})
    row = load(folder).encode_batch(["<|endoftext|>中"])[0]
    assert (4, 0) == (row.n_tokens, row.n_unknown)


def test_vocabulary_size_is_one_more_than_the_largest_id(make_folder: MakeFolder) -> None:
    """With added tokens and gaps in the numbering."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    assert 8 == load(make_folder(tokenizer=tokenizer, **CLASSIFIER)).vocab_size


@pytest.mark.parametrize("max_length", [1, 2, 3])
def test_length_without_room_for_text_is_refused(classifier: Path, max_length: int) -> None:
    """A pair needs three special tokens, and a row needs more than those."""
    with pytest.raises(InvalidOption, match="at least 4"):
        load(classifier, max_length=max_length)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": "1.0", "model": {"type": "Nothing"}}'])
def test_damaged_tokenizer_is_refused(classifier: Path, content: str) -> None:
    """With one clear error for any content; one that is missing with how to create it."""
    assert load(classifier)
    (classifier / "tokenizer.json").write_text(content)  # the content decides what is loaded, not the path
    with pytest.raises(InvalidBundle, match=r"tokenizer\.json"):
        load(classifier)
    (classifier / "tokenizer.json").unlink()
    with pytest.raises(InvalidBundle, match=r"no tokenizer\.json.*save_pretrained"):
        load(classifier)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(TEXT, min_size=1, max_size=6))
def test_a_text_has_the_same_ids_alone_and_in_a_batch(tokenizer: TextTokenizer, texts: list[str]) -> None:
    """Rows never influence each other."""
    together = tokenizer.encode_batch(texts)
    alone = [tokenizer.encode_batch([text])[0] for text in texts]
    assert [row.ids.tolist() for row in alone] == [row.ids.tolist() for row in together]


def test_folders_with_the_same_tokenizer_share_it_in_memory(make_folder: MakeFolder) -> None:
    """Hundreds of fine-tuned models would each hold the whole vocabulary, and learn the same words."""
    assert load(make_folder(**CLASSIFIER)) is load(make_folder(**CLASSIFIER))


@pytest.mark.parametrize("options", [{"max_length": 8}, {"truncation_side": "left"}])
def test_another_length_or_side_is_another_tokenizer(classifier: Path, options: dict[str, object]) -> None:
    """The library stores both in the object."""
    one, other = load(classifier), TextTokenizer.from_folder(
        classifier, replace(TaskConfig.from_folder(classifier), **options)  # type: ignore[arg-type]
    )  # fmt: skip
    assert one._tokenizer is not other._tokenizer
    text = "a b c " * 20
    assert one.encode_batch([text])[0].ids.tolist() != other.encode_batch([text])[0].ids.tolist()


def test_a_shared_tokenizer_is_freed_with_its_last_user(make_folder: MakeFolder) -> None:
    """A retired version frees its memory."""
    one, other = load(make_folder(**CLASSIFIER), max_length=9), load(make_folder(**CLASSIFIER), max_length=9)
    held = weakref.ref(one)
    del one
    assert held() is not None
    del other
    assert held() is None


class Raising:
    """A tokenizer of which every call raises."""

    post_processor = None

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def encode_batch_fast(self, texts: list[str]) -> list[object]:
        raise self._error


def test_panic_of_the_library_becomes_an_error_and_an_interrupt_passes_through() -> None:
    """A Rust panic is a BaseException, which would end the worker, as Ctrl-C must."""

    class PanicException(BaseException):
        pass

    for error, expected in (
        (PanicException("index out of bounds"), pytest.raises(TokenizationFailed, match="index out of bounds")),
        (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
    ):
        with expected:
            TextTokenizer(Raising(error), max_length=4, unknown_id=None, zero_types=True).encode_batch(["a"])
