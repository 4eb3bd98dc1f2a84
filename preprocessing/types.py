"""The values that travel between the parts of this package and its callers. No behaviour beyond simple sums.

Instances are made once and never changed afterwards. `Encoded` and `Prepared` are plain slotted classes rather than
frozen ones because several are made per request, and freezing doubles what making one costs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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


@dataclass(slots=True, eq=False)
class ParsedRequest:
    """A request body that was found right: the texts to encode, whether the client sent a list, and the head's checked
    parameters.
    """

    texts: Texts
    is_batch: bool
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Prepared:
    """A request ready for the backend: its rows, and what the head needs to turn outputs into an answer."""

    rows: list[Encoded]
    request: ParsedRequest

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
