"""Medians, ranges, percentiles, and ratios of values that were measured side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.load import percentile


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a few rounds, and their range."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return median and range of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


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


def percentiles_ms(seconds: Iterable[float], *percents: float, digits: int | None = None) -> dict[str, float]:
    """Return ``{"p50_ms": …}`` of times in seconds, rounded to ``digits`` if they are given."""
    ordered = sorted(seconds)
    found = {f"p{percent:g}_ms": percentile(ordered, percent) * 1e3 for percent in percents}
    return found if digits is None else {name: round(value, digits) for name, value in found.items()}
