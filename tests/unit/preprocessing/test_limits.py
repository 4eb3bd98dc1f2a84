"""A model's files cannot take a worker's time or memory: what is too large is refused before it is parsed or used."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from preprocessing.errors import InvalidBundle, InvalidInput
from preprocessing.model_files import MAX_BYTES, MAX_TOKENIZER_BYTES
from preprocessing.processor import TextProcessor

from .conftest import CLASSIFIER, VOCABULARY, MakeFolder, word_piece


def normalizing(*steps: normalizers.Normalizer) -> Tokenizer:
    """Return the tokenizer of thirteen words with another normalizer."""
    return with_part(normalizer=normalizers.Sequence(list(steps)))


def with_part(**parts: Any) -> Tokenizer:
    """Return the tokenizer of thirteen words with other parts."""
    tokenizer = word_piece()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


READ = "config.json", "tokenizer_config.json", "special_tokens_map.json", "modules.json", "sentence_bert_config.json"


@pytest.mark.parametrize("name", [*READ, "tokenizer.json"])
def test_a_huge_json_file_is_refused_before_it_is_parsed(make_folder: MakeFolder, name: str) -> None:
    """The message names the file, its size and the limit; no more than the limit is read into memory."""
    folder = make_folder()
    said = "512 MiB, at most 8 MiB" if name in READ else "65 MiB, at most 64 MiB"
    with (folder / name).open("ab") as file:
        file.truncate(64 * MAX_BYTES if name in READ else MAX_TOKENIZER_BYTES + 1)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBundle, match=rf"{name} .*has {said} are read"):
            TextProcessor.from_folder(folder)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
    finally:
        tracemalloc.stop()


def huge(kind: str) -> Tokenizer:
    """Return a tokenizer with a token of 5,000 characters."""
    token = "x" * 5000
    if kind == "Unigram":
        return Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), (token, -1.0)], 0, False))
    tokenizer = word_piece({**VOCABULARY, token: 13} if kind == "WordPiece" else VOCABULARY)
    if kind == "added":
        tokenizer.add_tokens([token])
    return tokenizer


TOO_LARGE: list[tuple[Callable[[], Tokenizer], dict[str, Any], str]] = [
    (lambda: normalizing(normalizers.Replace("a", "b" * 300_000)), {}, "normalizer makes up to 300000 characters"),
    (lambda: normalizing(normalizers.Replace(Regex("x*"), "b" * 300)), {}, "normalizer makes up to 301 characters"),
    (lambda: normalizing(*(normalizers.Replace(c, d * 20) for c, d in ("ab", "bc", "cd"))), {},
     "normalizer makes up to 8000 characters"),
    (lambda: normalizing(normalizers.Sequence([normalizers.Replace("a", "b" * 999)])), {},
     "normalizer makes up to 999 characters"),
    (lambda: normalizing(normalizers.Prepend("b" * 999)), {}, "normalizer makes up to 999 characters"),
    (lambda: with_part(decoder=decoders.Replace("a", "b" * 300_000)), {}, "decoder makes up to 300000 characters"),
    *((lambda kind=kind: huge(kind), {"vocab_size": None}, "has a token of 5000 characters, at most 4096")  # type: ignore[misc]
      for kind in ("WordPiece", "Unigram", "added")),
    *((word_piece, labels, "labels, at most 50000") for labels in (
        {"id2label": {str(i): f"L{i}" for i in range(50_001)}}, {"id2label": None, "num_labels": 50_001},
        {"id2label": None, "num_labels": 2_000_000_000},
    )),
    (word_piece, {"vocab_size": 12}, r"ids up to 12.*vocab_size is 12"),  # outside the embedding table
]  # fmt: skip
"""A tokenizer, changes of config.json, and what is said: each id of a request could be the huge token, answers are
decoded, too, and labels are counted before a name is made for each.
"""


@pytest.mark.parametrize(("make", "config", "said"), TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_what_lengthens_texts_or_is_too_large_is_refused(
    make_folder: MakeFolder, make: Callable[[], Tokenizer], config: dict[str, Any], said: str
) -> None:
    """At load, before any text is normalized, with what it can make of one character."""
    with pytest.raises(InvalidBundle, match=said):
        TextProcessor.from_folder(make_folder(tokenizer=make(), **{**CLASSIFIER, **config}))


def test_added_tokens_are_not_normalized_by_a_refused_normalizer(make_folder: MakeFolder) -> None:
    """The library normalizes them while it loads the file."""
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 300_000}
    token = {"id": 13, "content": "a" * 4000, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": True, "special": False}  # fmt: skip
    content = json.dumps(json.loads(word_piece().to_str()) | {"normalizer": replace, "added_tokens": [token]})
    with pytest.raises(InvalidBundle, match=r"its normalizer makes up to 300000 characters of one"):
        TextProcessor.from_folder(make_folder({"tokenizer.json": content}))


def test_texts_that_grow_too_long_when_normalized_are_refused(make_folder: MakeFolder) -> None:
    """Before they are normalized as a whole: Unicode's compatibility forms make up to 18 characters of one."""
    processor = TextProcessor.from_folder(
        make_folder(tokenizer=normalizing(normalizers.NFKC())), options={"max_chars": 1000}
    )
    assert processor.prepare({"text": "ﷺ" * 55}).n_tokens
    assert processor.prepare({"text": "ab " * 333}).n_tokens
    for body in ({"text": "ﷺ" * 56}, {"text": ["ﷺ " * 30, "a", "ﷺ" * 30]}, {"text": "a", "text_pair": "ﷺ" * 56}):
        with pytest.raises(InvalidInput, match="more than 1000 characters once the model's normalizer") as raised:
            processor.prepare(body)
        assert "text" == raised.value.field
    # A text of Hangul becomes three times as long, and many ordinary texts may be longer together.
    assert processor.prepare({"text": "각" * 900}).n_tokens
    assert processor.prepare({"text": ["good film " * 90] * 20}).n_tokens


@pytest.mark.parametrize(
    ("part", "is_slow"),
    [
        ({}, False),
        ({"normalizer": normalizers.Replace(Regex(" {2,}"), " ")}, False),
        ({"pre_tokenizer": pre_tokenizers.Split(Regex("(a+)+$"), "isolated")}, True),
        ({"normalizer": normalizers.Replace(Regex("(a|aa)+$"), " ")}, True),
    ],
)
def test_unknown_patterns_are_never_run_on_the_event_loop(
    make_folder: MakeFolder, part: dict[str, Any], is_slow: bool
) -> None:
    """They may backtrack for half a second per row, and even a short text would stop all other requests."""
    processor = TextProcessor.from_folder(make_folder(tokenizer=with_part(**part)))
    assert is_slow == processor.encodes_off_loop(processor.parse({"text": "a"}))
