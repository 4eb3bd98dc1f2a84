"""After how many texts does drift find another language, capitals, nonsense or one new word, and how often falsely?

Texts are drawn word by word and go through the gateway's own code (``gateway.metrics.texts`` and ``words``). Its values
are judged with the budget of one endpoint with twelve variables, of which only these are simulated. References are
captured as a gateway does, from 20,000 texts. Word frequencies follow Zipf's law: a few words are everywhere and most
are rare, so however many texts have come, the next one has some new words.

Then comes traffic that equals its reference: whole texts at the lowest rate, and rare words alone at each rate, for
longer than whole texts could be examined (``rare_words``). Each is compared with the ideal: a CUSUM that knows both
distributions and which variable changes, or the new word itself. A second ideal for the new word does not know which
one it will be and shares its budget among ten thousand words, as many variables as a gateway watches. ``--save`` keeps
the numbers and puts the tables into ``docs/drift.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.shared import cusum, rare_words
from benchmarks.shared.command import parser, tell
from benchmarks.shared.results import DOCS, put, save, table
from benchmarks.shared.speech import (
    MAX_LOOKED,
    RATES,
    SIZE,
    VARIABLES,
    Draw,
    Endpoint,
    Found,
    Seen,
    Speech,
    captured,
    mixed,
    nonsense,
)  # fmt: skip
from gateway.metrics import drift, variables
from gateway.metrics.drift import ALARM_DAYS, Bins, Words

TAKES = "5 minutes"
SAVES = "results/texts.json"
_GIVEN_UP: Final = 12_000
_NEW: Final = "a new word in 1 % of the texts"
_WORD: Final = "flimmer"
_VOCABULARY: Final = 10_000
"""Words that are possible for the ideal that does not know the new word."""


_RARE_DAYS: Final = {10: 100, 300: 40, 10_000: 4}
_LOOKS: Final = {10: 1, 300: 25, 10_000: 500}
"""Texts that are examined between two looks at the evidence, by rate."""


def changes(rng: np.random.Generator, english: Draw) -> dict[str, Draw]:
    """Return the kinds of texts that may replace English ones."""
    german = Speech("de", 2, rng)
    return {
        "10 % of the texts in German": mixed(english, rng, 0.1, lambda _: german(1)[0]),
        "5 % of the texts in capitals": mixed(english, rng, 0.05, str.upper),
        "5 % of the words nonsense": mixed(english, rng, 1.0, nonsense(rng)),
        _NEW: mixed(english, rng, 0.01, lambda text: f"{text} {_WORD}"),
    }


def looked_at(rate: int) -> float:
    """Return the share of texts that a worker examines."""
    return min(1.0, MAX_LOOKED / rate)


def needed(
    bins: Mapping[str, Bins], words: Words, english: Draw, draw: Draw, seed: int, *, is_named: bool
) -> dict[str, float]:
    """Return after how many texts each rate alarms, and after how many examined texts a new word is named."""
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


def ideals(bins: Mapping[str, Bins], found: Found, change: str, among: int = 1) -> dict[str, float]:
    """Return the same for the ideal: for the variable that shows the change best, or for one word ``among`` as many."""
    if change == _NEW:
        pairs = [(np.array([0.5 / SIZE, 1 - 0.5 / SIZE]), np.array([0.01, 0.99]))]
    else:
        counts = {name: drift.count(one, found[name]) for name, one in bins.items()}
        pairs = [(np.array(one.ratios()), drift.shares(counts[name])) for name, one in bins.items()]
        pairs = sorted(pairs, key=lambda pair: -float(np.sum(pair[1] * np.log(pair[1] / pair[0]))))[:1]
    return {
        str(rate): min(cusum.texts_needed(p, q, rate * looked_at(rate), VARIABLES * among) for p, q in pairs)
        / looked_at(rate)
        for rate in RATES
    }


def stationary(references: Sequence[tuple[dict[str, Bins], Words]], english: Draw, number: int) -> dict[str, Any]:
    """Count the alarms and named words for traffic that equals its reference, at ten texts a minute."""
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


def rare(number: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Count the alarms of rare words alone, for ``number`` endpoints at each rate."""
    return [
        {
            "kind": "rare", "rate": rate, "endpoint_days": number * days,
            "alarms": rare_words.alarms(rate * looked_at(rate), _LOOKS[rate], number, days, rng),
            "allowed": round(number * days / ALARM_DAYS, 1),
        }
        for rate, days in _RARE_DAYS.items()
    ]  # fmt: skip


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table and what is said below it."""
    rares = [one for one in found if one["kind"] == "rare"]
    found = [one for one in found if one["kind"] != "rare"]
    rows = [["change", *(f"{rate:,} a minute" for rate in RATES)]]
    rows += [
        [one["change"], *(f"{one['texts_95'][str(rate)]:,.0f} ({one['ideal_95'][str(rate)]:,.0f})" for rate in RATES)]
        for one in found[:-1]
    ]
    last, named = found[-1], found[-2]["texts_95"]["named"]
    untold = _listed([f"{found[-2]['untold_95'][str(rate)]:,.0f}" for rate in RATES])
    times = _listed(
        [f"{found[-2]['texts_95'][str(rate)] / found[-2]['untold_95'][str(rate)]:.2f}" for rate in RATES]
    )  # fmt: skip
    return (
        f"{table(rows)}\n\n"
        f"- An ideal that knows only that one of {_VOCABULARY:,} words will be new, and shares the budget among as "
        f"many, needs {untold} texts: the gateway needs {times} times as many.\n"
        f"- In 95 of 100 runs the new word was named after {named:,.0f} texts that were looked at.\n"
        f"- Traffic like the reference: {last['alarms']} alarms in {last['endpoint_days']:,} endpoint-days at "
        f"{last['rate']} texts a minute ({last['allowed']:g} allowed), and {last['words_named']:,} words named "
        f"without a reason in {last['looks_for_words']:,} looks."
        + "".join(
            f"\n- Rare words alone at {one['rate']:,} a minute: {one['alarms']} alarms in {one['endpoint_days']:,} "
            f"endpoint-days ({one['allowed']:g} allowed)."
            for one in rares
        )
        + "\n"
    )


def _listed(numbers: Sequence[str]) -> str:
    return f"{', '.join(numbers[:-1])} and {numbers[-1]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per change, then the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--references", type=int, default=5)
    arguments.add_argument("--runs", type=int, default=40)
    arguments.add_argument("--texts", type=int, default=130_000, help="texts without a change, per reference")
    arguments.add_argument("--rare", type=int, default=30, help="endpoints of rare words alone at each rate")
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
        if is_named:
            found[-1]["untold_95"] = ideals(bins, {}, change, among=_VOCABULARY)
        tell(found[-1])
    found.append(stationary(references, english, options.texts))
    tell(found[-1])
    for one in rare(options.rare, rng):
        found.append(one)
        tell(one)
    text = shown(found)
    print(text)
    if options.save:
        save("texts", found)
        put(DOCS / "drift.md", "texts", text)
    return 0
