"""The text of /metrics: what prometheus_client's own classes say of the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import prometheus_client
import pytest
from prometheus_client import openmetrics

from gateway.metrics import catalog, exposition
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.exposition import Numbers
from gateway.metrics.observer import Observer

SHOWN = (catalog.BUILDS, catalog.VARIABLE_VALUE, catalog.VARIABLE_SCALAR, catalog.ROWS, catalog.IN_FLIGHT)
"""A counter, a gauge, a histogram, a summary, and a gauge without labels."""
VALUES = (0.0, 0.05, 0.1, 0.25, 0.9999, 1.0, 7.5)
"""Some are bounds: a bound belongs to its own bucket."""


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
        for labels in (
            ("e", "", "x")[: len(metric.labels)],
            ('a "quoted"\\name', "of\ntwo lines", "ü")[: len(metric.labels)],
        ):
            of = theirs_of.labels(*labels) if labels else theirs_of
            for value in VALUES:
                if metric.type == "counter":
                    of.inc(value)
                    numbers.count(metric, *labels).value += value
                elif metric.type == "gauge":
                    of.set(math.nan if value == 1.0 else value)
                    numbers.set(metric, math.nan if value == 1.0 else value, *labels)
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


def test_process_metrics_come_after_the_gateways() -> None:
    """CPU, memory and garbage collection of a single process."""
    text, _ = exposition.respond("", Numbers(Observer().snapshot(), others=exposition.process_metrics()))
    found = text.decode()
    assert found.index("gateway_build_info") < found.index("process_cpu_seconds_total") < found.index("python_gc_")
