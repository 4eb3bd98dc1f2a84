"""The text of ``/metrics``: a custom collector over a snapshot, formatted by prometheus_client.

Pure except for ``process_metrics``. Runs in a thread beside the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, chain
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from gateway.metrics.accumulator import Series, Snapshot
from gateway.metrics.catalog import CATALOG, REQUEST_SECONDS

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
        single: dict[str, list[tuple[Series, float]]] = {metric.name: [] for metric in CATALOG}
        histograms: dict[str, list[tuple[Series, Sequence[float]]]] = {metric.name: [] for metric in CATALOG}
        for series, value in chain(self._snapshot.counts, self._snapshot.shown()):
            single[series.metric].append((series, value))
        for series, numbers in self._snapshot.distributed():
            histograms[series.metric].append((series, numbers))
        for metric in CATALOG:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.type)
            family.samples = _Samples(partial(self._samples, single[metric.name], histograms[metric.name]))
            yield family
        if self._others is not None:
            yield from self._others.collect()

    def _samples(
        self, single: Iterable[tuple[Series, float]], histograms: Iterable[tuple[Series, Sequence[float]]]
    ) -> Iterator[Sample]:
        for series, value in single:
            yield Sample(series.metric, _labels(series), value)
        for series, numbers in histograms:
            yield from self._histogram(series, numbers)

    def _histogram(self, series: Series, numbers: Sequence[float]) -> Iterator[Sample]:
        name, labels = series.metric, _labels(series)
        *counts, total = numbers
        last = 0.0
        if _METRICS[name].type == "histogram":
            for number, (bound, last) in enumerate(zip(_bounds(series.bounds), accumulate(counts), strict=True)):
                seen = None
                if name == REQUEST_SECONDS.name:
                    endpoint, version, route = labels.values()
                    seen = self._snapshot.exemplars.get((endpoint, version, route, number))
                exemplar = Exemplar({"trace_id": seen[0]}, seen[1], seen[2]) if seen else None
                yield Sample(f"{name}_bucket", {**labels, "le": bound}, last, None, exemplar)
        yield Sample(f"{name}_count", labels, sum(counts))
        if not series.bounds or series.bounds[0] >= 0:  # a sum that can fall would look like a restart to Prometheus
            yield Sample(f"{name}_sum", labels, total)


class _Samples(list[Sample]):
    """Samples that are created while they are iterated.

    All at once would be a hundred thousand objects, and a garbage collection over them would stop the whole process for
    a tenth of a second.
    """

    def __init__(self, make: Callable[[], Iterator[Sample]]) -> None:
        super().__init__()
        self._make = make

    def __iter__(self) -> Iterator[Sample]:
        return self._make()


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
