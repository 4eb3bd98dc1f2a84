"""Divides long texts into several rows: the windows of the tokenizers library's overflow, without changing settings.

`Windower` has two copies of the tokenizer: one without post-processor, which encodes texts, and one without truncation,
whose post-processor adds special tokens to the pieces. (Applying the post-processor twice would trim byte-level offsets
twice.) Nothing changes after construction, so one instance serves all threads.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from preprocessing.config import Side
from preprocessing.errors import InvalidInput, TokenizationFailed
from preprocessing.types import Texts, Window, Windows, pack

_FIRST, _SECOND = 0, 1


def copied(tokenizer: Tokenizer) -> Tokenizer:
    """Return an independent copy, with the setting that the library's own copy loses."""
    made = copy.deepcopy(tokenizer)
    made.encode_special_tokens = tokenizer.encode_special_tokens
    return made


class Windower:
    """Encodes texts or pairs into one or more windows each."""

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, truncation_side: Side, unknown_id: int | None) -> None:
        self._framed = copied(tokenizer)
        self._framed.no_truncation()
        self._framed.no_padding()
        self._bare = copied(self._framed)
        self._bare.post_processor = None
        self._max_length = max_length
        self._side: Side = truncation_side
        self._unknown_id = unknown_id

    def room(self, max_length: int | None, *, pairs: bool) -> int:
        """Return the number of tokens that a row has for the texts themselves."""
        specials = int(self._framed.num_special_tokens_to_add(pairs))
        return min(max_length or self._max_length, self._max_length) - specials

    def encode(
        self, texts: Texts, windows: Windows, *, refuse_many: Callable[[int], None] = lambda _: None
    ) -> list[Window]:
        """Return all windows of all texts, in order. Raises InvalidInput if the undivided text leaves no room.

        `refuse_many` is called with the number of rows before any is made: with a small step, a text has as many rows
        as tokens.
        """
        if not texts:
            return []
        pairs = isinstance(texts[0], tuple)
        room = self.room(windows.max_length, pairs=pairs)
        parts_of: list[tuple[str, ...]] = list(texts) if pairs else [(text,) for text in texts]  # type: ignore[arg-type, misc]
        encodings = self._encode_each([part for parts in parts_of for part in parts])
        cut = _SECOND if pairs and windows.cuts == "second" else _FIRST
        plans: list[tuple[int, int]] = []  # per text: room for tokens of the divided text, and the overlap
        rows = 0
        for parts in parts_of:
            size = len(encodings[parts[cut]])
            left = size - (sum(len(encodings[part]) for part in parts) - room)
            if left <= 0 and left < size:
                raise InvalidInput(
                    f"{windows.whole} fills the {room} tokens that the model has room for, which leaves none for "
                    "the other text",
                    field=windows.whole,
                    hint="shorten it",
                )
            # The library requires an overlap smaller than the window.
            stride = min(windows.stride, left - 1)
            rows += 1 if left >= size or not windows.keeps_all else len(_firsts(size, left, stride, self._side))
            plans.append((left, stride))
        refuse_many(rows)
        found: list[Window] = []
        kept: dict[str, Any] = {}
        for source, (parts, (left, stride)) in enumerate(zip(parts_of, plans, strict=True)):
            own = [encodings[part] for part in parts]
            size = len(own[cut])
            firsts = [0]
            if left < size:
                firsts = _firsts(size, left, stride, self._side)
                text = parts[cut]
                if not windows.keeps_all and text not in kept:
                    # A text that occurs in many rows is cut to a row's room before it is copied.
                    kept[text] = _cut(own[cut], room, self._side)
                own[cut] = Encoding.merge([kept.get(text, own[cut])], False)  # a copy: truncation changes it
                own[cut].truncate(left, stride, self._side)
            whole = self._framed.post_process(own[0], own[1] if pairs else None, True)
            if not windows.keeps_all:
                found.append(self._window(whole, source, firsts[0], truncated=left < size))
                continue
            pieces = (whole, *whole.overflowing)
            types = _types_of(whole) if pairs and len(pieces) > 1 else None
            found += [
                self._window(part, source, first, truncated=False, types=types)
                for part, first in zip(pieces, firsts, strict=True)
            ]
        return found

    def _encode_each(self, texts: Sequence[str]) -> dict[str, Any]:
        """Encode each distinct text once."""
        distinct = list(dict.fromkeys(texts))
        try:
            return dict(zip(distinct, self._bare.encode_batch(distinct, add_special_tokens=False), strict=True))
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise TokenizationFailed(f"The tokenizer failed: {error}") from error
            raise

    def _window(
        self, encoding: Any, source: int, first: int, *, truncated: bool, types: _Types | None = None
    ) -> Window:
        ids: list[int] = encoding.ids
        own: Sequence[int] = encoding.type_ids if types is None else types.of(encoding)
        return Window(
            pack(ids),
            pack(own) if any(own) else None,
            0 if self._unknown_id is None else ids.count(self._unknown_id),
            truncated,
            np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2),
            source=source,
            first=first,
            special=np.array(encoding.special_tokens_mask, dtype=np.bool_),
            sequence=np.array([-1 if s is None else s for s in encoding.sequence_ids], dtype=np.int8),
            words=np.array([-1 if w is None else w for w in encoding.word_ids], dtype=np.int32),
        )


@dataclass(frozen=True, slots=True)
class _Types:
    """Type ids by the origin of a token: the texts of a pair, or (in order) the post-processor."""

    by_sequence: Mapping[int, int]
    specials: Sequence[int]

    def of(self, encoding: Any) -> list[int]:
        specials = iter(self.specials)
        return [next(specials) if s is None else self.by_sequence[s] for s in encoding.sequence_ids]


def _types_of(whole: Any) -> _Types:
    """Return the type ids of a pair's first window, which are right.

    The texts were encoded separately, so the second text's tokens do not have its type; and in further windows the
    library sets types only on the tokens that it adds.
    """
    placed = list(zip(whole.sequence_ids, whole.type_ids, strict=True))
    return _Types({s: t for s, t in placed if s is not None}, [t for s, t in placed if s is None])


def _cut(encoding: Any, size: int, side: Side) -> Any:
    """Return the first tokens of an encoding (the last ones if cut on the left), without its overflow."""
    if len(encoding) <= size:
        return encoding
    state = json.loads(encoding.__getstate__())
    part = slice(None, size) if side == "right" else slice(-size, None)
    for name in ("ids", "type_ids", "tokens", "words", "offsets", "special_tokens_mask", "attention_mask"):
        state[name] = state[name][part]
    shortened = Encoding()
    shortened.__setstate__(json.dumps({**state, "overflowing": [], "sequence_ranges": {}}).encode())
    return shortened


def _firsts(size: int, width: int, stride: int, side: Side) -> list[int]:
    """Return where windows of `width` tokens begin in a text of `size`, in the library's order (kept side first)."""
    step = width - stride
    count = 1 + -(-(size - width) // step)
    if side == "right":
        return [i * step for i in range(count)]
    return [max(size - width - i * step, 0) for i in range(count)]
