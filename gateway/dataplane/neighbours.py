"""Do two versions of an embedding model find the same texts alike? Pure.

Two models that are equally good place texts in spaces of their own, so their numbers cannot be compared. What a search
does with them can: which of the texts seen before is nearest to this one. Both versions' vectors of the last texts are
kept; a text agrees when the one that is nearest to it by the first version is among the nearest by the second.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

KEPT: Final = 64
"""So many texts are kept, the newest."""
NEAREST: Final = 6
"""Among so many of the second version's nearest the first version's must be found: a tenth of those kept."""
LEAST: Final = 32
"""From so many on there is something to compare with."""
_SAME: Final = 1 - 1e-4
"""Cosine of what counts as the same text: it is kept once, else a few frequent texts would be all there is."""
_ROUNDING: Final = 1e-6

Array = NDArray[Any]


class Neighbours:
    """The last texts of one pair of versions. One thread."""

    def __init__(self) -> None:
        self._first: list[Array] = []
        self._second: list[Array] = []
        self._next = 0
        self._strange = 0

    def compare(self, first: Array, second: Array) -> bool | None:
        """Say whether both versions find the same texts near, and keep these; None while there are too few.

        ``first``, ``second``: floats [texts, size of that version's vectors]. Several texts agree if all of them do.
        What is no finite vector, or has no direction, is never near anything.
        """
        if first.ndim != 2 or second.ndim != 2 or len(first) != len(second):
            return False
        found = [self._one(a, b) for a, b in zip(_directions(first), _directions(second), strict=True)]
        known = [agrees for agrees in found if agrees is not None]
        return all(known) if known else None

    def _one(self, first: Array, second: Array) -> bool | None:
        if self._first and (self._first[0].shape != first.shape or self._second[0].shape != second.shape):
            self._strange += 1
            if self._strange < LEAST:
                return None  # a caller wants shorter vectors
            self._first, self._second, self._next = [], [], 0  # another model under the same name
        self._strange = 0
        agrees = None
        near = np.stack(self._first) @ first if self._first else np.zeros(0)
        if len(near) >= LEAST:
            others = np.stack(self._second) @ second
            nearest = others[int(near.argmax())]
            # As many as are at least as near: a model that finds all texts alike finds none.
            agrees = bool(np.isfinite(nearest)) and int((others >= nearest - _ROUNDING).sum()) <= NEAREST
        if not len(near) or near.max() < _SAME:
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
    """Return the vectors at length 1; those without a direction become zeros, which are near nothing and everything."""
    found = np.nan_to_num(vectors.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    directions: Array = found / np.where(lengths > 0, lengths, 1)
    return directions
