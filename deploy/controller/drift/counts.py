"""What all gateways together have counted, read from their ``/metrics``.

``Gateways.look`` returns the growth since the last look. A gateway that is new, or whose counters fell because its
process restarted, counts from its next look on. One that cannot be read delays only itself: what it counts meanwhile is
part of a later look.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deploy.controller.drift.evidence import Floats
from deploy.controller.gateways import counters
from deploy.controller.registry import metrics
from deploy.tools import exposition, http_client

catalog = metrics.catalog
MISSING, OTHER = metrics.drift.MISSING, metrics.drift.OTHER
_COUNTERS: Final = (
    catalog.REQUESTS, catalog.CACHE, catalog.VARIABLE_ENUM, catalog.VARIABLE_IGNORED, catalog.DRIFT_OBSERVATIONS,
    catalog.DRIFT_NEW, catalog.FEEDBACK,
)  # fmt: skip
GAUGES: Final = frozenset({catalog.DRIFT_REFERENCE.name, catalog.DRIFT_REFERENCE_SIZE.name})
BUCKETS: Final = f"{catalog.VARIABLE_SCALAR.name}_bucket"
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    **{metric.name: metric.labels for metric in (*_COUNTERS, catalog.DRIFT_REFERENCE, catalog.DRIFT_REFERENCE_SIZE)},
    BUCKETS: (*catalog.VARIABLE_SCALAR.labels, "le"),
}
"""The samples that are judged, and the labels that name a series of each, in order."""
_SERIES: Final = re.compile(rf"(\w+){exposition.LABELS}")
_STARTS: Final = tuple(f"{name}{{" for name in LABELS)
_OF_VARIABLES: Final = frozenset({BUCKETS, catalog.VARIABLE_ENUM.name, catalog.VARIABLE_IGNORED.name})
_MAX_KNOWN: Final = 500_000

Series = tuple[str, ...]
"""The name of a sample, and the values of its labels in the order of ``LABELS``."""
Numbers = Mapping[Series, float]
Key = tuple[str, str, str, str]
"""Endpoint, version, variable, and the name of its reference."""


def parse(text: str, known: dict[str, Series] | None = None) -> dict[Series, float]:
    """Return the samples of ``LABELS`` in an exposition (Prometheus' text format).

    ``known`` remembers what series were read before, so that of the same ones only the numbers are read again.
    """
    known = {} if known is None else known
    if len(known) > _MAX_KNOWN:
        known.clear()
    found: dict[Series, float] = {}
    for line in text.splitlines():
        if line.startswith(_STARTS):
            written, _, value = line.rpartition(" ")
            if (key := known.get(written)) is None:
                if (read := _SERIES.fullmatch(written)) is None:
                    continue
                key = known[written] = series(read[1], exposition.labels(read["labels"]))
            found[key] = float(value)
    return found


def series(name: str, labels: Mapping[str, str]) -> Series:
    """Return the series of a sample."""
    return (name, *(labels.get(label, "") for label in LABELS[name]))


@dataclass(frozen=True, slots=True)
class Reference:
    """A variable's reference: the share of each bin, and the number of its values (infinite if unknown)."""

    shares: Mapping[str, float]
    size: float

    @property
    def is_ordered(self) -> bool:
        """Whether the bins are those of a number."""
        return OTHER not in self.shares


def references(numbers: Numbers) -> dict[Key, Reference]:
    """Return the references in use."""
    shares: dict[Key, dict[str, float]] = defaultdict(dict)
    sizes: dict[Key, float] = {}
    for (name, *labels), value in numbers.items():
        if name == catalog.DRIFT_REFERENCE.name and value > 0:  # NaN: no longer in use
            endpoint, version, variable, reference, bin_name = labels
            shares[endpoint, version, variable, reference][bin_name] = value
        elif name == catalog.DRIFT_REFERENCE_SIZE.name:
            endpoint, version, variable, reference = labels
            sizes[endpoint, version, variable, reference] = value
    return {
        key: Reference(dict(sorted(of.items(), key=_order)), sizes.get(key, math.inf))
        for key, of in sorted(shares.items())
    }


def _order(bin_: tuple[str, float]) -> tuple[int, float, str]:
    """Numbers by size, then named values by share, then ``other`` and ``missing``."""
    name, share = bin_
    if name in (OTHER, MISSING):
        return (2, 0.0, "ab"[name == MISSING])
    try:
        return (0, float(name), "")
    except ValueError:
        return (1, -share, name)


def bins(numbers: Numbers, key: Key, reference: Reference) -> Floats:
    """Return how many values fell into each bin of a reference."""
    return np.array([numbers.get((catalog.DRIFT_OBSERVATIONS.name, *key, name), 0.0) for name in reference.shares])


@dataclass(frozen=True, slots=True)
class Look:
    """What was read at one time: the growth of the counters of all gateways, and the references in use."""

    grown: Numbers = field(default_factory=dict)
    references: Mapping[Key, Reference] = field(default_factory=dict)
    missing: Sequence[str] = ()
    """The gateways that could not be read."""


class Gateways:
    """The gateways at ``addresses()``. ``fetch(url)`` returns a text or None. Blocking; for one thread."""

    def __init__(
        self, addresses: Callable[[], Sequence[str]], *,
        fetch: Callable[[str], str | None] = http_client.fetch_from_gateway,
    ) -> None:  # fmt: skip
        self._addresses = addresses
        self._fetch = fetch
        self._before: dict[str, dict[Series, float]] = {}
        self._known: dict[str, Series] = {}

    def look(self) -> Look:
        """Ask all gateways. Never raises."""
        addresses = self._addresses()
        texts = counters(addresses, self._fetch)
        grown: dict[Series, float] = defaultdict(float)
        gauges: dict[Series, float] = {}
        read = {
            address: parse(text, self._known)
            for address, text in texts.items() if text is not None
        }  # fmt: skip
        for address, numbers in read.items():
            gauges |= {key: value for key, value in numbers.items() if key[0] in GAUGES and value > 0}
            counted = {
                key: value for key, value in numbers.items()
                # Of variables, versions are compared by the built-in ones only.
                if key[0] not in GAUGES and (key[0] not in _OF_VARIABLES or key[3] in metrics.variables.KINDS)
            }  # fmt: skip
            before = self._before.get(address)
            self._before[address] = counted
            if before is None or any(counted.get(key, 0.0) < value for key, value in before.items()):
                continue
            for key, value in counted.items():
                news = value - before.get(key, 0.0)
                if news or key[0] == BUCKETS:  # whoever reads buckets needs all of their bounds
                    grown[key] += news
        # An address that is gone for good (a pod's) is forgotten with the first look that it is no part of.
        for gone in self._before.keys() - set(addresses):
            del self._before[gone]
        missing = [address for address, text in texts.items() if text is None]
        return Look(grown, references(gauges), missing)
