"""The text of ``/metrics``: a custom collector over a snapshot, formatted by prometheus_client.

Pure except for ``process_metrics``. Runs in a thread beside the requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Marked
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from gateway.metrics.accumulator import Gauge, Histogram, Series, Snapshot, Value
from gateway.metrics.catalog import CATALOG

_METRICS: Final = {metric.name: metric for metric in CATALOG}


def respond(accept: str, numbers: Collector) -> tuple[bytes, str]:
    """Return the exposition in the form ``accept`` asks for, and its content type.

    Prometheus asks for OpenMetrics, which can carry trace ids on latency buckets; others get the older text form.
    """
    if "application/openmetrics-text" not in accept:
        return bytes(generate_latest(numbers)), CONTENT_TYPE_LATEST
    text = openmetrics.generate_latest(numbers)  # type: ignore[no-untyped-call]  # not annotated
    return bytes(text), openmetrics.CONTENT_TYPE_LATEST


class Numbers(Collector):
    """Collects a snapshot's metrics in the catalogue's order, then those of ``others``."""

    def __init__(self, snapshot: Snapshot, others: Collector | None = None) -> None:
        self._snapshot = snapshot
        self._others = others

    def collect(self) -> Iterator[Family]:
        """See prometheus_client's ``Collector``."""
        found: dict[str, list[tuple[Series, Value]]] = defaultdict(list)
        for series, value in self._snapshot.items():
            found[series.metric].append((series, value))
        for metric in CATALOG:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.type)
            # Created while they are written: all at once would be a hundred thousand objects, and a garbage collection
            # over them would stop the whole process for a tenth of a second.
            family.samples = self._samples(found[metric.name])  # type: ignore[assignment]  # it is read once
            yield family
        if self._others is not None:
            yield from self._others.collect()

    def _samples(self, found: Iterable[tuple[Series, Value]]) -> Iterator[Sample]:
        for series, value in found:
            if isinstance(value, Histogram):
                yield from self._histogram(series, value)
            else:
                yield Sample(series.metric, _labels(series), value.value if isinstance(value, Gauge) else value)

    def _histogram(self, series: Series, histogram: Histogram) -> Iterator[Sample]:
        name, labels = series.metric, _labels(series)
        counts, total = histogram.read()
        if _METRICS[name].type == "histogram":
            for number, (bound, last) in enumerate(zip(_bounds(histogram.bounds), accumulate(counts), strict=True)):
                seen = histogram.exemplars.get(number)
                exemplar = seen and Marked({"trace_id": seen.trace_id}, seen.seconds, seen.at)
                yield Sample(f"{name}_bucket", {**labels, "le": bound}, last, None, exemplar)
        yield Sample(f"{name}_count", labels, sum(counts))
        # A sum that can fall would look like a restart to Prometheus.
        if not histogram.bounds or histogram.bounds[0] >= 0:
            yield Sample(f"{name}_sum", labels, total)


def _labels(series: Series) -> dict[str, str]:
    return dict(zip(_METRICS[series.metric].labels, series.labels, strict=True))


@cache
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Return the values of the label ``le``, as Prometheus writes them."""
    return (*(str(floatToGoString(bound)) for bound in bounds), "+Inf")  # type: ignore[no-untyped-call]  # not annotated


def process_metrics() -> Collector:
    """Return a collector of this process's CPU, memory, file descriptors and garbage collection."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry
