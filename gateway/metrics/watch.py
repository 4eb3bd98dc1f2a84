"""Counts the variables of answered requests: the built-in ones of text tasks, and those that users declare.

``Watch`` finds the values of declared variables in the request, in the answer and in what hooks report, and counts them
in the metrics ``gateway_variable_*``. A variable's name is a label, so that the set of metrics is fixed and the numbers
of several workers can be added.

``Observer`` passes on requests after they were answered. Nothing here can fail a request: an unusable value is counted
as ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.declared import Declared, declared_for, find, split
from gateway.metrics.drift import Bins
from gateway.metrics.texts import MAX_A_SECOND, Draws, TextVariables
from gateway.metrics.variable_counts import Served, Variable
from gateway.spec import MetricSpec
from gateway.trace import Trace

_log = logging.getLogger("triton_gateway.metrics")

_PLAIN: Final = frozenset({str, float, int, bool})
"""Types whose values are single values and need no search for leaves."""


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
        self._numbers = numbers
        self._make = partial(
            WatchedVersion, numbers, chance=chance, complain=complain,
            draws=(Draws(MAX_A_SECOND, chance, clock), Draws(MAX_A_SECOND, chance, clock)),
        )  # fmt: skip
        self._watched: dict[str, WatchedVersion] = {}
        self._inputs: object = None

    def configure(
        self, served: Mapping[str, Served], specs: Mapping[str, MetricSpec], default_frequency: float
    ) -> None:
        """Watch these urls from now on. The counts of variables that are no longer declared stay."""
        inputs = (served, specs, default_frequency)
        if inputs == self._inputs:
            return
        self._inputs = inputs
        known, self._watched = self._watched, {}
        references: dict[tuple[str, ...], float] = {}
        for url, version in served.items():
            # With a thousand versions, usually one changes at a time: unchanged ones keep their state.
            source = (version, declared_for(url, specs, default_frequency))
            watched = known.get(url)
            if watched is None or watched.source != source:
                watched = self._make(*source)
            self._watched[url] = watched
            references |= {
                (version.endpoint, version.version, name, bin_name): count
                for name, bins in watched.references.items() for bin_name, count in bins.items()
            }  # fmt: skip
        self._numbers.show(catalog.DRIFT_REFERENCE, references)

    def answered(self, url: str, traces: Sequence[Trace]) -> None:
        """Count the variables of requests that one version has answered."""
        watched = self._watched.get(url)
        if watched is not None:
            watched.see(traces)

    def learned(self, url: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return the usual words of one version's texts, and the mean of its embeddings; empty if unknown."""
        watched = self._watched.get(url)
        text = None if watched is None else watched.text
        return ((), ()) if text is None else (text.words, text.mean)


class WatchedVersion:
    """All variables of one served version."""

    def __init__(
        self, numbers: Accumulator, served: Served, declared: Declared | None, *, chance: Callable[[], float],
        draws: tuple[Draws, Draws], complain: Callable[[], None],
    ) -> None:  # fmt: skip
        self.source = served, declared
        self._chance, self._complain = chance, complain
        variables = declared.variables if declared is not None else ()
        self._frequency = declared.frequency if declared is not None else 0.0
        self._declared = [(split(v.name), Variable(numbers, served, v.name, v.type, v.buckets)) for v in variables]
        own = {v.name for v in variables}
        # A declared variable replaces the built-in one of the same name.
        self.text = TextVariables(numbers, served, own, draws) if served.is_text else None
        known = [*(variable for _, variable in self._declared), *(self.text.variables if self.text is not None else ())]
        self.references = dict(_usable(served, known))
        """The bins of each variable that has a reference."""

    def see(self, traces: Sequence[Trace]) -> None:
        """Count answered requests."""
        if self.text is not None:
            self.text.see(traces)
        frequency = self._frequency
        if not self._declared or frequency <= 0:
            return
        if frequency < 1:
            traces = [trace for trace in traces if self._chance() < frequency]
        for path, variable in self._declared:
            for trace in traces:
                try:
                    _see(variable, path, trace)
                except Exception:  # noqa: BLE001 - values may be users' objects, which may raise anything
                    variable.ignore("wrong_type")
                    self._complain()


def _usable(served: Served, variables: Iterable[Variable]) -> Iterator[tuple[str, Bins]]:
    for variable in variables:
        bins = served.reference.bins.get(variable.name)
        if bins is None:
            continue
        if reason := variable.unusable(bins):
            _log.warning(
                "%s/%s: drift of %s is not judged: its reference %s; capture a new one", served.endpoint,
                served.version, variable.name, reason,
            )  # fmt: skip
        else:
            yield variable.name, bins


def _see(variable: Variable, path: tuple[str, ...], trace: Trace) -> None:
    answer = trace.answer
    if type(answer) is dict and type(value := answer.get(variable.name)) in _PLAIN:
        variable.see(value)
        return
    values = find((answer, trace.body, trace.custom), variable.name, path)
    if not values:
        variable.ignore("missing")
    for value in values:
        variable.see(value)
