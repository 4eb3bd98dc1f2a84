"""Ratios and differences of values that were measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio or a difference: the median over rounds and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float


def ratio(pairs: Sequence[tuple[float, float]], *, draws: int = 4000) -> Ratio:
    """Return the first over the second of ``pairs``, at least one; pure (the bootstrap has a fixed seed)."""
    return _median(np.array([one / other for one, other in pairs]), draws)


def difference(pairs: Sequence[tuple[float, float]], *, draws: int = 4000) -> Ratio:
    """Return the first less the second of ``pairs``, at least one; as ``ratio``."""
    return _median(np.array([one - other for one, other in pairs]), draws)


def _median(each: NDArray[np.float64], draws: int) -> Ratio:
    drawn = np.random.default_rng(1).choice(each, (draws, len(each)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(each)), float(low), float(high))
