"""Where embeddings point: a few numbers of each, that can be counted into bins as any other number.

A component is the sum of all numbers of a vector of length 1, each with a sign that is drawn once and for all: vectors
that point elsewhere have other components, whatever the model. The signs come from a hash, so that they are the same in
every worker, gateway and version of numpy, and a reference stays comparable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import variables

_AT_ONCE: Final = 64

Floats = NDArray[np.float32]


def vectors_of(answer: object) -> Sequence[Any]:
    """Return the vectors of an answer of an embedding task; none of any other."""
    if not isinstance(answer, Mapping):
        return ()
    one = answer.get("embedding")
    found = answer.get("embeddings") if one is None else (one,)
    if isinstance(found, np.ndarray):
        return [*found] if found.ndim == 2 else ()
    return found if isinstance(found, list | tuple) else ()


def components(vectors: Floats) -> Floats:
    """Return the components of vectors that are not zero: a row of each, about as large as normal random numbers."""
    lengths = np.linalg.norm(vectors, axis=1)
    is_there = np.isfinite(lengths) & (lengths > 0)
    found: Floats = (vectors[is_there] / lengths[is_there, None]) @ _signs(vectors.shape[1])
    return found


@cache
def _signs(size: int) -> Floats:
    number = len(variables.EMBEDDING)
    bits = np.unpackbits(np.frombuffer(hashlib.shake_256(b"projection").digest(-(-size * number // 8)), np.uint8))
    return (bits[: size * number].astype(np.float32) * 2 - 1).reshape(size, number)


class Projected:
    """Takes the vectors of one version, and counts their components, many at a time. One event loop calls it."""

    def __init__(self, take: Callable[[int, list[float]], object]) -> None:
        """``take`` counts values of one component, by its number."""
        self._take = take
        self._pending: list[Floats] = []
        self._size = 0

    def see(self, vectors: Sequence[Any]) -> None:
        """Count these vectors; those that are not as long as the first one are other callers' short forms."""
        for vector in vectors:
            row = np.asarray(vector, dtype=np.float32)
            if row.ndim == 1 and len(row) == (self._size or len(row)) > 0:
                self._size = len(row)
                self._pending.append(row)
        if len(self._pending) >= _AT_ONCE:
            self.carry()

    def carry(self) -> None:
        """Count what is pending."""
        pending, self._pending = self._pending, []
        if pending:
            for number, values in enumerate(components(np.stack(pending)).T.tolist()):
                self._take(number, values)
