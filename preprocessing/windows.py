"""Long texts as several rows: the same windows that the tokenizers library's overflow gives, without changing a
tokenizer's settings per request.

`Windower` holds two copies of the tokenizer: one without post-processor, which reads texts, and one without truncation,
whose post-processor puts special tokens around what is left. (Reading with the post-processor and applying it again
would trim byte-level offsets twice.) Nothing is changed after construction, so one instance serves all threads.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from preprocessing.config import Side
from preprocessing.errors import InvalidInput, TokenizationFailed
from preprocessing.types import Texts, Window, Windows, pack

_FIRST, _SECOND = 0, 1


class Windower:
    """Encodes texts or pairs into one or more windows each."""

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, truncation_side: Side, unknown_id: int | None) -> None:
        self._framed = copy.deepcopy(tokenizer)
        self._framed.no_truncation()
        self._framed.no_padding()
        bare = json.loads(self._framed.to_str())
        bare["post_processor"] = None
        self._bare = Tokenizer.from_str(json.dumps(bare))
        self._max_length = max_length
        self._side: Side = truncation_side
        self._unknown_id = unknown_id

    def room(self, max_length: int | None, *, pairs: bool) -> int:
        """How many tokens of the texts themselves a row has place for."""
        specials = int(self._framed.num_special_tokens_to_add(pairs))
        return min(max_length or self._max_length, self._max_length) - specials

    def encode(self, texts: Texts, windows: Windows) -> list[Window]:
        """All windows of all texts, in order; raises InvalidInput where a text that must stay whole leaves no room."""
        if not texts:
            return []
        pairs = isinstance(texts[0], tuple)
        room = self.room(windows.max_length, pairs=pairs)
        flat: list[str] = [part for text in texts for part in text] if pairs else list(texts)  # type: ignore[arg-type]
        try:
            encodings: list[Any] = self._bare.encode_batch(flat, add_special_tokens=False)
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise TokenizationFailed(f"The tokenizer failed: {error}") from error
            raise
        cut = _SECOND if pairs and windows.cuts == "second" else _FIRST
        found: list[Window] = []
        for source in range(len(texts)):
            own = encodings[2 * source : 2 * source + 2] if pairs else [encodings[source]]
            excess = sum(map(len, own)) - room
            firsts = [0]
            if excess > 0:
                left = len(own[cut]) - excess
                if left <= 0:
                    raise InvalidInput(
                        f"{windows.whole} fills the {room} tokens that the model has room for, which leaves none for "
                        "the rest",
                        field=windows.whole,
                        hint="shorten it",
                    )
                # The library wants less overlap than a window is long.
                stride = min(windows.stride, left - 1)
                firsts = _firsts(len(own[cut]), left, stride, self._side)
                own[cut].truncate(left, stride, self._side)
            whole = self._framed.post_process(own[0], own[1] if pairs else None, True)
            if not windows.keeps_all:
                found.append(self._window(whole, source, firsts[0], truncated=excess > 0))
                continue
            parts = (whole, *whole.overflowing)
            types = _types_of(whole) if pairs and len(parts) > 1 else None
            found += [
                self._window(part, source, first, truncated=False, types=types)
                for part, first in zip(parts, firsts, strict=True)
            ]
        return found

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
    """Type ids by where a token comes from: a pair's texts, or (in order) the post-processor."""

    by_sequence: Mapping[int, int]
    specials: Sequence[int]

    def of(self, encoding: Any) -> list[int]:
        specials = iter(self.specials)
        return [next(specials) if s is None else self.by_sequence[s] for s in encoding.sequence_ids]


def _types_of(whole: Any) -> _Types:
    """Those of a pair's first window, which are right. The texts were read apart, so the second one's tokens do not
    have its type by themselves, and in further windows the library only puts types on what it adds.
    """
    placed = list(zip(whole.sequence_ids, whole.type_ids, strict=True))
    return _Types({s: t for s, t in placed if s is not None}, [t for s, t in placed if s is None])


def _firsts(size: int, width: int, stride: int, side: Side) -> list[int]:
    """Where windows of `width` tokens begin in a text of `size`, in the library's order: from the side that is kept."""
    step = width - stride
    count = 1 + -(-(size - width) // step)
    if side == "right":
        return [i * step for i in range(count)]
    return [max(size - width - i * step, 0) for i in range(count)]
