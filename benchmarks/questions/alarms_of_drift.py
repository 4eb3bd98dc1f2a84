"""How often does drift alarm without a reason, and after how many texts does it find a change?

Window counts of ten variables are drawn at random; no request is sent. Every simulated endpoint has its own references
(20,000 values), so chance in them counts too. Without a reason: 10,000 endpoint-days of 15-minute windows at each of
three rates. Changes: 100 endpoints each, after half a day without one. For comparison, a CUSUM looks at every text,
knows both distributions and which variable changes, and has the same budget over as many variables. ``--save`` keeps
the numbers and puts the tables into ``docs/drift.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from benchmarks.shared import cusum
from benchmarks.shared.command import parser, tell
from benchmarks.shared.results import DOCS, put, save, table
from gateway.metrics import evidence
from gateway.metrics.accumulator import Floats
from gateway.metrics.drift import ALARM_DAYS, shares
from gateway.metrics.evidence import Stakes

TAKES = "a minute"
SAVES = "results/drift.json"
RATES: Final = (10, 300, 10_000)
"""Texts a minute."""
_WINDOW_S: Final = {10: 60.0, 300: 5.0, 10_000: 5.0}
"""Seconds between looks in the runs with a change. A gateway looks every 5 s, in which none may arrive at ten texts a
minute.
"""
_SIZE: Final = 20_000
_EVEN: Final = np.array([*[0.1] * 10, 0.0])
VARIABLES: Final[dict[str, tuple[Floats, bool]]] = {
    "token_length": (_EVEN, True), "unknown_token_ratio": (np.array([0.9, 0.04, 0.03, 0.02, 0.01, 0.0]), True),
    "truncated": (np.array([0.97, 0.03, 0.0, 0.0]), False),
    "predicted_label": (np.array([0.5, 0.5, 0.0, 0.0]), False),
    "top_score": (_EVEN, True), "entropy": (_EVEN, True),
    "script": (np.array([0.98, 0.01, 0.006, 0.004, 0.0, 0.0]), False),
    "letter_case": (np.array([0.6, 0.3, 0.08, 0.02, 0.0, 0.0]), False),
    "declared share": (np.array([0.7, 0.15, 0.1, 0.04, 0.01, 0.0]), True),
    "declared category": (np.array([0.98, 0.02, 0.0, 0.0]), False),
}  # fmt: skip


def _longer(times: float, sigma: float = 0.6) -> Floats:
    """Lognormal lengths by tenths of the reference, if all lengths are multiplied by ``times``."""
    normal = NormalDist()
    bounds = [normal.cdf(normal.inv_cdf(i / 10) - math.log(times) / sigma) for i in range(1, 10)]
    return np.array([*np.diff([0.0, *bounds, 1.0]), 0.0])


_OTHER = np.array([0.9 * 0.98, 0.9 * 0.01 + 0.1, 0.9 * 0.006, 0.9 * 0.004, 0.0, 0.0])
CHANGES: Final[dict[str, tuple[str, Floats]]] = {
    "a label from 50 to 60 %": ("predicted_label", np.array([0.6, 0.4, 0.0, 0.0])),
    "a label from 50 to 90 %": ("predicted_label", np.array([0.9, 0.1, 0.0, 0.0])),
    "10 % of the texts in another script": ("script", _OTHER / _OTHER.sum()),
    "texts 1.3 times as long": ("token_length", _longer(1.3)),
    "twice as many texts with unknown tokens": ("unknown_token_ratio", np.array([0.8, 0.08, 0.06, 0.04, 0.02, 0.0])),
    "5 % more in capitals": ("letter_case", np.array([0.57, 0.285, 0.076, 0.069, 0.0, 0.0])),
}


class Endpoints:
    """Many endpoints, each with its own references."""

    def __init__(self, number: int, random: np.random.Generator, variables: Mapping[str, tuple[Floats, bool]]) -> None:
        self._random, self._number, self._parts = random, number, []
        for name, (p, ordered) in variables.items():
            references = [shares(row.astype(float)) for row in random.multinomial(_SIZE, p / p.sum(), size=number)]
            expected = [evidence.bets(reference, _SIZE, ordered=ordered) for reference in references]
            most = max(map(len, expected))
            gains, weights = np.zeros((number, most, len(p))), np.zeros((number, most))
            for i, (reference, q) in enumerate(zip(references, expected, strict=True)):
                gains[i, : len(q)], weights[i, : len(q)] = np.log(q / reference), 1 / len(q) / len(VARIABLES)
            purse = Stakes.new(number, most)
            self._parts.append((name, p / p.sum(), gains, weights, purse, math.log(most * ALARM_DAYS) + 4))

    def step(self, texts: int, days: float, changed: Mapping[str, Floats] | None = None) -> Floats:
        """Give ``texts`` to each endpoint; return the evidence of each."""
        found = np.zeros(self._number)
        for name, p, gains, weights, purse, most in self._parts:
            counts = self._random.multinomial(texts, (changed or {}).get(name, p), size=self._number).astype(float)
            grown = np.matmul(gains, counts[:, :, None])[:, :, 0]
            found += (purse.step(grown, float(texts), days, _SIZE, most) * weights).sum(axis=1)
        return found


def stationary(rate: int, endpoint_days: int) -> dict[str, Any]:
    """Count the alarms for traffic that equals its reference."""
    number, days, window_s = -(-endpoint_days // 30), 30, 900.0
    endpoints = Endpoints(number, np.random.default_rng(rate), VARIABLES)
    alarms, was_on = np.zeros(number), np.zeros(number, dtype=bool)
    for _ in range(int(days * evidence.DAY_S / window_s)):
        is_on = endpoints.step(int(rate * window_s / 60), window_s / evidence.DAY_S) >= ALARM_DAYS
        alarms += is_on & ~was_on
        was_on = is_on
    return {
        "kind": "stationary", "rate": rate, "endpoint_days": number * days, "alarms": int(alarms.sum()),
        "allowed": number * days / ALARM_DAYS, "endpoints_that_alarmed": int((alarms > 0).sum()), "endpoints": number,
    }  # fmt: skip


def found_after(rate: int, change: str, runs: int) -> dict[str, Any]:
    """Return how many texts half and 95 of 100 endpoints need until they alarm, next to the ideal."""
    name, q = CHANGES[change]
    window_s = _WINDOW_S[rate]
    texts, days = round(rate * window_s / 60), window_s / evidence.DAY_S
    # The other variables find nothing, but their share of the budget is spent.
    endpoints = Endpoints(runs, np.random.default_rng(rate), {name: VARIABLES[name]})
    for _ in range(int((0.5 if rate == RATES[0] else 0.05) / days)):
        endpoints.step(texts, days)
    needed, seen = np.full(runs, math.inf), 0
    while np.isinf(needed).any() and seen < 1_000_000:
        seen += texts
        needed[(endpoints.step(texts, days, {name: q}) >= ALARM_DAYS) & np.isinf(needed)] = seen
    half, most = np.quantile(needed, [0.5, 0.95], method="inverted_cdf")
    return {
        "kind": "change", "change": change, "rate": rate, "texts_half": half, "texts_95": most,
        "ideal_95": cusum.texts_needed(VARIABLES[name][0], q, rate, len(VARIABLES)), "texts_a_look": texts,
    }  # fmt: skip


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of the page for a saved result."""
    rows = [["texts a minute", "endpoint-days", "false alarms", "allowed", "endpoints with one"]]
    rows += [
        [f"{one['rate']:,}", f"{one['endpoint_days']:,}", str(one["alarms"]), f"{one['allowed']:.0f}",
         f"{one['endpoints_that_alarmed']} of {one['endpoints']}"]
        for one in found if one["kind"] == "stationary"
    ]  # fmt: skip
    changed = [["change", *(f"{rate:,} a minute" for rate in RATES)]]
    for change in CHANGES:
        at = {one["rate"]: one for one in found if one.get("change") == change}
        changed.append([change, *(f"{at[rate]['texts_95']:,.0f} ({at[rate]['ideal_95']:,.0f})" for rate in RATES)])
    return f"{table(rows)}\n\n{table(changed)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per run, then the tables."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--endpoint-days", type=int, default=10_000)
    arguments.add_argument("--runs", type=int, default=100)
    options = arguments.parse_args(argv)
    found = []
    for rate in RATES:
        for change in CHANGES:
            found.append(found_after(rate, change, options.runs))
            tell(found[-1])
    for rate in RATES:
        found.append(stationary(rate, options.endpoint_days))
        tell(found[-1])
    text = shown(found)
    print(text)
    if options.save:
        save("drift", found)
        put(DOCS / "drift.md", "alarms", text + "\n")
    return 0
