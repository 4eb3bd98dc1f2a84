"""One of everything that is counted, with fixed numbers: what the recorded expositions in ``data/`` were made of."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway.metrics import catalog, drift
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.variable_counts import Served
from gateway.metrics.workers import Parent, Totals
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from preprocessing.types import Encoded

FAILURES = ("model_failed", "overloaded")
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def summed(*living: Snapshot, ended: Sequence[Snapshot] = ()) -> Snapshot:
    """Return the sum of what several workers have told their parent."""
    totals, pairs = Totals(), []
    for snapshot in (*ended, *living):
        parents, of_worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        totals.add(parents)
        Parent(of_worker).close(snapshot)
        pairs.append((parents, of_worker))
    for parents, _ in pairs[: len(ended)]:
        totals.end(parents)
    for parents, _ in pairs[len(ended) :]:
        totals.hear(parents)
    merged = totals.sum()
    for pair in pairs:
        for one in pair:
            one.close()
    return merged


def happen(observer: Any, times: int = 1) -> None:
    """Let everything happen, ``times`` times, as the pipeline and the reconcile loop tell it."""
    reference = {
        "token_length": drift.scalar_bins([float(n) for n in range(5, 105)]),
        "animal": drift.enum_bins({"cat": 60, 'a "dog"\\': 40}),
    }
    served = {
        "t/1": Served("t", "1", is_text=True, labels=("GOOD", "BAD"), reference=reference),
        "t/2": Served("t", "2", is_text=True, labels=("GOOD", "BAD")),
    }
    declared = MetricSpec(
        "t/1", None,
        (
            MetricVariable("x", "scalar", (-1.0, 0.5, 100.0)), MetricVariable("animal", "enum", ("cat", 'a "dog"\\')),
            MetricVariable("v", "value"), MetricVariable("n", "counter"), MetricVariable("gone", "scalar", (1.0,)),
        ),
    )  # fmt: skip
    observer.publish(catalog.BUILD_INFO, 1, "1.2.3")
    observer.watch.configure(served, {"t/1": declared}, 1.0)
    observer.expect([("t", "1", "stable"), ("t", "2", "canary")])
    for i in range(12 * times):
        trace = Trace("id", TRACEPARENT if i % 4 == 0 else "")
        trace.endpoint, trace.version, trace.url, trace.route = "t", "1", "t/1", "stable"
        if i % 3 == 0:
            trace.version, trace.url, trace.route = "2", "t/2", "canary"
        trace.outcome = ("ok", "ok", "ok", "model_failed", "input_refused")[i % 5]
        trace.rows, trace.tokens, trace.truncated = 1 + i % 3, 7 + i, i % 4 == 0
        trace.total_ns, trace.prepare_ns, trace.queue_ns = 1 << (18 + i % 12), 1 << (10 + i % 12), 1 << (8 + i % 12)
        trace.infer_ns, trace.finish_ns = 1 << (16 + i % 12), 1 << (9 + i % 12)
        trace.encoded = [Encoded(np.zeros(7 + i, dtype=np.int64), None, i % 2, i % 4 == 0)]
        score = 0.5 + (i % 8) / 16
        trace.body = {"x": i / 4 - 2, "animal": ("cat", 'a "dog"\\', "cow")[i % 3], "v": float(i), "n": i}
        trace.answer = {"label": "GOOD", "score": score, "scores": {"GOOD": score, "BAD": 1 - score}}
        observer.started()
        observer.finished(trace)
        observer.text_calls("t", "1").called(1 + i, 64 * (1 + i), 50 * (1 + i))
        observer.count(catalog.CACHE, "t", "1", ("hit", "miss")[i % 2])
        observer.count(catalog.SHADOWS, "t", "2", ("agreed", "differed", "failed")[i % 3])
        if i % 3 < 2:
            observer.observe(catalog.SHADOW_DIFFERENCE, i / 100, "t", "2")
    observer.count(catalog.FALLBACKS, "t", "2", "model_failed")
    observer.started()
    observer.waited(0.25)
    observer.count(catalog.RECONCILES, "changed")
    observer.count(catalog.BUILDS, "ok")
    observer.publish(catalog.LAST_CONTACT, 1_700_000_000.5)
    observer.publish(catalog.POLL, 60.0)
    observer.faults(["canary t", "nonsense"])
    observer.show(catalog.ENDPOINT_READY, {("t", "1"): True, ("old", ""): True})
    observer.show(catalog.ENDPOINT_READY, {("t", "1"): True, ("t", "2"): False})
    observer.show(catalog.BACKEND_UP, {("a:8001", "default"): True, ("b:8001", "a10"): False})
    observer.show(catalog.BACKEND_UP, {("a:8001", "default"): True})
    observer.show(catalog.POOL_WAITING, {("default",): 0, ("a10",): 2})
    observer.show(catalog.POOL_WAITING, {("default",): 0})
    observer.show(catalog.MODEL_INFO, {("t", "1", "m1", "name\nof two lines", "", "default"): 1})
    observer.show(catalog.MODEL_INFO, {("t", "1", "m2", "name", "https://clearml/m2", "a10"): 1})
    served["t/1"] = Served("t", "1", is_text=True, labels=("GOOD", "BAD"), reference={"animal": reference["animal"]})
    observer.watch.configure(served, {"t/1": declared}, 1.0)
