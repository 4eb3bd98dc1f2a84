"""Texts of artificial languages for drift's benchmarks, and how a gateway counts and judges them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gateway.metrics import catalog, drift, evidence, texts, variables
from gateway.metrics.accumulator import Floats
from gateway.metrics.drift import ALARM_DAYS, Bins, Words
from gateway.metrics.languages import FUNCTION_WORDS
from gateway.metrics.words import WordWatch

RATES: Final = (10, 300, 10_000)
"""Texts a minute."""
VARIABLES: Final = 12
"""Variables of an endpoint, which share one budget. Those that are not simulated find nothing."""
MAX_LOOKED: Final = texts.MAX_A_SECOND * 60
"""Most texts a minute that one worker examines."""
_WINDOW_S: Final = {10: 6.0, 300: 5.0, 10_000: 5.0}
"""Seconds between looks: a gateway looks every 5, and at ten texts a minute finds one text or none."""
_QUIET_S: Final = {10: 43_200.0, 300: 4_320.0, 10_000: 4_320.0}
SIZE: Final = 20_000
"""Texts of a reference."""
LEARNED: Final = 16_500
"""Texts that came before the reference: from then on, words can be called usual."""
_ENUMS: Final = (variables.SCRIPT, variables.LANGUAGE, variables.CASE, variables.RISEN)

Draw = Callable[[int], list[str]]
"""Draws a number of texts."""
Found = dict[str, Sequence[Any]]
"""Values of each variable."""


class Speech:
    """Draws texts of one language: function words around words of a topic."""

    def __init__(self, language: str, seed: int, rng: np.random.Generator, longer: float = 1.0) -> None:
        syllables = random.Random(seed)
        parts = [a + b for a in "bcdfglmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
        topic = {"".join(syllables.choice(parts) for _ in range(syllables.randint(2, 4))): 0 for _ in range(20_000)}
        self._lists = (FUNCTION_WORDS["latin"][language].split(), list(topic))
        self._rng, self._longer = rng, longer

    def __call__(self, number: int) -> list[str]:
        """Return texts of 6 to 24 words; nine of twenty words are function words."""
        rng = self._rng
        lengths = np.rint(rng.integers(6, 25, number) * self._longer).astype(int)
        total = int(lengths.sum())
        columns = []
        for listed in self._lists:
            shares = 1 / np.arange(1, len(listed) + 1)
            chosen = rng.choice(len(listed), size=total, p=shares / shares.sum())
            columns.append([listed[i] for i in chosen.tolist()])
        is_topic = (rng.random(total) > 0.45).tolist()
        words = [columns[topic][i] for i, topic in enumerate(is_topic)]
        ends = np.cumsum(lengths).tolist()
        made = [" ".join(words[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
        return [text[0].upper() + text[1:] for text in made]


class Seen:
    """The values that a gateway counts for texts, without drawing a share of them."""

    def __init__(self, words: Words | None) -> None:
        self.found: dict[str, list[Any]] = {name: [] for name in (*_ENUMS, variables.UNUSUAL)}
        self.watched = WordWatch(words, self._begin)

    def _begin(self) -> None:
        for name in (variables.RISEN, variables.UNUSUAL):
            self.found[name].clear()

    def see(self, came: Sequence[str]) -> Found:
        """Return the values of these texts."""
        for values in self.found.values():
            values.clear()
        for start in range(0, len(came), 64):
            looked = texts.examine([texts.beginning(text) for text in came[start : start + 64]])
            shares, risen = self.watched.see(looked.words)
            self.found[variables.UNUSUAL] += shares.tolist()
            for name, numbers in [*looked.numbers.items(), (variables.RISEN, risen)]:
                self.found[name] += [texts.VALUES[name][i] for i in numbers.tolist()]
        return {name: list(values) for name, values in self.found.items()}


def mixed(draw: Draw, rng: np.random.Generator, share: float, change: Callable[[str], str]) -> Draw:
    """Return a function that draws texts, of which a share is changed."""
    return lambda number: [change(text) if rng.random() < share else text for text in draw(number)]


def nonsense(rng: np.random.Generator) -> Callable[[str], str]:
    """Return a function that replaces one of twenty words of a text by nonsense."""

    def changed(text: str) -> str:
        words = ["".join(map(chr, rng.integers(97, 123, 7))) if rng.random() < 0.05 else w for w in text.split()]
        return " ".join(words)

    return changed


def captured(draw: Draw) -> tuple[dict[str, Bins], Words]:
    """Return a reference of traffic, as ``drift capture`` makes one."""
    seen = Seen(None)
    seen.see(draw(LEARNED))
    found = seen.see(draw(SIZE))
    bounds = (*catalog.WORD_RATIO_BUCKETS, math.inf)
    counts = np.bincount(np.searchsorted(bounds, found[variables.UNUSUAL]), minlength=len(bounds))
    bins = {name: drift.enum_bins(Counter(found[name])) for name in _ENUMS if name != variables.RISEN}
    words = seen.watched.usual()
    assert words is not None
    bins[variables.RISEN] = drift.known_later(drift.risen_bins(Counter(found[variables.RISEN])), words)
    return {**bins, variables.UNUSUAL: drift.bucket_bins(bounds, counts.tolist())}, words


class Endpoint:
    """The evidence of one endpoint at one rate."""

    def __init__(self, bins: Mapping[str, Bins], rate: int, rng: np.random.Generator) -> None:
        self._bins, self._rate, self._now, self._rng = bins, rate, 0.0, rng
        self._variables = {
            name: evidence.Variable(
                np.array(one.ratios()),
                one.total,
                ordered=one.kind == "scalar",
                alarm_days=ALARM_DAYS,
                never=drift.cannot_come(one.names),
            )
            for name, one in bins.items()
        }
        self.texts_a_look = round(rate * _WINDOW_S[rate] / 60)

    def wait(self) -> None:
        """Let traffic that equals the reference arrive for a while."""
        window_s = 300.0 if self._rate == RATES[0] else 60.0
        looked = round(min(self._rate, MAX_LOOKED) * window_s / 60)
        for _ in range(int(_QUIET_S[self._rate] / window_s)):
            counts = {
                name: self._rng.multinomial(looked, np.array(one.counts) / one.total).astype(float)
                for name, one in self._bins.items()
            }
            self._step(counts, window_s)

    def look(self, found: Found) -> float:
        """Judge the values of one window; return the evidence in days."""
        return self._step({name: drift.count(one, found[name]) for name, one in self._bins.items()},
                          _WINDOW_S[self._rate])  # fmt: skip

    def _step(self, counts: Mapping[str, Floats], window_s: float) -> float:
        self._now += window_s
        days = [
            variable.step(counts[name], window_s / evidence.DAY_S, self._now).days
            for name, variable in self._variables.items()
            if variable.is_judged
        ]
        return sum(days) / VARIABLES
