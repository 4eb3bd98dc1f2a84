"""Declared variables: which declarations can be used, which one applies to an endpoint url, and its values. Pure.

Users declare variables per endpoint url with ``clearml-serving metrics add``. ``watch`` counts them, and
``control.compile`` reports the faults of declarations. Values are users' objects of any type; they are looked up in the
answer, in the request, and in what a hook reports. The order of these places is clearml-serving's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, cast

import numpy as np

from gateway.spec import MetricSpec, MetricVariable

MAX_VARIABLES: Final = 50
MAX_BUCKETS: Final = 100
MAX_LABEL_CHARS: Final = 100
MAX_VALUES: Final = 256
"""Values of one variable that are read per request."""

FREQUENCY_SETTING: Final = "metric_logging_freq"
"""The serving Task's setting of the sampling rate."""

KINDS: Final = ("scalar", "enum", "value")


@dataclass(frozen=True, slots=True)
class Declared:
    """The variables declared for one url, and the share of its requests that is sampled for them."""

    frequency: float
    variables: tuple[MetricVariable, ...]


def check(spec: MetricSpec) -> tuple[tuple[MetricVariable, ...], list[str]]:
    """Return the usable variables, and a fault for each of the others."""
    usable: list[MetricVariable] = []
    faults: list[str] = []
    if spec.log_frequency is not None and not 0 <= spec.log_frequency <= 1:
        faults.append(f"log frequency {spec.log_frequency:g} is not a share from 0 to 1; 1 is used")
    for variable in spec.variables:
        try:
            usable.append(_checked(variable))
        except ValueError as error:
            faults.append(f"variable {variable.name[:MAX_LABEL_CHARS]} {error}")
    if len(usable) > MAX_VARIABLES:
        faults.append(f"declares {len(usable)} variables; the first {MAX_VARIABLES} are used")
    return tuple(usable[:MAX_VARIABLES]), faults


def _checked(variable: MetricVariable) -> MetricVariable:
    buckets = variable.buckets
    if variable.type not in KINDS:
        raise ValueError(f"has the type {variable.type or '(none)'}; {', '.join(KINDS)} are known")
    if not variable.name or len(variable.name) > MAX_LABEL_CHARS:
        raise ValueError(f"needs a name of 1 to {MAX_LABEL_CHARS} characters")
    if len(buckets) > MAX_BUCKETS:
        raise ValueError(f"has {len(buckets)} buckets; {MAX_BUCKETS} is the most")
    if variable.type == "scalar":
        try:
            bounds = sorted({float(bucket) for bucket in buckets} - {math.inf})
        except ValueError as error:
            raise ValueError("has bounds that are not numbers; write NAME=0,0.5,1") from error
        if not bounds or not all(math.isfinite(bound) for bound in bounds):
            raise ValueError("has no bounds; write NAME=0,0.5,1")
        return MetricVariable(variable.name, "scalar", tuple(bounds))
    if variable.type == "enum":
        values = tuple(dict.fromkeys(map(str, buckets)))
        if not values or any(not value or len(value) > MAX_LABEL_CHARS for value in values):
            raise ValueError("has no values, or very long ones; write NAME=cat,dog")
        return MetricVariable(variable.name, "enum", values)
    return MetricVariable(variable.name, variable.type)


def declared_for(url: str, specs: Mapping[str, MetricSpec], default_frequency: float) -> Declared:
    """Return the declaration for ``url``: under its own name, or else the longest matching wildcard (``name/*``)."""
    found = specs.get(url)
    if found is None:
        covering = [key for key in specs if key.endswith("*") and _covers(key, url)]
        if not covering:
            return Declared(0.0, ())
        found = specs[max(covering, key=len)]
    frequency = default_frequency if found.log_frequency is None else found.log_frequency
    variables, _ = check(found)
    return Declared(frequency if 0 <= frequency <= 1 else 1.0, variables)


def _covers(pattern: str, url: str) -> bool:
    prefix = pattern[:-1]
    return url.startswith(prefix) or url == prefix.rstrip("/")


def frequency_of(settings: Mapping[str, str], default: float) -> float:
    """Return the sampling rate set in the serving Task, or else ``default``."""
    try:
        wanted = float(settings.get(FREQUENCY_SETTING) or default)
    except ValueError:
        return default
    return wanted if 0 <= wanted <= 1 else default


def find(places: Sequence[object], path: Sequence[str]) -> list[object]:
    """Return the values at a path of keys, from the first place that has it: the answer, the request, or what the hook
    reported. A key is looked up in each element of a list, and a list of values counts as several values.
    """
    for place in places:
        if found := list(islice(_values(place, path), MAX_VALUES)):
            return found
    return []


def _values(value: object, path: Sequence[str]) -> Iterator[object]:
    if isinstance(value, list | tuple | np.ndarray):
        for one in cast("Sequence[object]", value)[:MAX_VALUES]:
            yield from _values(one, path)
    elif not path:
        if value is not None:
            yield value
    elif isinstance(value, Mapping) and path[0] in value:
        yield from _values(value[path[0]], path[1:])
