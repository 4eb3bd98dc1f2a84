from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidOption, TokenizationFailed
from preprocessing.tokenizer import TextTokenizer

from .conftest import CLASSIFIER, WORDS, MakeFolder
from .tokenizer_families import gpt2


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


UNIGRAM = Tokenizer(models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("a", -1.0)], unk_id=1))


@pytest.mark.parametrize(("tokenizer", "named", "n_unknown"), [(UNIGRAM, None, 2), (gpt2(), "<|endoftext|>", 0)])
def test_unknown_tokens_are_counted_by_what_the_model_does(
    make_folder: MakeFolder, tokenizer: Tokenizer, named: str | None, n_unknown: int
) -> None:
    """The binding does not expose a Unigram model's unknown id; the file has it. GPT-2's files name its end-of-text
    token as unknown; it is an ordinary token.
    """
    folder = make_folder({"tokenizer_config.json": {"unk_token": named}}, tokenizer=tokenizer,
                         **{**CLASSIFIER, "vocab_size": 500})  # fmt: skip
    (row,) = load(folder).encode_batch(["a中a<|endoftext|>"])
    assert n_unknown == row.n_unknown


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


def test_folders_share_a_tokenizer_until_its_last_user_frees_it(make_folder: MakeFolder) -> None:
    """Hundreds of fine-tuned models would each hold the whole vocabulary. One of another length or side is another, as
    the library stores both in the object.
    """
    folders = [make_folder(**CLASSIFIER) for _ in range(2)]
    one, other = (load(folder, max_length=9) for folder in folders)
    assert one is other
    left = TextTokenizer.from_folder(folders[0], TaskConfig(task="t", max_length=9, truncation_side="left"))
    found = [each.encode_batch(["a b c " * 20])[0].ids.tolist() for each in (one, left, load(folders[0], max_length=8))]
    assert 3 == len({tuple(ids) for ids in found})
    held = weakref.ref(one)
    del one
    assert held() is not None
    del other
    assert held() is None


class PanicException(BaseException):
    """A Rust panic, which would end the worker."""


@pytest.mark.parametrize(
    ("error", "seen"), [(PanicException, TokenizationFailed), (KeyboardInterrupt, KeyboardInterrupt)]
)
def test_panic_of_the_library_becomes_an_error_and_an_interrupt_passes_through(error: Any, seen: Any) -> None:
    """As Ctrl-C must."""

    def encode_batch_fast(_: list[str]) -> None:
        raise error("index out of bounds")

    tokenizer: Any = SimpleNamespace(post_processor=None, encode_batch_fast=encode_batch_fast)
    with pytest.raises(seen, match="index out of bounds"):
        TextTokenizer(tokenizer, max_length=4, unknown_id=None, zero_types=True).encode_batch(["a"])
