"""Prompts of every length, caches of every length, and every token: a candidate must answer them like PyTorch.

The counterpart of ``deploy/bundles/judge/probes.py`` for generated text. PyTorch reads one running text at once, which
gives the logits after each of its tokens. A candidate reads it as a prompt of each length, and token by token with its
cache. Then rows that together contain the vocabulary are read as prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.bundles.generation.engine import Generator
from deploy.tools.errors import ExportFailed

Read = Callable[[Sequence[int]], NDArray[Any]]
"""Tokens → the logits after each of them ([tokens, vocabulary])."""

_LONGEST: Final = 256
_EVERY: Final = 128
"""Every length up to this one is read as a prompt; above it, every multiple of 16."""
_ROW: Final = 128
_MAX_TOKENS: Final = 1 << 16
_MAX_WORK: Final = 4e12
"""Most weights times vocabulary tokens. For a large model only every n-th token is tried; all would take hours."""
_WRONG: Final = 0.3
"""Relative difference from which logits count as wrong, not as less exact."""
_REDUCED: Final = (0.6, 0.9)
"""The same for a reduced precision: for running text, and for tokens that never occur together in a text."""


@dataclass(frozen=True, slots=True)
class Probes:
    """``text`` with PyTorch's logits after each of its tokens ([tokens, vocabulary]), and rows of the vocabulary.

    Each row of the vocabulary comes with the logits after its last token ([vocabulary]).
    """

    text: tuple[int, ...]
    logits: NDArray[Any]
    vocabulary: Sequence[tuple[tuple[int, ...], NDArray[Any]]]


def make(read: Read, text: Sequence[int], *, longest: int, vocabulary: int, weights: int) -> Probes:
    """Ask PyTorch (``read``) and return the probes.

    ``text`` is a running text as tokens, ``longest`` the number of tokens that the model reads, ``vocabulary`` the
    number of tokens in the vocabulary, ``weights`` the number of weights.
    """
    own = tuple(np.resize(text, min(longest, _LONGEST)).tolist())
    most = max(1, min(_MAX_TOKENS, int(_MAX_WORK // max(weights, 1))))
    tried = list(range(0, vocabulary, max(1, -(-vocabulary // most))))
    size = min(longest, _ROW)
    rows = [tuple(tried[start : start + size]) for start in range(0, len(tried), size)]
    return Probes(own, read(own), [(row, read(row)[-1]) for row in rows])


def judge(probes: Probes, engine: Generator, difference: float) -> tuple[list[str], list[str]]:
    """Return faults, and what is less exact than required.

    ``difference`` is the largest allowed difference of a logit, as in ``Tolerance``; infinite for a reduced precision.
    Raises ``ExportFailed`` if the graph cannot run a length.
    """
    count = len(probes.text)
    lengths = [n for n in range(1, count + 1) if n <= _EVERY or n % 16 == 0 or n == count]
    prompts = [_off(probes.logits[n - 1], engine.whole(probes.text[:n])) for n in lengths]
    steps = engine.follow(probes.text[:1], probes.text[1:]) if count > 1 else ()
    cached = [_off(true, found) for true, found in zip(probes.logits, steps, strict=False)][1:]
    tokens = [_off(true, engine.whole(row)) for row, true in probes.vocabulary]
    faults: list[str] = []
    excesses: list[str] = []
    for found, what, limit in (
        (prompts, "prompts of every length", _REDUCED[0]),
        (cached, "tokens read with the cache", _REDUCED[0]),
        (tokens, "prompts that together contain the whole vocabulary", _REDUCED[1]),
    ):
        is_reduced = np.isinf(difference)
        wrong = [share for most, share in found if (not share < limit if is_reduced else not most <= difference)]
        if wrong:
            worst = max(wrong)
            text = f"{len(wrong)} of {len(found)} {what}: the logits differ from PyTorch's by {worst:.2g} of their size"
            (faults if worst >= _WRONG else excesses).append(text)
    return faults, excesses


def _off(true: NDArray[Any], found: NDArray[Any]) -> tuple[float, float]:
    """Return how far logits (less their mean) differ: the largest difference, and the difference as a share of their
    size.

    The largest difference is relative to the largest number above 1.
    """
    if true.shape != found.shape:
        raise ExportFailed(f"logits cover {found.shape[-1]} tokens instead of {true.shape[-1]}")
    if not np.isfinite(found).all():
        return float("inf"), float("inf")
    t, f = (one.astype(np.float64) - one.mean(dtype=np.float64) for one in (true, found))
    off, size = np.abs(t - f), float(np.linalg.norm(t)) or 1.0
    return float(off.max()) / max(1.0, float(np.abs(t).max())), float(np.linalg.norm(off)) / size
