"""The values that travel between the parts of this package and its callers. No behaviour beyond simple sums.

Instances are made once and never changed afterwards. `Encoded` and `Prepared` are plain slotted classes rather than
frozen ones because several are made per request, and freezing doubles what making one costs.
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
"""Named tensors whose first dimension is rows: what a backend takes and gives."""

Texts: TypeAlias = Sequence[str] | Sequence[tuple[str, str]]
"""What is encoded: texts, or pairs of texts; never a mixture."""


class Encoded:
    """One row: a text (or a pair) as token ids, special tokens included, padding not.

    Ids and types are kept as they will be sent, 8 bytes each in the machine's order: a cached text's are joined, and
    `collate` joins those of rows, without looking at one, in a fifth less time for one row to two fifths less for many
    (docs/tokenization.md). `ids` and `type_ids` read them as arrays. Types are None when they are all zero, `offsets`
    ([tokens, 2], in characters of the text) is None when they were not asked for.
    """

    __slots__ = ("n_tokens", "n_unknown", "offsets", "packed_ids", "packed_type_ids", "truncated")

    def __init__(
        self,
        ids: bytes | IntArray,
        type_ids: bytes | IntArray | None = None,
        n_unknown: int = 0,
        truncated: bool = False,
        offsets: IntArray | None = None,
    ) -> None:
        self.packed_ids = ids if type(ids) is bytes else _packed(ids)
        self.packed_type_ids = type_ids if type_ids is None or type(type_ids) is bytes else _packed(type_ids)
        self.n_tokens = len(self.packed_ids) >> 3
        """How many tokens the row has."""
        self.n_unknown = n_unknown
        self.truncated = truncated
        self.offsets = offsets

    @property
    def ids(self) -> IntArray:
        """The token ids; read-only."""
        return np.frombuffer(self.packed_ids, np.int64)

    @property
    def type_ids(self) -> IntArray | None:
        """The types of the tokens; read-only."""
        return None if self.packed_type_ids is None else np.frombuffer(self.packed_type_ids, np.int64)


def pack(numbers: Iterable[int]) -> bytes:
    """Numbers as 8 bytes each, in the machine's order."""
    return array("q", numbers).tobytes()


def _packed(values: bytes | IntArray) -> bytes:
    return np.asarray(values, dtype=np.int64).tobytes()


class Window(Encoded):
    """One of the rows that a text too long for the model is read in, with what its tokens came from.

    `source` is the position of the text (or pair) among the request's, `first` that of the window's first token among
    all tokens of the text that was divided; `special` ([tokens], bool) marks tokens that the
    post-processor added; `sequence` ([tokens], int8) is 0 for the tokens of the first text, 1 for those of the second,
    -1 for special ones; `words` ([tokens], int32) numbers the words of each text, -1 if a token belongs to none.
    `offsets` are always there, in characters of the token's own text.
    """

    __slots__ = ("first", "sequence", "source", "special", "words")

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
        special: NDArray[np.bool_],
        sequence: NDArray[np.int8],
        words: NDArray[np.int32],
    ) -> None:
        super().__init__(ids, type_ids, n_unknown, truncated, offsets)
        self.source = source
        self.first = first
        self.special = special
        self.sequence = sequence
        self.words = words


@dataclass(frozen=True, slots=True)
class Windows:
    """How texts that are too long become rows: neighbouring windows share `stride` tokens of the text.

    Of a pair only the text that `cuts` names is divided; the other one, which the request calls `whole`, is in every
    window. Rows have at most `max_length` tokens (None: as many as the endpoint's rows). Where `keeps_all` is false,
    the first window is the row, and it is marked as truncated. Where `only_if_cut`, rows that fit are plain ones.
    """

    stride: int = 0
    max_length: int | None = None
    cuts: Literal["first", "second"] = "first"
    whole: str = "text"
    keeps_all: bool = True
    only_if_cut: bool = False


@dataclass(slots=True, eq=False)
class ParsedRequest:
    """A request body that was found right: the texts to encode, whether the client sent a list, the head's checked
    parameters, (None for most tasks) how long texts are divided into rows, and what becomes of those that are cut.
    """

    texts: Texts
    is_batch: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    windows: Windows | None = None
    truncate: bool | None = None
    """Whether texts that are too long are cut (true) or refused (false); None: as the endpoint does."""


@dataclass(slots=True, eq=False)
class Prepared:
    """A request ready for the backend: its rows, and what the head needs to turn outputs into an answer."""

    rows: list[Encoded]
    request: ParsedRequest
    unaltered: Sequence[Mapping[str, Any]] | None = None
    """The results as they would be without the request's parameters, set by the head if a parameter changed them: what
    the model says must not look different because one caller asks for it in another form.
    """
    finish_work: int = 0
    """Microseconds that making the answer takes, about: what takes long is done off the event loop."""

    @property
    def is_batch(self) -> bool:
        """Whether the client sent a list, and so gets one back, whatever its length."""
        return self.request.is_batch

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows, padding not counted."""
        return sum(row.n_tokens for row in self.rows)

    @property
    def n_unknown(self) -> int:
        """Unknown tokens of all rows."""
        return sum(row.n_unknown for row in self.rows)

    @property
    def n_truncated(self) -> int:
        """How many rows lost text to truncation."""
        return sum(row.truncated for row in self.rows)
