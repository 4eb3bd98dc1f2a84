"""The text of /metrics: what prometheus_client's own classes say of the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import prometheus_client
import pytest
from prometheus_client import openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway.metrics import catalog, exposition
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.exposition import Numbers
from gateway.metrics.observer import Observer
from gateway.trace import Trace
from tests.expositions import counted

SHOWN = (catalog.BUILDS, catalog.VARIABLE_VALUE, catalog.VARIABLE_SCALAR, catalog.ROWS, catalog.IN_FLIGHT)
"""A counter, a gauge, a histogram, a summary, and a gauge without labels."""
VALUES = (0.0, 0.05, 0.1, 0.25, 0.9999, 1.0, 7.5)
"""Some are bounds: a bound belongs to its own bucket."""
LABELS = ("e", "", "x"), ('a "quoted"\\name', "of\ntwo lines", "ü")


@pytest.mark.parametrize(
    ("accept", "theirs"),
    [
        ("*/*", prometheus_client.generate_latest),
        ("application/openmetrics-text", openmetrics.exposition.generate_latest),
    ],
)
def test_exposition_is_that_of_prometheus_clients_classes(accept: str, theirs: Callable[[Any], bytes]) -> None:
    """Every line of both forms; families in the order of the catalogue; whatever a label says."""
    numbers, registry = Accumulator(), prometheus_client.CollectorRegistry()
    classes: dict[str, Any] = {
        "counter": prometheus_client.Counter, "gauge": prometheus_client.Gauge,
        "histogram": prometheus_client.Histogram, "summary": prometheus_client.Summary,
    }  # fmt: skip
    for metric in (one for one in catalog.CATALOG if one in SHOWN):
        more = {"buckets": metric.buckets} if metric.buckets else {}
        theirs_of = classes[metric.type](metric.name, metric.help, metric.labels, registry=registry, **more)
        for labels in (named[: len(metric.labels)] for named in LABELS):
            of = theirs_of.labels(*labels) if labels else theirs_of
            for value in VALUES:
                if metric.type == "counter":
                    of.inc(value)
                    numbers.count(metric, *labels, by=value)
                elif metric.type == "gauge":
                    of.set(math.nan if value == 1.0 else value)
                    numbers.publish(metric, math.nan if value == 1.0 else value, *labels)
                else:
                    of.observe(value)
                    numbers.distribution(metric, *labels).observe((value,))
    names = tuple(metric.name.removesuffix("_total") for metric in SHOWN)

    def lines(text: bytes) -> list[str]:
        found = (line for line in text.decode().split("\n") if "_created" not in line)
        return [line for line in found if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(names)]

    assert lines(theirs(registry)) == lines(exposition.respond(accept, Numbers(numbers.snapshot()))[0])


def test_a_sum_that_can_fall_is_not_shown() -> None:
    """It would look like a restart."""
    numbers = Accumulator()
    numbers.distribution(catalog.VARIABLE_SCALAR, "e", "1", "x", bounds=(-1.0, 1.0)).observe((-0.5, 3.0))
    text = exposition.respond("", Numbers(numbers.snapshot()))[0].decode()
    assert 'gateway_variable_scalar_count{endpoint="e",variable="x",version="1"} 2.0' in text
    assert "gateway_variable_scalar_sum{" not in text


CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ASKED = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5"
"""What Prometheus accepts."""


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
    for ms, parent, outcome in (
        (4, CALLER.replace("4bf9", "aaaa"), "ok"), (4.5, CALLER, "ok"), (60_000, CALLER, "ok"), (40, "", "ok"),
        (20, CALLER, "model_failed"),
    ):  # fmt: skip
        trace = Trace("id", parent)
        trace.endpoint, trace.outcome, trace.total_ns = "e", outcome, int(ms * 1e6)
        observer.finished(trace)
    text, _ = exposition.respond(ASKED, Numbers(observer.snapshot()))
    assert {"0.005": (CALLER[3:35], 0.0045), "+Inf": (CALLER[3:35], 60.0)} == marks(text)


async def test_metrics_route_answers_in_the_form_that_is_asked_for_and_names_served_models(stack: Any) -> None:
    """By Accept, with the request's own trace id. A version has its model's id, name and ClearML address; a replaced
    model is gone.
    """
    stack.add_text_model("m1")
    stack.registry.models["m1"] = replace(stack.registry.models["m1"], link="https://clearml/models/m1")
    stack.registry.add_endpoint("t", "m1", version="1")
    stack.load("t/1")
    await stack.served("t/1")
    await stack.client.post("/serve/t/1", json={"text": "good"}, headers={"traceparent": CALLER})
    reply = await stack.client.get("/metrics", headers={"accept": ASKED})
    assert {CALLER[3:35]} == {trace_id for trace_id, _ in marks(reply.content).values()}
    plain = await stack.client.get("/metrics")
    assert (True, False) == (plain.headers["content-type"].startswith("text/plain"), b"trace_id" in plain.content)
    observer = stack.gateway.observer
    (named,) = counted(observer.snapshot(), catalog.MODEL_INFO)
    assert ("t", "1", "m1", "https://clearml/models/m1", "default") == (*named[:3], *named[4:])
    observer.show(catalog.MODEL_INFO, {("t", "1", "m2", "m2", "", "default"): 1})
    found = counted(observer.snapshot(), catalog.MODEL_INFO)
    assert ["m2"] == [labels[2] for labels in found]
