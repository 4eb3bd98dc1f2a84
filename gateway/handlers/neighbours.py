"""Compares two versions of an embedding model by the texts that they find similar. Pure.

Two equally good models have different vector spaces, so their numbers cannot be compared. Their nearest neighbours can.
Both versions' vectors of the last texts are kept. The versions agree on a text if its nearest neighbour by the first
version is among the nearest by the second.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

KEPT: Final = 64
"""The number of texts that are kept, the newest."""
NEAREST: Final = 6
"""The first version's nearest text must be among the 6 nearest of the second, about a tenth of those kept."""
LEAST: Final = 32
"""The number of texts from which on versions are compared."""
_SAME_TEXT: Final = 1 - 1e-4
"""The cosine from which on a text is known and not kept again. Otherwise a few frequent texts would fill the list."""
_ROUNDING: Final = 1e-6

Array = NDArray[Any]


class Neighbours:
    """The last texts of one pair of versions. Used by one thread."""

    def __init__(self) -> None:
        self._first: list[Array] = []
        self._second: list[Array] = []
        self._next = 0
        self._other_shapes = 0

    def compare(self, first: Array, second: Array) -> bool | None:
        """Return whether both versions find the same texts similar, and keep these texts; None if too few are known.

        ``first``, ``second``: float arrays [texts, size of that version's vectors]. Several texts agree if each does.
        A vector that is not finite, or is zero, is near no other.
        """
        if first.ndim != 2 or second.ndim != 2 or len(first) != len(second):
            return False
        found = [self._agree_on(a, b) for a, b in zip(_directions(first), _directions(second), strict=True)]
        known = [agrees for agrees in found if agrees is not None]
        return all(known) if known else None

    def _agree_on(self, first: Array, second: Array) -> bool | None:
        if self._first and (self._first[0].shape != first.shape or self._second[0].shape != second.shape):
            self._other_shapes += 1
            if self._other_shapes < LEAST:
                return None  # the caller asked for shorter vectors
            self._first, self._second, self._next = [], [], 0  # another model under the same name
        self._other_shapes = 0
        agrees = None
        near = np.stack(self._first) @ first if self._first else np.zeros(0)
        if len(near) >= LEAST:
            others = np.stack(self._second) @ second
            nearest = others[int(near.argmax())]
            # Counts all texts that are at least as near, so a model that finds all texts alike does not agree.
            agrees = bool(np.isfinite(nearest)) and int((others >= nearest - _ROUNDING).sum()) <= NEAREST
        if not len(near) or near.max() < _SAME_TEXT:
            self._keep(first, second)
        return agrees

    def _keep(self, first: Array, second: Array) -> None:
        if len(self._first) < KEPT:
            self._first.append(first)
            self._second.append(second)
            return
        self._first[self._next], self._second[self._next] = first, second
        self._next = (self._next + 1) % KEPT


def _directions(vectors: Array) -> Array:
    """Return the vectors with length 1, as float32; zero vectors and values that are not finite become zeros."""
    found = np.nan_to_num(vectors.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    directions: Array = found / np.where(lengths > 0, lengths, 1)
    return directions
