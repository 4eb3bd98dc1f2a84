"""Divides long texts into rows, as the tokenizers library's overflow does, without changing its settings.

`Windower` encodes each distinct text once, whole and without special tokens, and cuts its tokens into windows. Special
tokens are put around each by the same templates as in `framing`. Nothing changes after construction, so one instance
serves all threads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from preprocessing.config import Side
from preprocessing.descriptions import NotUnderstood
from preprocessing.errors import InvalidBundle, InvalidInput, TokenizationFailed
from preprocessing.framing import Frame, templates
from preprocessing.types import Texts, Window, Windows

_NOWHERE = -1


class _Tokens(NamedTuple):
    """A text's tokens, one item per token: `words` and `offsets` are those of `types.Window`."""

    ids: NDArray[np.int64]
    words: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def part(self, start: int, stop: int) -> _Tokens:
        """Return the tokens from `start` to `stop`."""
        return _Tokens(self.ids[start:stop], self.words[start:stop], self.offsets[start:stop])


class Windower:
    """Encodes texts or pairs into one or more windows each."""

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, truncation_side: Side, unknown_id: int | None) -> None:
        """Raises InvalidBundle if the post-processor is not known."""
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tokenizer.encode_special_tokens = tokenizer.encode_special_tokens  # which the library's copy loses
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        try:
            single, pair = templates(tokenizer)
        except NotUnderstood as error:
            raise InvalidBundle(f"tokenizer.json: {error}, which reading long texts in windows needs") from error
        self._frames = [None if template is None else Frame(template) for template in (single, pair)]
        self._max_length = max_length
        self._side: Side = truncation_side
        self._unknown_id = unknown_id

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
        frame = self._frames[pairs]
        if frame is None:
            raise TokenizationFailed("The tokenizer's post-processor builds pairs in an unknown way")
        room = min(windows.max_length or self._max_length, self._max_length) - (frame.size >> 3)
        parts_of: list[tuple[str, ...]] = list(texts) if pairs else [(text,) for text in texts]  # type: ignore[arg-type, misc]
        encodings = self._encode_each([part for parts in parts_of for part in parts])
        cut = 1 if pairs and windows.cuts == "second" else 0
        spans: list[list[tuple[int, int]]] = []
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
            # The overlap must be smaller than the window.
            found = _spans(size, left, min(windows.stride, left - 1), self._side) if left < size else [(0, size)]
            spans.append(found if windows.keeps_all else found[:1])
        refuse_many(sum(map(len, spans)))
        tokens = {text: _tokens(encoding) for text, encoding in encodings.items()}
        rows = []
        for source, (parts, own) in enumerate(zip(parts_of, spans, strict=True)):
            whole = [tokens[part] for part in parts]
            for start, stop in own:
                given = list(whole)
                given[cut] = whole[cut].part(start, stop)
                truncated = not windows.keeps_all and stop - start < len(whole[cut].ids)
                rows.append(self._row(frame, given, source, start, truncated))
        return rows

    def _encode_each(self, texts: Sequence[str]) -> dict[str, Any]:
        """Encode each distinct text once."""
        distinct = list(dict.fromkeys(texts))
        try:
            return dict(zip(distinct, self._tokenizer.encode_batch(distinct, add_special_tokens=False), strict=True))
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise TokenizationFailed(f"The tokenizer failed: {error}") from error
            raise

    def _row(self, frame: Frame, texts: Sequence[_Tokens], source: int, first: int, truncated: bool) -> Window:
        sizes, numbers = [len(frame.before) >> 3], [_NOWHERE]
        for number, text in enumerate(texts):
            after = frame.after if number == len(texts) - 1 else frame.between
            sizes += [len(text.ids), len(after) >> 3]
            numbers += [number, _NOWHERE]
        sequence = np.repeat(np.array(numbers, np.int8), sizes)
        words, offsets = np.full(len(sequence), _NOWHERE, np.int32), np.zeros((len(sequence), 2), np.int64)
        own = sequence != _NOWHERE
        words[own] = np.concatenate([text.words for text in texts])
        offsets[own] = np.concatenate([text.offsets for text in texts])
        ids = frame.before + frame.between.join(text.ids.tobytes() for text in texts) + frame.after
        return Window(
            ids,
            None if frame.zero_types else frame.pack_types(*(len(text.ids) * 8 for text in texts)),
            0 if self._unknown_id is None else int(np.count_nonzero(np.frombuffer(ids, np.int64) == self._unknown_id)),
            truncated,
            offsets,
            source=source,
            first=first,
            sequence=sequence,
            words=words,
        )


def _tokens(encoding: Any) -> _Tokens:
    words = [_NOWHERE if word is None else word for word in encoding.word_ids]
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return _Tokens(np.array(encoding.ids, np.int64), np.array(words, np.int32), offsets)


def _spans(size: int, width: int, stride: int, side: Side) -> list[tuple[int, int]]:
    """Return the windows of `width` tokens in a text of `size`, in the library's order (kept side first)."""
    step = width - stride
    starts = range(0, size - stride, step)
    if side == "right":
        return [(start, min(start + width, size)) for start in starts]
    return [(max(size - start - width, 0), size - start) for start in starts]
