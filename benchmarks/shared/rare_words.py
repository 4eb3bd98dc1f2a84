"""How often unseen words cause false alarms: many days of rare words alone, without their texts.

Words have the frequencies of ``speech`` and come independently of each other. References know the words of the texts
that they were captured from, as in a gateway. Examining a month of texts word by word would take a month of CPU.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.speech import LEARNED, SIZE, VARIABLES
from gateway.metrics import drift, evidence
from gateway.metrics.drift import ALARM_DAYS, Bins, Words
from gateway.metrics.words import LATELY, OFTEN, RISEN

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

_TOPIC, _OF_TOPIC = 20_000, 8.25
"""Number of words that may be drawn, and how many of them a text has on average."""
_RARE = 0.005
"""Share of texts above which a word is in every reference."""
_APART = 3_000
"""Texts after which nothing is left of a bet."""
_LEAST_STEP = 5
_QUIET_STEPS = 1_500
_NEVER = np.iinfo(np.int64).max
_BLOCKS = 10**9


def shares() -> Floats:
    """Return the share of texts that contain each rare word."""
    ranks = np.arange(1, _TOPIC + 1)
    found: Floats = _OF_TOPIC / ranks / (1 / ranks).sum()
    return found[found < _RARE]


def reference(of: Floats, rng: np.random.Generator) -> tuple[Bins, Floats]:
    """Return the bins of risen words of one capture, and the shares of words that it has not seen."""
    fresh = of[rng.random(len(of)) < np.exp(-LEARNED * of)]
    times, words = _arrivals(fresh, SIZE, rng)
    first = np.full(len(fresh), _NEVER)
    np.minimum.at(first, words, times)
    is_new = times // LATELY - first[words] // LATELY <= 1  # from then on it is known
    unseen = float((_nth(times, words)[is_new] >= OFTEN).sum())
    bins = drift.risen_bins({RISEN[0]: SIZE - unseen, RISEN[-1]: unseen})
    return drift.known_later(bins, Words(SIZE, {}, known=LEARNED + SIZE)), fresh[first == _NEVER]


def alarms(rate: float, texts_a_look: int, references: int, days: float, rng: np.random.Generator) -> int:
    """Return the false alarms of endpoints with one reference each, which examine ``rate`` texts a minute."""
    step, of, found = max(texts_a_look, _LEAST_STEP), shares(), 0
    for _ in range(references):
        bins, unseen = reference(of, rng)
        times, words = _arrivals(unseen, days * 1440 * rate, rng)
        came = np.sort(times[_nth(times, words) >= OFTEN])
        together = np.split(came, np.flatnonzero(np.diff(came) > _APART) + 1)
        chains = [(chain - chain[0]) // step for chain in together if len(chain) > 1]
        if chains:
            found += _judged(bins, chains, step, step / rate / 1440)
    return found


def _judged(bins: Bins, chains: list[Numbers], step: int, days: float) -> int:
    """Return how many chains alarm. A chain is the looks at which a text had an unseen word."""
    p = np.array(bins.ratios())
    bets = evidence.bets(p, bins.total, ordered=False, never=drift.cannot_come(bins.names))
    gains = np.log(bets / p)
    nothing = gains[:, bins.names.index(RISEN[0])]
    hit = gains[:, bins.names.index(RISEN[-1])] - nothing
    hits = np.zeros((len(chains), int(max(chain[-1] for chain in chains)) + 1))
    for row, chain in zip(hits, chains, strict=True):
        np.add.at(row, chain, 1)
    purse, most = evidence.Stakes.new(len(chains), len(bets)), math.log(len(bets) * ALARM_DAYS) + 4
    is_on = np.zeros(len(chains), dtype=bool)
    for now in (*[np.zeros(len(chains))] * _QUIET_STEPS, *hits.T):
        owned = purse.step(nothing * step + now[:, None] * hit, float(step), days, bins.total, most)
        is_on |= owned.mean(axis=1) / VARIABLES >= ALARM_DAYS
    return int(is_on.sum())


def _arrivals(of: Floats, texts: float, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Return the texts in which words occur, and the words: word by word, each word's texts in order."""
    words = np.repeat(np.arange(len(of)), rng.poisson(of * texts))
    times = rng.integers(0, int(texts), len(words))
    order = np.lexsort((times, words))
    return times[order], words[order]


def _nth(times: Numbers, words: Numbers) -> Numbers:
    """Return each word's recent occurrences, counted like ``words.UnseenWords``: in this stretch and the last one."""
    stretch = words * _BLOCKS + times // LATELY
    found: Numbers = np.arange(len(times)) - np.searchsorted(stretch, stretch - 1) + 1
    return found
