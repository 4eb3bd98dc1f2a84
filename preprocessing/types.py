"""The values that travel between the parts of this package and its callers. No behaviour beyond simple sums.

Instances are made once and never changed afterwards. `Encoded` and `Prepared` are plain slotted classes rather than
frozen ones because several are made per request, and freezing doubles what making one costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(slots=True, eq=False)
class Encoded:
    """One row: a text (or a pair) as token ids, special tokens included, padding not.

    `type_ids` is None when they are all zero, `offsets` ([tokens, 2], in characters of the text) is None when they were
    not asked for.
    """

    ids: IntArray
    type_ids: IntArray | None = None
    n_unknown: int = 0
    truncated: bool = False
    offsets: IntArray | None = None

    @property
    def n_tokens(self) -> int:
        """How many tokens the row has."""
        return len(self.ids)


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
        return sum(len(row.ids) for row in self.rows)

    @property
    def n_unknown(self) -> int:
        """Unknown tokens of all rows."""
        return sum(row.n_unknown for row in self.rows)

    @property
    def n_truncated(self) -> int:
        """How many rows lost text to truncation."""
        return sum(row.truncated for row in self.rows)
