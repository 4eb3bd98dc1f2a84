"""The values that are passed between the parts of this package and its callers.

Instances are not changed after their creation. `Encoded` and `Prepared` are plain slotted classes, because several are
made per request and a frozen dataclass takes twice as long to make.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float32]
Tensors: TypeAlias = Mapping[str, NDArray[Any]]
"""Named tensors whose first dimension is rows: a backend's inputs and outputs."""

Texts: TypeAlias = Sequence[str] | Sequence[tuple[str, str]]
"""Texts, or pairs of texts, to encode; never mixed."""


def total_chars(texts: Texts) -> int:
    """Return the characters of texts or pairs."""
    return sum(len(text) if type(text) is str else len(text[0]) + len(text[1]) for text in texts)


class Encoded:
    """One row: a text (or a pair) as token ids, with special tokens and without padding.

    Ids and types are stored as they are sent: 8 bytes each (int64) in machine byte order. The ids of cached words are
    joined as bytes, and `collate` joins those of rows, which saves a fifth of the time for one row and two fifths for
    many (docs/architecture.md). `ids` and `type_ids` are array views. Types are None if all are zero.
    """

    __slots__ = ("n_tokens", "n_unknown", "packed_ids", "packed_type_ids", "truncated")

    def __init__(
        self,
        ids: bytes | IntArray,
        type_ids: bytes | IntArray | None = None,
        n_unknown: int = 0,
        truncated: bool = False,
    ) -> None:
        self.packed_ids = ids if type(ids) is bytes else _packed(ids)
        self.packed_type_ids = type_ids if type_ids is None or type(type_ids) is bytes else _packed(type_ids)
        self.n_tokens = len(self.packed_ids) >> 3
        """Number of tokens in the row."""
        self.n_unknown = n_unknown
        self.truncated = truncated

    @property
    def ids(self) -> IntArray:
        """The token ids, int64 [tokens]; read-only."""
        return np.frombuffer(self.packed_ids, np.int64)

    @property
    def type_ids(self) -> IntArray | None:
        """The token types, int64 [tokens]; read-only."""
        return None if self.packed_type_ids is None else np.frombuffer(self.packed_type_ids, np.int64)


def pack(numbers: Iterable[int]) -> bytes:
    """Return numbers as int64 in machine byte order."""
    return array("q", numbers).tobytes()


def _packed(values: bytes | IntArray) -> bytes:
    return np.asarray(values, dtype=np.int64).tobytes()


class Window(Encoded):
    """One of the rows into which a text that is too long for the model is divided.

    `source` is the index of the text (or pair) in the request; `first` is the index of the window's first token among
    all tokens of the divided text. `sequence` ([tokens], int8) is 0 for tokens of the first text, 1 for the second, -1
    for those that the post-processor adds. `words` ([tokens], int32) numbers the words of each text, -1 for tokens
    outside words. `offsets` ([tokens, 2]) are in characters of the token's own text.
    """

    __slots__ = ("first", "offsets", "sequence", "source", "words")

    def __init__(
        self,
        ids: bytes,
        type_ids: bytes | None,
        n_unknown: int,
        truncated: bool,
        offsets: IntArray,
        *,
        source: int,
        first: int,
        sequence: NDArray[np.int8],
        words: NDArray[np.int32],
    ) -> None:
        super().__init__(ids, type_ids, n_unknown, truncated)
        self.offsets = offsets
        self.source = source
        self.first = first
        self.sequence = sequence
        self.words = words

    @property
    def special(self) -> NDArray[np.bool_]:
        """Which tokens the post-processor has added."""
        return self.sequence < 0


@dataclass(frozen=True, slots=True)
class Windows:
    """How texts that are too long are divided into rows; neighbouring windows share `stride` tokens of the text.

    Of a pair, only the text named by `cuts` is divided; the other one, which the request calls `whole`, is in every
    window. Rows have at most `max_length` tokens (None: the endpoint's limit). If `keeps_all` is false, the first
    window becomes the row, marked as truncated.
    """

    stride: int = 0
    max_length: int | None = None
    cuts: Literal["first", "second"] = "first"
    whole: str = "text"
    keeps_all: bool = True


@dataclass(slots=True, eq=False)
class ParsedRequest:
    """A valid request body: the texts to encode, whether the client sent a list, and the head's checked parameters.

    `windows` (None for most tasks) says how long texts are divided into rows, `truncate` what happens to cut ones.
    """

    texts: Texts
    is_batch: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    windows: Windows | None = None
    truncate: bool | None = None
    """Whether texts that are too long are cut (true) or refused (false); None: the endpoint's setting."""


class AtMost(int):
    """A number of new tokens that the caller did not ask for: fewer are generated if a prompt leaves room for fewer."""


@dataclass(slots=True, eq=False)
class Prepared:
    """A request that is ready for the backend: its rows, and what the head needs to make an answer of the outputs."""

    rows: list[Encoded]
    request: ParsedRequest
    unaltered: Sequence[Mapping[str, Any]] | None = None
    """The results without the request's parameters, if the parameters changed them; set by the head. Drift is measured
    on these, so that a caller's choice of form does not look like drift.
    """
    finishes_off_loop: bool = False
    """Whether making the answer takes milliseconds, so that it should run off the event loop."""

    @property
    def is_batch(self) -> bool:
        """Whether the client sent a list, and therefore gets a list, whatever its length."""
        return self.request.is_batch

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows without padding."""
        return sum(row.n_tokens for row in self.rows)

    @property
    def n_truncated(self) -> int:
        """Number of rows that were truncated."""
        return sum(row.truncated for row in self.rows)
