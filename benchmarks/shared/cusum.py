"""The best that any test could do: a CUSUM that knows both distributions, and which variable changes.

Drift's benchmarks show it next to the gateway, which knows neither.
"""

from __future__ import annotations

import numpy as np

from gateway.metrics.accumulator import Floats
from gateway.metrics.drift import ALARM_DAYS

_CYCLES = 100_000
_HIGHEST = 45.0
"""Highest threshold: e to this power is more texts than come in any budget."""


def texts_needed(p: Floats, q: Floats, rate: float, variables: int, runs: int = 4000) -> float:
    """Return how many texts 95 of 100 runs need to find that shares ``p`` have become ``q``.

    ``rate`` is in texts a minute. The budget is that of a gateway: one false alarm in ``ALARM_DAYS`` over all
    ``variables``.
    """
    p, q = p / p.sum(), q / q.sum()
    is_there = p > 0
    p, q = p[is_there], q[is_there]
    gain, random = np.log(q / p), np.random.default_rng(1)
    threshold = _threshold(p, q, gain, ALARM_DAYS * 1440 * rate * variables, random)
    stands, needed, seen = np.zeros(runs), np.full(runs, np.inf), 0
    while np.isinf(needed).any():
        seen += 1
        stands = np.maximum(stands, 0.0) + gain[random.choice(len(q), p=q, size=runs)]
        needed[(stands >= threshold) & np.isinf(needed)] = seen
    return float(np.quantile(needed, 0.95, method="inverted_cdf"))


def _threshold(p: Floats, q: Floats, gain: Floats, texts_between: float, random: np.random.Generator) -> float:
    """Return the height that is reached once in ``texts_between`` texts while nothing has changed."""
    length = np.ones(4_000)
    at = gain[random.choice(len(p), p=p, size=len(length))]
    while (alive := at > 0).any():
        length[alive] += 1
        at[alive] += gain[random.choice(len(p), p=p, size=int(alive.sum()))]
    # A cycle begins and ends at 0. How often one reaches a height is measured as if the change had happened, and then
    # weighted: for every new height of a cycle, the thresholds that it is the first to reach, and their likelihood by
    # chance.
    at, top = np.zeros(_CYCLES), np.zeros(_CYCLES)
    below, reached = [], []
    while len(at):
        at = at + gain[random.choice(len(q), p=q, size=len(at))]
        is_higher = at > top
        below.append(top[is_higher])
        reached.append(at[is_higher])
        top = np.maximum(top, at)
        goes_on = (at > 0) & (at < _HIGHEST)
        at, top = at[goes_on], top[goes_on]
    lows, highs = np.concatenate(below), np.concatenate(reached)
    weights = np.exp(-highs)
    cycles_between = texts_between / float(length.mean())
    low, high = 0.0, _HIGHEST
    for _ in range(40):
        middle = (low + high) / 2
        often = float(weights[(lows < middle) & (middle <= highs)].sum()) / _CYCLES
        low, high = (middle, high) if often * cycles_between > 1 else (low, middle)
    return high
