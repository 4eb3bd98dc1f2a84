"""The direction of embeddings as a few numbers, which are counted into bins like any other number.

Each component is the sum over all numbers of the normalised vector with fixed random signs. Vectors of another
direction have other components, whatever the model. The signs come from a hash, so they are equal in all workers,
gateways and versions of numpy, and references stay comparable.

Public: ``deploy`` may import it, to write references of bundles.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import texts, variables

_AT_ONCE: Final = 64
"""Vectors that are collected before their components are computed."""

Floats = NDArray[np.float32]


def vectors_of(answer: object) -> Sequence[Any]:
    """Return the vectors in an answer of an embedding task; empty for other answers."""
    if not isinstance(answer, Mapping):
        return ()
    one = answer.get("embedding")
    found = answer.get("embeddings") if one is None else (one,)
    if isinstance(found, np.ndarray):
        return [*found] if found.ndim == 2 else ()
    return found if isinstance(found, list | tuple) else ()


class Share:
    """Decides which calls to a model are asked for its mean hidden states: all at a low rate, else a random share.

    For use by one event loop.
    """

    def __init__(
        self, chance: Callable[[], float] = random.random, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sample = texts.Sample(texts.MAX_A_SECOND, chance, clock)

    def draws(self, rows: int) -> bool:
        """Return whether a call of ``rows`` rows is drawn; each row has the same chance, whatever the call's size."""
        return bool(self._sample.of((None,), rows))


def components(vectors: Floats) -> Floats:
    """Return the components, float32 (vectors, 4), of the non-zero rows of ``vectors``; about standard normal."""
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
    """Collects the vectors of one version and counts their components. For use by one event loop."""

    def __init__(self, take: Callable[[int, list[float]], object]) -> None:
        """``take(number, values)`` counts values of one component."""
        self._take = take
        self._pending: list[Floats] = []
        self._size = 0

    def see(self, vectors: Sequence[Any]) -> None:
        """Collect vectors. Vectors of another length than the first one are skipped: they were truncated by request."""
        for vector in vectors:
            row = np.asarray(vector, dtype=np.float32)
            if row.ndim == 1 and len(row) == (self._size or len(row)) > 0:
                self._size = len(row)
                self._pending.append(row)
        if len(self._pending) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Count what was collected."""
        pending, self._pending = self._pending, []
        if pending:
            for number, values in enumerate(components(np.stack(pending)).T.tolist()):
                self._take(number, values)
