"""Reads `tokenizer.json` and refuses what could take a worker's memory: normalizers that lengthen texts without limit.

The library normalizes added tokens while it loads a file, so the file is examined before. A `Replace` step may put any
text in place of each character, and several steps multiply. Others, such as Unicode's compatibility forms, are known to
make a few characters of one; for those, `tokenizer` bounds the text of each request. Called by `tokenizer` at load.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from preprocessing.errors import InvalidBundle
from preprocessing.model_files import MAX_TOKENIZER_BYTES, read_limited

_MAX_GROWTH: Final = 256
"""Most characters that steps with a text of their own may make of one. Those of known tokenizers stay below 20."""
_MAX_TOKEN: Final = 4096
"""Longest token, in characters."""
_MAX_STEPS: Final = 100
"""Most steps of a component."""
_MAX_WORD: Final = 1000
"""Longest word that WordPiece may spell; the time is the cube of it."""

_GROWTH: Final[Mapping[str, int]] = {
    "NFC": 3,
    "NFD": 4,
    "Lowercase": 3,
    "BertNormalizer": 4,
    "ByteLevel": 4,
    **dict.fromkeys(("Nmt", "Strip", "StripAccents", "Replace", "Prepend", "Precompiled"), 1),
}
"""Most characters that the other steps of a normalizer make of one."""
_COMPATIBILITY: Final = 18
"""The same for Unicode's compatibility forms, and for steps that are not known."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """What was found in a `tokenizer.json`."""

    growth: int
    """Most characters that the normalizer makes of one."""
    unknown_id: int | None
    """The unknown token of a Unigram model, which the library does not tell."""
    patterns: frozenset[str]
    """The regular expressions of the normalizer and the pre-tokenizer."""


def read(path: Path) -> bytes:
    """Return the content of a `tokenizer.json`. Raises InvalidBundle."""
    try:
        return read_limited(path, MAX_TOKENIZER_BYTES)
    except FileNotFoundError as error:
        raise InvalidBundle(
            "The model folder has no tokenizer.json",
            hint="AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes it",
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidBundle(
            f"tokenizer.json cannot be read: {error}",
            hint="use a smaller vocabulary, or serve the model through a Preprocess class that tokenizes itself",
        ) from error


def examine(content: bytes) -> TokenizerFile:
    """Examine the content of a `tokenizer.json`. Raises InvalidBundle."""
    try:
        # not the standard library's parser, which takes three times as long under the interpreter's lock
        found = orjson.loads(content)
    except ValueError as error:
        raise InvalidBundle(f"tokenizer.json cannot be loaded: {error}", hint="save the tokenizer again") from error
    if not isinstance(found, dict):
        raise InvalidBundle("tokenizer.json must be a JSON object", hint="save the tokenizer again")
    model = found.get("model")
    model = model if isinstance(model, dict) else {}
    steps = {name: _steps(found.get(name)) for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    for name, own in steps.items():
        if len(own) > _MAX_STEPS:
            raise InvalidBundle(
                f"tokenizer.json: its {name} has {len(own)} steps, at most {_MAX_STEPS} are run",
                hint="save the tokenizer with fewer",
            )
    for name in ("normalizer", "decoder"):
        growth = max(math.prod(map(_replaced, steps[name])), *map(_precompiled, steps[name]), 1)
        if growth > _MAX_GROWTH:
            raise InvalidBundle(
                f"tokenizer.json: its {name} makes up to {growth} characters of one, at most {_MAX_GROWTH} are allowed",
                hint="shorten the texts that it inserts (content of Replace, prepend, precompiled_charsmap)",
            )
    _refuse_long_tokens(found, model)
    unknown = model.get("unk_id")
    return TokenizerFile(
        math.prod(_growth(step) for step in steps["normalizer"]),
        unknown if isinstance(unknown, int) else None,
        frozenset(_patterns([*steps["normalizer"], *steps["pre_tokenizer"]])),
    )


def _steps(component: Any) -> list[Mapping[str, Any]]:
    """Return the steps of a component, with those of nested sequences, in any order."""
    found: list[Mapping[str, Any]] = []
    left = [component]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            found.append(one)
            # The library also accepts a sequence that does not name its type.
            left += [part for parts in one.values() if isinstance(parts, list) for part in parts]
    return found


def _growth(step: Mapping[str, Any]) -> int:
    """Return the most characters that a step of a normalizer makes of one."""
    is_sequence = any(isinstance(value, list) for value in step.values())
    others = 1 if is_sequence else _GROWTH.get(str(step.get("type")), _COMPATIBILITY)
    return _replaced(step) * _precompiled(step) * others


def _replaced(step: Mapping[str, Any]) -> int:
    """Return the most characters that a step with a text of its own (`Replace`, `Prepend`) makes of one."""
    if "prepend" in step:
        return max(1, len(str(step["prepend"])))
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or "content" not in step:
        return 1
    content, fixed = len(str(step["content"])), pattern.get("String")
    # An expression may match nothing, between any two characters.
    return max(1, -(-content // len(fixed))) if fixed and isinstance(fixed, str) else 1 + content


def _precompiled(step: Mapping[str, Any]) -> int:
    """Return the length of the longest text in the table of a SentencePiece normalizer.

    The table is the size of a search tree, the tree, and the texts with a zero after each.
    """
    try:
        table = base64.b64decode(str(step.get("precompiled_charsmap") or ""))
    except (binascii.Error, ValueError):
        return 1  # the library refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *(len(text.decode("utf-8", "replace")) for text in texts.split(b"\0")))


def _patterns(steps: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    for step in steps:
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            yield pattern["Regex"]


def _refuse_long_tokens(found: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    vocabulary = model.get("vocab")
    added = found.get("added_tokens")
    longest = 0
    if isinstance(vocabulary, dict):
        longest = max(map(len, vocabulary), default=0)
    elif isinstance(vocabulary, list):  # Unigram: pieces with their scores
        longest = max((len(str(piece[0])) for piece in vocabulary if isinstance(piece, list) and piece), default=0)
    for token in added if isinstance(added, list) else ():
        longest = max(longest, len(str(token.get("content", ""))) if isinstance(token, dict) else 0)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        longest = max(longest, len(str(model.get(name) or "")))
    if longest > _MAX_TOKEN:
        raise InvalidBundle(
            f"tokenizer.json has a token of {longest} characters, at most {_MAX_TOKEN} are allowed",
            hint="save the tokenizer without it",
        )
    word = model.get("max_input_chars_per_word")
    if isinstance(word, int) and word > _MAX_WORD:
        raise InvalidBundle(
            f"tokenizer.json: max_input_chars_per_word is {word}, at most {_MAX_WORD} is allowed",
            hint="set it to 100, the default: longer words become the unknown token",
        )
