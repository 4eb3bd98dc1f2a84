"""Counts the variables of answered requests: the built-in ones of text tasks, and those that users declare.

Both are declarations (``MetricVariable``), counted alike in the metrics ``gateway_variable_*``. A variable's name is a
label, so that the set of metrics is fixed and the numbers of several workers can be added. ``texts`` says what the
built-in ones are and computes them; declared ones are found in the answer, in the request and in what hooks report.

``Observer`` passes on requests after they were answered. Nothing here can fail a request: an unusable value is counted
as ignored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import numpy as np

from gateway.metrics import catalog, texts
from gateway.metrics.accumulator import Accumulator, Distribution
from gateway.metrics.declared import Declared, declared_for, find
from gateway.metrics.drift import ABOVE, MISSING, OTHER, Bins, Reference, bin_of, is_ordered
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace

LARGEST: Final = 1e290
"""Larger numbers, and below its negative, count as ``not_finite``. So sums over any number of requests stay finite, and
no caller spoils a variable's sum for all that come after.
"""

_log = logging.getLogger("triton_gateway.metrics")


@dataclass(frozen=True, slots=True)
class Served:
    """A served version: its labels for metrics, its task's labels, its reference."""

    endpoint: str
    version: str
    is_text: bool = False
    labels: tuple[str, ...] = ()
    reference: Reference = field(default_factory=Reference)


class Watch:
    """Counts the variables of every served version, for one event loop. ``chance`` returns numbers in [0, 1)."""

    def __init__(
        self,
        numbers: Accumulator,
        chance: Callable[[], float],
        clock: Callable[[], float],
        complain: Callable[[], None],
    ) -> None:
        """``complain`` logs the current exception."""
        self.numbers, self.chance, self.complain = numbers, chance, complain
        self.draws = texts.Draws(texts.MAX_A_SECOND, chance, clock), texts.Draws(texts.MAX_A_SECOND, chance, clock)
        """Of texts, and of embeddings."""
        self._watched: dict[str, WatchedVersion] = {}

    def configure(
        self, served: Mapping[str, Served], specs: Mapping[str, MetricSpec], default_frequency: float
    ) -> None:
        """Watch these urls from now on. The counts of variables that are no longer declared stay."""
        known, self._watched = self._watched, {}
        references: dict[tuple[str, ...], float] = {}
        for url, version in served.items():
            # With a thousand versions, usually one changes at a time: unchanged ones keep their state.
            source = (version, declared_for(url, specs, default_frequency))
            watched = known.get(url)
            if watched is None or watched.source != source:
                watched = WatchedVersion(self, *source)
            self._watched[url] = watched
            references |= {
                (version.endpoint, version.version, name, bin_name): count
                for name, bins in watched.references.items() for bin_name, count in bins.items()
            }  # fmt: skip
        self.numbers.show(catalog.DRIFT_REFERENCE, references)

    def answered(self, url: str, traces: Sequence[Trace]) -> None:
        """Count the variables of requests that one version has answered."""
        watched = self._watched.get(url)
        if watched is not None:
            watched.see(traces)

    def learned(self, url: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return the usual words of one version's texts, and the mean of its embeddings; empty if unknown."""
        watched = self._watched.get(url)
        text = None if watched is None else watched.text
        return ((), ()) if text is None else (text.usual.words, text.cosines.mean)


class WatchedVersion:
    """All variables of one served version. A declared one replaces the built-in one of the same name."""

    def __init__(self, watch: Watch, served: Served, declared: Declared) -> None:
        self.source = served, declared
        self._watch, numbers = watch, watch.numbers
        self._frequency = declared.frequency
        self._declared = [Variable(numbers, served, v) for v in declared.variables]
        self.text = texts.TextVariables(served.labels, served.reference, watch.draws) if served.is_text else None
        own = {variable.name for variable in self._declared}
        self._built_in = {
            v.name: Variable(numbers, served, v)
            for v in (self.text.declared if self.text is not None else ()) if v.name not in own
        }  # fmt: skip
        self.references = dict(_usable(served, [*self._declared, *self._built_in.values()]))
        """The bins of each variable that has a reference."""

    def see(self, traces: Sequence[Trace]) -> None:
        """Count answered requests."""
        if self.text is not None:
            for name, values in self.text.read(traces):
                if values and name in self._built_in:
                    self._built_in[name].take(values)
        if self._declared and self._frequency < 1:
            traces = [trace for trace in traces if self._watch.chance() < self._frequency]
        for variable in self._declared:
            for trace in traces:
                try:
                    variable.read((trace.answer, trace.body, trace.custom))
                except Exception:  # noqa: BLE001 - values may be users' objects, which may raise anything
                    variable.ignore("wrong_type")
                    self._watch.complain()


def _usable(served: Served, variables: Iterable[Variable]) -> Iterator[tuple[str, Bins]]:
    for variable in variables:
        bins = served.reference.bins.get(variable.name)
        if bins is not None and variable.has_bins(bins):
            yield variable.name, bins
        elif bins is not None:
            _log.warning(
                "%s/%s: drift of %s is not judged: its reference has other bins than the variable; capture a new one",
                served.endpoint, served.version, variable.name,
            )  # fmt: skip


class Variable:
    """One variable of one version: a ``scalar`` (a histogram of numbers), an ``enum`` (a count per category), or a
    ``value`` (the newest number). Series begin with their first value.
    """

    __slots__ = ("_buckets", "_kind", "_numbers", "_of", "_path", "_seen", "name")

    def __init__(self, numbers: Accumulator, served: Served, declared: MetricVariable) -> None:
        self.name, self._kind, self._buckets = declared.name, declared.type, declared.buckets
        self._path = tuple(declared.name.split("."))
        self._numbers = numbers
        self._of = served.endpoint, served.version, declared.name
        self._seen: Distribution | None = None

    def read(self, places: Sequence[object]) -> None:
        """Count the values of a request, which are in the first place that has them."""
        values = find(places, self._path)
        if not values:
            self.ignore("missing")
        for value in values:
            self._see(value)

    def _see(self, value: object) -> None:
        if isinstance(value, np.generic):
            value = value.item()
        if self._kind == "enum" and isinstance(value, str | int | float):
            self.take((str(value),))
        elif self._kind == "enum" or not isinstance(value, int | float):  # bool is an int: False and True are 0 and 1
            self.ignore("wrong_type")
        elif not -LARGEST <= value <= LARGEST:
            self.ignore("not_finite")
        elif self._kind == "scalar":
            self.take((float(value),))
        else:
            self._numbers.publish(catalog.VARIABLE_VALUE, float(value), *self._of)

    def take(self, values: Sequence[Any]) -> None:
        """Count numbers within ``LARGEST`` of a scalar, or categories of an enum; unknown ones are ``other``."""
        if self._kind == "scalar":
            if self._seen is None:
                bounds = cast("tuple[float, ...]", self._buckets)
                self._seen = self._numbers.distribution(catalog.VARIABLE_SCALAR, *self._of, bounds=bounds)
            self._seen.observe(values)
            return
        for category, times in Counter(values).items():
            known = category if category in self._buckets else OTHER
            self._numbers.count(catalog.VARIABLE_ENUM, *self._of, known, by=times)

    def ignore(self, reason: Literal["missing", "wrong_type", "not_finite"]) -> None:
        """Count an unusable value."""
        self._numbers.count(catalog.VARIABLE_IGNORED, *self._of, reason)

    def has_bins(self, reference: Bins) -> bool:
        """Whether this variable's counts can be compared with ``reference``."""
        if self._kind == "scalar":
            return reference.keys() <= {*(bin_of(float(bound)) for bound in self._buckets), ABOVE, MISSING}
        return self._kind == "enum" and not is_ordered(reference)
