"""The text of ``/metrics``: a custom collector over a snapshot, formatted by prometheus_client.

Pure except for ``process_metrics``. Runs in a thread beside the requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from gateway.metrics.catalog import CATALOG, OF_VARIABLES, REQUEST_SECONDS
from gateway.metrics.drift import Floats
from gateway.metrics.variables import BUILT_IN, LABEL

_METRICS: Final = {metric.name: metric for metric in CATALOG}
_OF_VARIABLES: Final = frozenset(metric.name for metric in OF_VARIABLES)

Declared = Collection[tuple[str, str, str]]
"""Endpoint, version and name of each declared variable."""


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

    def __init__(
        self,
        snapshot: Snapshot,
        others: Collector | None = None,
        brief: Declared | None = None,
    ) -> None:
        """``brief``: show the brief level of detail: built-in variables, except labels, only if declared here.

        None: show everything.
        """
        self._brief = brief
        self._snapshot = snapshot
        self._others = others

    def collect(self) -> Iterator[Family]:
        """See prometheus_client's ``Collector``."""
        single: dict[str, list[tuple[Series, float]]] = {metric.name: [] for metric in CATALOG}
        histograms: dict[str, list[tuple[Series, Floats]]] = {metric.name: [] for metric in CATALOG}
        for series, value in chain(self._snapshot.counted(), self._snapshot.shown()):
            if self._shows(series):
                single[series.metric].append((series, value))
        for series, numbers in self._snapshot.distributed():
            if self._shows(series):
                histograms[series.metric].append((series, numbers))
        for metric in CATALOG:
            if self._brief is not None and metric.is_detail:
                continue
            # OpenMetrics requires buckets in a histogram; without them it is a summary.
            kind = "summary" if self._brief is not None and metric.brief == () else metric.type
            family = Family(metric.name.removesuffix("_total"), metric.help, kind)
            family.samples = _Samples(partial(self._samples, single[metric.name], histograms[metric.name]))
            yield family
        if self._others is not None:
            yield from self._others.collect()

    def _shows(self, series: Series) -> bool:
        if self._brief is None:
            return True
        metric, labels = _METRICS[series.metric], series.labels
        if metric.is_detail or (isinstance(metric.brief, Mapping) and labels[-1] not in metric.brief):
            return False
        if series.metric in _OF_VARIABLES and labels[2] in BUILT_IN and labels[2] != LABEL:
            return labels[:3] in self._brief
        return True

    def _samples(
        self, single: Iterable[tuple[Series, float]], histograms: Iterable[tuple[Series, Floats]]
    ) -> Iterator[Sample]:
        for series, value in single:
            yield Sample(series.metric, _labels(series), value)
        for series, numbers in histograms:
            yield from self._histogram(series, numbers.tolist())

    def _histogram(self, series: Series, numbers: list[float]) -> Iterator[Sample]:
        name, labels = series.metric, _labels(series)
        *counts, total = numbers
        of_requests = name == REQUEST_SECONDS.name
        last = 0.0
        kept = _METRICS[name].brief if self._brief is not None else None
        if isinstance(kept, Mapping):
            kept = (*kept[series.labels[-1]], math.inf)
        if kept != ():
            seen: tuple[str, float, float] | None = None
            for number, (edge, bound, last) in enumerate(
                zip((*series.bounds, math.inf), _bounds(series.bounds), accumulate(counts), strict=True)
            ):
                if of_requests:
                    endpoint, version, route = series.labels
                    seen = self._snapshot.exemplars.get((endpoint, version, route, number)) or seen
                if kept is not None and edge not in kept and edge != math.inf:
                    continue
                exemplar = Exemplar({"trace_id": seen[0]}, seen[1], seen[2]) if seen else None
                seen = None
                yield Sample(f"{name}_bucket", {**labels, "le": bound}, last, None, exemplar)
        yield Sample(f"{name}_count", labels, sum(counts))
        if series.bounds[0] >= 0:  # a sum that can fall would look like a restart to Prometheus
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
