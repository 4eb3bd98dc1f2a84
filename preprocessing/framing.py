"""Builds rows from token ids: applies the truncation and the special tokens of a tokenizer's post-processor.

`words.cache` builds its rows this way, and `tokenizer` builds rows of pairs this way: the library itself keeps every
combination of the pieces that it cuts from a pair, which is quadratic in their length (two texts of 20 kB: 700 MB at 64
tokens). Ids are packed as in `types.Encoded`; sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from preprocessing.config import Side
from preprocessing.descriptions import NotUnderstood, describe, flatten
from preprocessing.types import Encoded, pack

_FEW_BYTES: Final = 256 * 8


@dataclass(frozen=True, slots=True)
class Template:
    """What a post-processor adds to the tokens of one text or of a pair.

    Tokens (id, type) before, between and after the texts, and the type of each text's own tokens.
    """

    before: tuple[tuple[int, int], ...]
    between: tuple[tuple[int, int], ...]
    after: tuple[tuple[int, int], ...]
    types: tuple[int, ...]


class Framing:
    """A tokenizer's truncation (longest first) and post-processor, applied to token ids."""

    def __init__(
        self, tokenizer: Tokenizer, *, max_length: int, truncation_side: Side = "right", unknown_id: int | None = None
    ) -> None:
        """Raises NotUnderstood if the post-processor is not known."""
        single, pair = templates(tokenizer)
        self._single = Frame(single)
        self._pair = None if pair is None else Frame(pair)
        self._max_size = max_length * 8
        if max(frame.size for frame in (self._single, self._pair) if frame is not None) >= self._max_size:
            raise NotUnderstood("special tokens leave no room for text")
        self._keeps_end = truncation_side == "left"
        self._unknown_id = -1 if unknown_id is None else unknown_id
        self._unknown = None if unknown_id is None else pack([unknown_id])

    @property
    def knows_pairs(self) -> bool:
        """Whether `pair_row` may be called."""
        return self._pair is not None

    def row(self, ids: bytes) -> Encoded:
        """Return the row of a text with these tokens."""
        frame = self._single
        room = self._max_size - frame.size
        truncated = len(ids) > room
        if truncated:
            ids = self._cut(ids, room)
        types = None if frame.zero_types else frame.pack_types(len(ids))
        ids = frame.before + ids + frame.after
        unknown = self._unknown
        return Encoded(ids, types, 0 if unknown is None or unknown not in ids else self._count_unknown(ids), truncated)

    def pair_row(self, first: bytes, second: bytes, sizes: tuple[int, int] | None = None) -> Encoded:
        """Return the row of a pair.

        `sizes` are the texts' full sizes if `first` and `second` are already cut to the longest row.
        """
        frame = self._pair
        if frame is None:
            raise NotUnderstood("the post-processor builds pairs in an unknown way")
        n, m = (len(first), len(second)) if sizes is None else sizes
        room = self._max_size - frame.size
        truncated = n + m > room
        if truncated:
            n, m = _share(n, m, room)
            first, second = self._cut(first, n), self._cut(second, m)
        ids = b"".join((frame.before, first, frame.between, second, frame.after))
        unknown = self._unknown
        n_unknown = 0 if unknown is None or unknown not in ids else self._count_unknown(ids)
        return Encoded(ids, frame.pack_types(n, m), n_unknown, truncated)

    def _cut(self, ids: bytes, size: int) -> bytes:
        return ids[max(len(ids) - size, 0) :] if self._keeps_end else ids[:size]

    def _count_unknown(self, ids: bytes) -> int:
        if len(ids) <= _FEW_BYTES:  # numpy takes ten times as long for a short text
            return memoryview(ids).cast("q").tolist().count(self._unknown_id)
        return int(np.count_nonzero(np.frombuffer(ids, np.int64) == self._unknown_id))


class Frame:
    """A template in packed form."""

    __slots__ = ("after", "before", "between", "size", "text_types", "types", "zero_types")

    def __init__(self, template: Template) -> None:
        groups = template.before, template.between, template.after
        self.before, self.between, self.after = (pack(id_ for id_, _ in group) for group in groups)
        self.types = [pack(type_ for _, type_ in group) for group in groups]
        self.text_types = [pack([type_]) for type_ in template.types]
        self.zero_types = not any(b"".join((*self.types, *self.text_types)))
        self.size = sum(map(len, self.types))

    def pack_types(self, *sizes: int) -> bytes:
        """Return the packed types of a row whose texts have ids of these sizes."""
        before, between, after = self.types
        texts = [type_ * (size >> 3) for type_, size in zip(self.text_types, sizes, strict=True)]
        return before + between.join(texts) + after


def _share(n: int, m: int, room: int) -> tuple[int, int]:
    """Return how much of two texts that do not fit is kept, as in the library's `truncate_encodings`."""
    shorter = min(n, m)
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = (room >> 4) << 3
        longer = room - shorter
    return (shorter, longer) if n <= m else (longer, shorter)


def templates(tokenizer: Tokenizer) -> tuple[Template, Template | None]:
    """Return the template for one text and the one for a pair, which is None if unknown. Raises NotUnderstood."""
    description = describe(tokenizer.post_processor)
    steps = [step for step in flatten(description, "processors") if step["type"] != "ByteLevel"]  # only moves offsets
    if not steps:
        return Template((), (), (), (0,)), Template((), (), (), (0, 1))
    step = steps[0]
    if len(steps) > 1 or step["type"] not in ("TemplateProcessing", "BertProcessing", "RobertaProcessing"):
        raise NotUnderstood(f"the post-processor {' + '.join(step['type'] for step in steps)} is not known")
    if step["type"] == "TemplateProcessing":
        single = _template(step["single"], step["special_tokens"], ["A"])
        if single is None:
            raise NotUnderstood("the post-processor's template does not hold the text exactly once")
        return single, _template(step["pair"], step["special_tokens"], ["A", "B"])
    cls, sep = int(step["cls"][1]), int(step["sep"][1])
    single = Template(((cls, 0),), (), ((sep, 0),), (0,))
    if step["type"] == "BertProcessing":
        return single, Template(((cls, 0),), ((sep, 0),), ((sep, 1),), (0, 1))
    return single, Template(((cls, 0),), ((sep, 0), (sep, 0)), ((sep, 0),), (0, 0))


def _template(parts: Sequence[Mapping[str, Any]], specials: Mapping[str, Any], texts: Sequence[str]) -> Template | None:
    groups: list[list[tuple[int, int]]] = [[]]
    found: list[str] = []
    types: list[int] = []
    for part in parts:
        if "Sequence" in part:
            found.append(part["Sequence"]["id"])
            types.append(int(part["Sequence"]["type_id"]))
            groups.append([])
        else:
            special = part["SpecialToken"]
            groups[-1].extend((int(id_), int(special["type_id"])) for id_ in specials[special["id"]]["ids"])
    if found != list(texts):
        return None
    between = groups[1] if len(texts) > 1 else []
    return Template(tuple(groups[0]), tuple(between), tuple(groups[-1]), tuple(types))
