"""What gateways have counted, read from their ``/metrics``: one reading for rollouts and for all that is judged. Pure.

``grown`` is what was counted between two readings. A gateway that is new, or whose counters fell because its process
restarted, counts from its next reading on. One that cannot be read delays only itself: what it counts meanwhile is part
of a later reading.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway import metrics

catalog = metrics.catalog
_COUNTERS: Final = (
    catalog.REQUESTS, catalog.CACHE, catalog.VARIABLE_ENUM, catalog.VARIABLE_IGNORED, catalog.FEEDBACK,
    catalog.FALLBACKS, catalog.SHADOWS, catalog.SHADOW_GROUPS,
)  # fmt: skip
REFERENCE: Final = catalog.DRIFT_REFERENCE.name
"""The only gauge that is read."""
BUCKETS: Final = f"{catalog.VARIABLE_SCALAR.name}_bucket"
SECONDS: Final = f"{catalog.REQUEST_SECONDS.name}_bucket"
LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    **{metric.name: metric.labels for metric in (*_COUNTERS, catalog.DRIFT_REFERENCE)},
    BUCKETS: (*catalog.VARIABLE_SCALAR.labels, "le"), SECONDS: (*catalog.REQUEST_SECONDS.labels, "le"),
}  # fmt: skip
"""The samples that are read, and the labels that name a series of each, in order: endpoint and version come first."""
_SERIES: Final = re.compile(r'(\w+)\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\}')
"""A sample's name and labels, whose values may contain braces, and escaped quotes."""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_STARTS: Final = tuple(f"{name}{{" for name in LABELS)
_MAX_KNOWN: Final = 500_000

Series = tuple[str, ...]
"""The name of a sample, and the values of its labels in the order of ``LABELS``."""
Numbers = Mapping[Series, float]


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
                key = known[written] = series(read[1], _labels(read["labels"]))
            found[key] = float(value)
    return found


def _labels(written: str) -> dict[str, str]:
    return {
        name: _ESCAPE.sub(lambda found: {"n": "\n"}.get(found[1], found[1]), value)
        for name, value in _LABEL.findall(written)
    }


def series(name: str, labels: Mapping[str, str]) -> Series:
    """Return the series of a sample."""
    return (name, *(labels.get(label, "") for label in LABELS[name]))


@dataclass(frozen=True, slots=True)
class Reading:
    """What each gateway has counted since its start, by address, and the gateways that could not be read."""

    numbers: Mapping[str, Numbers] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def over(self, before: Reading) -> Reading:
        """Return this reading, with the last numbers of every gateway that could not be read now."""
        kept = {gateway: before.numbers[gateway] for gateway in self.missing if gateway in before.numbers}
        return Reading({**kept, **self.numbers}, self.missing)


def grown(before: Reading, now: Reading) -> dict[Series, float]:
    """Return what all gateways have counted between two readings. Of buckets every bound is there, grown or not."""
    found: dict[Series, float] = defaultdict(float)
    for gateway, numbers in now.numbers.items():
        old = before.numbers.get(gateway)
        if old is None or any(numbers.get(key, 0.0) < value for key, value in old.items() if key[0] != REFERENCE):
            continue
        for key, value in numbers.items():
            news = value - old.get(key, 0.0)
            if key[0] != REFERENCE and (news or key[0] in (BUCKETS, SECONDS)):
                found[key] += news
    return found
