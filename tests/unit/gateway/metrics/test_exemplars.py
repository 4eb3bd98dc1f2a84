"""Trace ids on the buckets of latencies, in the form of the exposition that supports them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.metrics import catalog, exposition
from gateway.metrics.exposition import Numbers
from gateway.metrics.observer import Observer
from gateway.trace import Trace
from tests.unit.gateway.metrics.summed import counted, summed

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ASKED = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5"


def answered(observer: Observer, ms: float, parent: str = "", outcome: str = "ok") -> None:
    """Count one finished request."""
    trace = Trace("id", parent)
    trace.endpoint, trace.version, trace.route, trace.outcome, trace.rows = "e", "1", "direct", outcome, 1
    trace.total_ns = int(ms * 1e6)
    observer.started()
    observer.finished(trace)


def shown(observer: Observer, accept: str) -> tuple[bytes, str]:
    """Return the exposition of one process."""
    return exposition.respond(accept, Numbers(observer.snapshot()))


def marks(text: bytes) -> dict[str, tuple[str, float]]:
    """Return exemplars by bucket: trace id and value."""
    return {
        sample.labels["le"]: (sample.exemplar.labels["trace_id"], round(sample.exemplar.value, 9))
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.exemplar
    }


def test_newest_trace_of_a_bucket_is_its_exemplar() -> None:
    """In the bucket of its latency; requests without a trace, and failures, leave none."""
    observer = Observer()
    answered(observer, 4, CALLER.replace("4bf9", "aaaa"))
    answered(observer, 4.5, CALLER)
    answered(observer, 60_000, CALLER)
    answered(observer, 40)
    answered(observer, 20, CALLER, outcome="model_failed")
    text, content_type = shown(observer, ASKED)
    assert content_type.startswith("application/openmetrics-text")
    assert {"0.005": (CALLER[3:35], 0.0045), "+Inf": (CALLER[3:35], 60.0)} == marks(text)
    assert b"trace_id" not in shown(observer, "*/*")[0]


def test_workers_share_theirs() -> None:
    """Each bucket has the newest of all workers."""
    workers = Observer(), Observer()
    for observer, letter, times in zip(workers, "ab", ((4, 40), (4.5,)), strict=True):
        for ms in times:
            answered(observer, ms, CALLER.replace("4bf92f3577b34da6a3ce929d0e0e4736", letter * 32))
    first, second = (observer.snapshot() for observer in workers)
    for merged in (summed(first, second), summed(second, ended=[first])):
        text, _ = exposition.respond(ASKED, Numbers(merged))
        assert {"0.005": ("b" * 32, 0.0045), "0.05": ("a" * 32, 0.04)} == marks(text)


async def test_metrics_route_answers_in_the_form_that_is_asked_for(stack: Any) -> None:
    """By Accept, as Prometheus sends it, with the request's own trace id."""
    stack.deploy("t")
    await stack.served("t")
    await stack.client.post("/serve/t", json={"text": "good"}, headers={"traceparent": CALLER})
    reply = await stack.client.get("/metrics", headers={"accept": ASKED})
    assert {CALLER[3:35]} == {trace_id for trace_id, _ in marks(reply.content).values()}
    plain = await stack.client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")


async def test_served_models_are_named_with_their_page(stack: Any) -> None:
    """A version's model id, name and ClearML address; a replaced model has no number."""
    stack.add_text_model("m1")
    stack.registry.models["m1"] = replace(stack.registry.models["m1"], link="https://clearml/models/m1")
    stack.registry.add_endpoint("t", "m1", version="1")
    stack.load("t/1")
    await stack.served("t/1")
    (named,) = counted(stack.gateway.observer.snapshot(), catalog.MODEL_INFO)
    assert ("t", "1", "m1", "https://clearml/models/m1", "default") == (*named[:3], *named[4:])
    stack.gateway.observer.show(catalog.MODEL_INFO, {("t", "1", "m2", "m2", "", "default"): 1})
    found = counted(stack.gateway.observer.snapshot(), catalog.MODEL_INFO)
    assert {"m1": True, "m2": False} == {labels[2]: math.isnan(value) for labels, value in found.items()}
