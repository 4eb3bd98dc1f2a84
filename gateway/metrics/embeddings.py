"""Of an embedding model's answers one number is counted: the cosine to the mean vector of the reference.

Without a reference it is that of a version's first vectors, so that a capture counts cosines as they will be counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

LEARNED: Final = 1000
"""Vectors whose mean is used if there is no reference."""


def vectors_of(answer: object) -> Sequence[Any]:
    """Return the vectors in an answer of an embedding task; empty for other answers."""
    if not isinstance(answer, Mapping):
        return ()
    found = answer.get("embeddings") if (one := answer.get("embedding")) is None else (one,)
    return found if isinstance(found, list | tuple | np.ndarray) else ()  # type: ignore[return-value]  # of numpy


class Cosines:
    """The cosines of one version's vectors. For use by one event loop."""

    def __init__(self, reference: tuple[float, ...]) -> None:
        self.mean = reference
        """What vectors are compared with; empty until it is known."""
        self._learned = 0
        self._sum: Any = np.array(reference) if reference else None

    def of(self, vectors: Sequence[Any]) -> list[float]:
        """Return the cosines of vectors, without zero vectors and those of another length than the first one
        (truncated); none while the mean is learned.
        """
        units = [unit for vector in vectors if (unit := _unit(vector)) is not None]
        units = [unit for unit in units if len(unit) == np.size(units[0] if self._sum is None else self._sum)]
        if not units:
            return []
        if not self.mean:
            self._sum = (0 if self._sum is None else self._sum) + np.sum(units, axis=0)
            self._learned += len(units)
            if self._learned >= LEARNED:
                self.mean = tuple((self._sum / self._learned).tolist())
            return []
        direction = self._sum / max(float(np.linalg.norm(self._sum)), 1e-300)
        found: list[float] = np.clip(np.stack(units) @ direction, -1, 1).tolist()
        return found


def _unit(vector: Any) -> Any:
    """Return a vector's direction; None if it has none."""
    with contextlib.suppress(TypeError, ValueError):
        row = np.asarray(vector, dtype=np.float64)
        if row.ndim == 1 and 0 < (length := float(np.linalg.norm(row))) < np.inf:
            return row / length
    return None
