"""The best that any test could do: a CUSUM that is told both distributions, and which variable changes.

Drift's benchmarks show it beside what a gateway needs, which is told neither.
"""

from __future__ import annotations

import math

import numpy as np

from gateway.metrics.accumulator import Floats
from gateway.metrics.drift import ALARM_DAYS


def texts_needed(p: Floats, q: Floats, rate: int, variables: int, runs: int = 400) -> float:
    """Return how many texts 95 of 100 runs need to find that shares ``p`` have become ``q``.

    ``rate``: texts a minute. The budget is that of a gateway: one false alarm in ``ALARM_DAYS`` over all ``variables``.
    """
    p, q = p / p.sum(), q / q.sum()
    is_there = p > 0
    p, q = p[is_there], q[is_there]
    gain, random = np.log(q / p), np.random.default_rng(1)
    # A cycle begins and ends at 0. How often one reaches a height is measured as if the change were there, and weighed.
    height, hits, reached, lengths = 10.0, [], np.zeros(4_000), []
    alive = np.ones(4_000, dtype=bool)
    while alive.any():
        reached[alive] += gain[random.choice(len(q), p=q, size=int(alive.sum()))]
        hits += np.exp(-reached[alive & (reached >= height)]).tolist()
        alive &= (reached > 0) & (reached < height)
    at, length, alive = np.zeros(4_000), np.zeros(4_000), np.ones(4_000, dtype=bool)
    while alive.any():
        length[alive] += 1
        at[alive] += gain[random.choice(len(p), p=p, size=int(alive.sum()))]
        alive &= (at > 0) & (at < 40)
    lengths = length.tolist()
    texts_between = ALARM_DAYS * 1440 * rate * variables
    threshold = height + math.log(texts_between * (sum(hits) / 4_000) / (sum(lengths) / len(lengths)))
    stands, needed, seen = np.zeros(runs), np.full(runs, math.inf), 0
    while np.isinf(needed).any():
        seen += 1
        stands = np.maximum(stands, 0.0) + gain[random.choice(len(q), p=q, size=runs)]
        needed[(stands >= threshold) & np.isinf(needed)] = seen
    return float(np.quantile(needed, 0.95, method="inverted_cdf"))
