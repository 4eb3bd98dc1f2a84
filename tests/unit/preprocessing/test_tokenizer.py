from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidOption, TokenizationFailed
from preprocessing.tokenizer import TextTokenizer

from .conftest import CLASSIFIER, WORDS, MakeFolder


def load(folder: Path, **options: object) -> TextTokenizer:
    """Load a folder's tokenizer with the given endpoint options."""
    return TextTokenizer.from_folder(folder, TaskConfig.from_folder(folder, options))


def test_texts_become_ids_with_special_tokens(classifier: Path, make_folder: MakeFolder) -> None:
    """In order, as int64, without padding. Settings stored in tokenizer.json have no effect.

    Unknown tokens are counted: their share shows drift. The largest id counts for the size of the vocabulary.
    """
    texts = {"Good films": "[CLS] good film ##s [SEP]", "xyz b 中": "[CLS] [UNK] b [UNK] [SEP]"}
    rows = load(classifier).encode_batch(list(texts))
    assert list(texts.values()) == [" ".join(WORDS[i] for i in row.ids) for row in rows]
    assert [(np.int64, 5, 0), (np.int64, 5, 2)] == [(row.ids.dtype, row.n_tokens, row.n_unknown) for row in rows]
    gap = Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    assert 8 == load(make_folder(tokenizer=gap, **CLASSIFIER)).vocab_size


def byte_level() -> Tokenizer:
    """GPT-2's, whose files name its end-of-text token as unknown; it is an ordinary token."""
    alphabet = {char: i for i, char in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"])}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "text", "n_tokens", "n_unknown"),
    [
        # The binding does not expose a Unigram model's unknown id; the file has it.
        (Tokenizer(models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("a", -1.0)], unk_id=1)), "a中a", 3, 1),
        (byte_level(), "<|endoftext|>中", 4, 0),
    ],
)
def test_unknown_tokens_are_counted_by_what_the_model_does(
    make_folder: MakeFolder, tokenizer: Tokenizer, text: str, n_tokens: int, n_unknown: int
) -> None:
    """Not by what the settings say."""
    files = {"tokenizer_config.json": {"unk_token": "<|endoftext|>"}} if n_tokens == 4 else {}
    folder = make_folder(files, tokenizer=tokenizer, **{**CLASSIFIER, "vocab_size": 300})
    (row,) = load(folder).encode_batch([text])
    assert (n_tokens, n_unknown) == (row.n_tokens, row.n_unknown)


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
    """Folders with the same one share it: hundreds of fine-tuned models would each hold the whole vocabulary."""
    one, other = load(make_folder(**CLASSIFIER), max_length=9), load(make_folder(**CLASSIFIER), max_length=9)
    assert one is other
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
