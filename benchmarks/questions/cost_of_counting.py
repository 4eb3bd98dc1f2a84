"""What does counting one request cost, in CPU time of one thread?

Finished traces of short texts go through the observer in batches of sixteen, as in the gateway, and are added up now
and then; the rest of the gateway is missing. By the observer's clock they arrive at ten thousand a second: as in a busy
gateway, a share of them is drawn for the built-in variables. In the last row, all are counted and examined.
``cost_of_observing`` measures the same from outside, with the gateway. ``--save`` keeps the numbers and puts them into
``docs/metrics.md``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.shared import corpus
from benchmarks.shared.command import parser, tell
from benchmarks.shared.results import DOCS, put, save
from gateway.metrics import drift, exposition, texts
from gateway.metrics.drift import Bins
from gateway.metrics.observer import Observer
from gateway.metrics.served import Served
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from preprocessing.types import ParsedRequest, Prepared

TAKES = "10 seconds"
SAVES = "results/counting.json"
_BATCH, _BATCHES, _ROUNDS, _PER_SETTLING = 16, 1250, 9, 125
_PLAIN, _TEXTS, _DRIFT, _DECLARED, _ALL = (
    "requests and stages", "and built-in variables", "and references of drift", "and two declared variables",
    "and all texts looked at",
)  # fmt: skip
_RATE = 10_000
"""Requests a second, by the observer's clock."""


class _Row:
    n_tokens, n_unknown, truncated = 17, 1, False


def _trace(text: str) -> Trace:
    trace = Trace("id")
    trace.endpoint, trace.version, trace.url, trace.route = "e", "1", "e/1", "direct"
    trace.rows, trace.tokens, trace.encoded = 1, 17, [_Row()]
    trace.total_ns, trace.prepare_ns, trace.queue_ns = 2_000_000, 100_000, 10_000
    trace.infer_ns, trace.finish_ns = 1_800_000, 20_000
    trace.body = {"text": text}
    trace.prepared = Prepared([], ParsedRequest([text], is_batch=False))
    trace.answer = {"label": "GOOD", "score": 0.83, "scores": {"GOOD": 0.83, "BAD": 0.17}}
    return trace


def _references() -> dict[str, Bins]:
    rng = np.random.default_rng(0)
    scores = drift.scalar_bins(rng.uniform(0.5, 1, 2000))
    return {
        "token_length": drift.scalar_bins(rng.integers(10, 30, 2000).astype(float)), "top_score": scores,
        "entropy": drift.scalar_bins(rng.uniform(0, 1, 2000)), "score": scores,
        "predicted_label": drift.enum_bins({"GOOD": 60, "BAD": 40}), "script": drift.enum_bins({"latin": 100}),
        "language": drift.enum_bins({"en": 95, "none": 5}), "duplicate": drift.enum_bins({"false": 90, "true": 10}),
        "letter_case": drift.enum_bins({"mixed": 90, "lower": 10}),
    }  # fmt: skip


def measure(served: Mapping[str, Served], specs: Mapping[str, MetricSpec]) -> tuple[float, float]:
    """Return microseconds of CPU per request and milliseconds per exposition, medians of the rounds."""
    later: list[Callable[[], None]] = []
    now = 0.0
    observer = Observer(later=lambda call, _: later.append(call), clock=lambda: now)
    observer.watch.configure(served, specs, 1.0)
    traces = [_trace(text) for text in corpus.Corpus().texts("short", _BATCH * _BATCHES)]
    requests, scrapes = [], []
    for _ in range(_ROUNDS):
        began = time.process_time_ns()
        for batch in range(_BATCHES):
            for trace in traces[batch * _BATCH : (batch + 1) * _BATCH]:
                observer.started()
                observer.finished(trace)
            for call in later:
                call()
            later.clear()
            now += _BATCH / _RATE
            if batch % _PER_SETTLING == 0:
                observer.settle()
        requests.append((time.process_time_ns() - began) / (_BATCH * _BATCHES) / 1e3)
        began = time.process_time_ns()
        exposition.render(observer.snapshot())
        scrapes.append((time.process_time_ns() - began) / 1e6)
    return round(statistics.median(requests), 2), round(statistics.median(scrapes), 2)


def shown(found: Mapping[str, Mapping[str, float]] | None) -> str:
    """Return the text of the page; without a result, one that says it was not measured."""
    if found is None:
        return "What counting one request costs in process was not measured on a quiet machine yet.\n"
    cost = {name: f"{one['us_per_request']:.1f}" for name, one in found.items()}
    scrapes = [one["ms_per_scrape"] for one in found.values()]
    return (
        f"Counting one short text with two labels in process, at {_RATE:,} a second (CPU of one thread, medians of "
        f"{_ROUNDS} rounds): {cost[_PLAIN]} µs for the request and its stages, {cost[_TEXTS]} µs with the built-in "
        f"variables, {cost[_DRIFT]} µs with references of drift, {cost[_DECLARED]} µs with two declared variables; "
        f"{cost[_ALL]} µs if every text and every answer is counted. Writing `/metrics` takes {min(scrapes):.1f} to "
        f"{max(scrapes):.1f} ms.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON object."""
    options = parser(__name__, __doc__, saves=SAVES).parse_args(argv)
    text = Served("e", "1", is_text=True, labels=("GOOD", "BAD"))
    watched = Served(
        "e", "1", is_text=True, labels=("GOOD", "BAD"), reference=_references(), words=corpus.usual_words()
    )
    declared = MetricSpec("e/1", None, (
        MetricVariable("score", "scalar", tuple(0.1 * i for i in range(1, 10))),
        MetricVariable("label", "enum", ("GOOD", "BAD")),
    ))  # fmt: skip
    found = {
        _PLAIN: measure({}, {}),
        _TEXTS: measure({"e/1": text}, {}),
        _DRIFT: measure({"e/1": watched}, {}),
        _DECLARED: measure({"e/1": watched}, {"e/1": declared}),
    }
    texts.MAX_A_SECOND = texts.MAX_COUNTED = 1_000_000  # type: ignore[misc]
    found[_ALL] = measure({"e/1": watched}, {"e/1": declared})
    report = {name: {"us_per_request": us, "ms_per_scrape": ms} for name, (us, ms) in found.items()}
    tell(report)
    if options.save:
        save("counting", report)
        put(DOCS / "metrics.md", "counting", shown(report))
    return 0
