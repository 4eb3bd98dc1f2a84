"""After how many texts does drift find another language, capitals, nonsense or one new word, and how often none?

Texts are drawn word by word and go through the code that looks at them in a gateway (``gateway.metrics.texts`` and
``words``); what that finds is judged with the budget of one endpoint of twelve variables, of which only these are
simulated. References are captured as a gateway does, from 20,000 texts. How often words occur follows Zipf's law: a few
are everywhere, most are rare, and however many texts have come, some words of the next one are new.

Beside each the ideal: a CUSUM that is told both distributions and which variable changes, or the new word itself.
``--save`` keeps the numbers and puts the tables into ``docs/drift.md``.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.shared import cusum
from benchmarks.shared.command import parser, tell
from benchmarks.shared.results import DOCS, put, save, table
from gateway.metrics import catalog, drift, evidence, texts, variables
from gateway.metrics.accumulator import Floats
from gateway.metrics.drift import ALARM_DAYS, Bins, Words
from gateway.metrics.languages import FUNCTION_WORDS
from gateway.metrics.words import Watched

TAKES = "a quarter of an hour"
SAVES = "results/texts.json"
RATES: Final = (10, 300, 10_000)
"""Texts a minute."""
_WINDOW_S: Final = {10: 60.0, 300: 5.0, 10_000: 5.0}
_QUIET_S: Final = {10: 43_200.0, 300: 4_320.0, 10_000: 4_320.0}
_MOST_LOOKED: Final = texts.MOST_A_SECOND * 60
"""Texts a minute that one worker looks at."""
_SIZE: Final = 20_000
_LEARNED: Final = 16_500
_VARIABLES: Final = 12
_ENUMS: Final = (variables.SCRIPT, variables.LANGUAGE, variables.CASE, variables.RISEN)
_GIVEN_UP: Final = 12_000
_NEW: Final = "a new word in 1 % of the texts"
_WORD: Final = "flimmer"

Draw = Callable[[int], list[str]]
"""Makes so many texts."""
Found = dict[str, Sequence[Any]]
"""Values of each variable."""


class Speech:
    """Draws texts of one language: function words around words of a topic."""

    def __init__(self, language: str, seed: int, rng: np.random.Generator) -> None:
        syllables = random.Random(seed)
        parts = [a + b for a in "bcdfglmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
        topic = {"".join(syllables.choice(parts) for _ in range(syllables.randint(2, 4))): 0 for _ in range(20_000)}
        self._lists = (FUNCTION_WORDS["latin"][language].split(), list(topic))
        self._rng = rng

    def __call__(self, number: int) -> list[str]:
        """Return texts of 6 to 24 words, nine of twenty of which are function words."""
        rng = self._rng
        lengths = rng.integers(6, 25, number)
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


def changes(rng: np.random.Generator, english: Draw) -> dict[str, Draw]:
    """Return what may come instead of English texts."""
    german = Speech("de", 2, rng)

    def mixed(share: float, change: Callable[[str], str]) -> Draw:
        return lambda number: [change(text) if rng.random() < share else text for text in english(number)]

    def nonsense(text: str) -> str:
        words = ["".join(map(chr, rng.integers(97, 123, 7))) if rng.random() < 0.05 else w for w in text.split()]
        return " ".join(words)

    return {
        "10 % of the texts in German": mixed(0.1, lambda _: german(1)[0]),
        "5 % of the texts in capitals": mixed(0.05, str.upper),
        "5 % of the words nonsense": mixed(1.0, nonsense),
        _NEW: mixed(0.01, lambda text: f"{text} {_WORD}"),
    }


class Seen:
    """What a gateway counts of texts, as values: nothing is drawn from among them."""

    def __init__(self, words: Words | None) -> None:
        self.found: dict[str, list[Any]] = {name: [] for name in (*_ENUMS, variables.UNUSUAL)}
        self.watched = Watched(words, self._begin)

    def _begin(self) -> None:
        for name in (variables.RISEN, variables.UNUSUAL):
            self.found[name].clear()

    def see(self, came: Sequence[str]) -> Found:
        """Return the values of these texts."""
        for values in self.found.values():
            values.clear()
        for start in range(0, len(came), 64):
            looked = texts.look([texts.beginning(text) for text in came[start : start + 64]])
            shares, risen = self.watched.see(looked.worded)
            self.found[variables.UNUSUAL] += shares.tolist()
            for name, numbers in [*looked.numbers.items(), (variables.RISEN, risen)]:
                self.found[name] += [texts.VALUES[name][i] for i in numbers.tolist()]
        return {name: list(values) for name, values in self.found.items()}


def captured(draw: Draw) -> tuple[dict[str, Bins], Words]:
    """Return a reference of traffic, as ``drift capture`` makes one."""
    seen = Seen(None)
    seen.see(draw(_LEARNED))
    found = seen.see(draw(_SIZE))
    bounds = (*catalog.WORD_RATIO_BUCKETS, math.inf)
    counts = np.bincount(np.searchsorted(bounds, found[variables.UNUSUAL]), minlength=len(bounds))
    bins = {name: drift.enum_bins(Counter(found[name])) for name in _ENUMS if name != variables.RISEN}
    bins[variables.RISEN] = drift.risen_bins(Counter(found[variables.RISEN]))
    words = seen.watched.usual()
    assert words is not None
    return {**bins, variables.UNUSUAL: drift.bucket_bins(bounds, counts.tolist())}, words


class Endpoint:
    """The evidence of one endpoint at one rate."""

    def __init__(self, bins: Mapping[str, Bins], rate: int, rng: np.random.Generator) -> None:
        self._bins, self._rate, self._now, self._rng = bins, rate, 0.0, rng
        self._variables = {
            name: evidence.Variable(
                np.array(one.ratios()), one.total, ordered=one.kind == "scalar", alarm_days=ALARM_DAYS
            )
            for name, one in bins.items()
        }
        self.texts_a_look = round(rate * _WINDOW_S[rate] / 60)

    def wait(self) -> None:
        """Let traffic that is like the reference come for a while."""
        window_s = 300.0 if self._rate == RATES[0] else 60.0
        looked = round(min(self._rate, _MOST_LOOKED) * window_s / 60)
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
        return sum(days) / _VARIABLES


def looked_at(rate: int) -> float:
    """Return the share of texts that a worker looks at."""
    return min(1.0, _MOST_LOOKED / rate)


def needed(
    bins: Mapping[str, Bins], words: Words, english: Draw, draw: Draw, seed: int, *, is_named: bool
) -> dict[str, float]:
    """Return after how many texts each rate alarms, and after how many looked at a new word is named, if one is."""
    rng = np.random.default_rng(seed)
    seen = Seen(words)
    seen.see(english(2_000))
    endpoints = {rate: Endpoint(bins, rate, rng) for rate in RATES}
    for endpoint in endpoints.values():
        endpoint.wait()
    found: dict[str, float] = {}
    values: dict[str, list[Any]] = {name: [] for name in bins}
    used = dict.fromkeys(RATES, 0)
    while len(values[variables.SCRIPT]) < _GIVEN_UP and len(found) < len(RATES) + is_named:
        for name, more in seen.see(draw(250)).items():
            values[name] += more
        recent = seen.watched.recent()
        if is_named and "named" not in found and recent is not None and _WORD in recent.moved()["rose"]:
            found["named"] = float(len(values[variables.SCRIPT]))
        for rate, endpoint in endpoints.items():
            looked = round(endpoint.texts_a_look * looked_at(rate))
            while str(rate) not in found and used[rate] + looked <= len(values[variables.SCRIPT]):
                window = {name: some[used[rate] : used[rate] + looked] for name, some in values.items()}
                used[rate] += looked
                if endpoint.look(window) >= ALARM_DAYS:
                    found[str(rate)] = used[rate] / looked_at(rate)
    return found


def ideals(bins: Mapping[str, Bins], found: Found, change: str) -> dict[str, float]:
    """Return the same of the ideal: of the variable that shows the change best, or of the word itself."""
    if change == _NEW:
        pairs = [(np.array([0.5 / _SIZE, 1 - 0.5 / _SIZE]), np.array([0.01, 0.99]))]
    else:
        counts = {name: drift.count(one, found[name]) for name, one in bins.items()}
        pairs = [(np.array(one.ratios()), drift.shares(counts[name])) for name, one in bins.items()]
        pairs = sorted(pairs, key=lambda pair: -float(np.sum(pair[1] * np.log(pair[1] / pair[0]))))[:1]
    return {
        str(rate): min(cusum.texts_needed(p, q, rate, _VARIABLES) for p, q in pairs) / looked_at(rate)
        for rate in RATES
    }  # fmt: skip


def stationary(references: Sequence[tuple[dict[str, Bins], Words]], english: Draw, number: int) -> dict[str, Any]:
    """Count the alarms of traffic that is like its reference, at ten texts a minute, and the words that are named."""
    rate, alarms, endpoint_days, named = RATES[0], 0, 0.0, 0
    for bins, words in references:
        endpoint, seen, was_on = Endpoint(bins, rate, np.random.default_rng(1)), Seen(words), False
        for _ in range(number // 1_000):
            found = seen.see(english(1_000))
            recent = seen.watched.recent()
            named += sum(map(len, recent.moved().values())) if recent is not None else 0
            for start in range(0, 1_000, endpoint.texts_a_look):
                window = {name: some[start : start + endpoint.texts_a_look] for name, some in found.items()}
                is_on = endpoint.look(window) >= ALARM_DAYS
                alarms, was_on = alarms + (is_on and not was_on), is_on
        endpoint_days += number / rate / 1440
    looks = len(references) * (number // 1_000)
    return {
        "kind": "stationary", "rate": rate, "endpoint_days": round(endpoint_days), "alarms": alarms,
        "allowed": round(endpoint_days / ALARM_DAYS, 1), "words_named": named, "looks_for_words": looks,
    }  # fmt: skip


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table and what is said below it."""
    rows = [["change", *(f"{rate:,} a minute" for rate in RATES)]]
    rows += [
        [one["change"], *(f"{one['texts_95'][str(rate)]:,.0f} ({one['ideal_95'][str(rate)]:,.0f})" for rate in RATES)]
        for one in found[:-1]
    ]
    last, named = found[-1], found[-2]["texts_95"]["named"]
    return (
        f"{table(rows)}\n\nThe new word was named after {named:,.0f} texts that were looked at, in 95 of 100 runs. Of "
        f"traffic that is like its reference: {last['alarms']} alarms in {last['endpoint_days']:,} endpoint-days at "
        f"{last['rate']} texts a minute ({last['allowed']:g} allowed), and in {last['looks_for_words']:,} looks "
        f"{last['words_named']:,} words that were named without a reason.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per change, then the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--references", type=int, default=5)
    arguments.add_argument("--runs", type=int, default=40)
    arguments.add_argument("--texts", type=int, default=130_000, help="stationary ones, of each reference")
    options = arguments.parse_args(argv)
    rng = np.random.default_rng(5)
    english = Speech("en", 1, rng)
    references = [captured(english) for _ in range(options.references)]
    found: list[dict[str, Any]] = []
    for change, draw in changes(rng, english).items():
        is_named = change == _NEW
        runs = [
            needed(*references[i % len(references)], english, draw, i, is_named=is_named) for i in range(options.runs)
        ]
        at = {
            key: float(np.quantile([run.get(key, math.inf) for run in runs], 0.95, method="inverted_cdf"))
            for key in (*map(str, RATES), *(["named"] if is_named else []))
        }
        bins, words = references[0]
        best = ideals(bins, Seen(words).see(draw(20_000)), change)
        found.append({"kind": "change", "change": change, "texts_95": at, "ideal_95": best})
        tell(found[-1])
    found.append(stationary(references, english, options.texts))
    tell(found[-1])
    text = shown(found)
    print(text)
    if options.save:
        save("texts", found)
        put(DOCS / "drift.md", "texts", text)
    return 0
