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

from gateway.metrics.drift import OTHER
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
        values = tuple(dict.fromkeys(category_of(bucket) or "" for bucket in buckets))
        if not values or any(not value or len(value) > MAX_LABEL_CHARS for value in values):
            raise ValueError("has no values, or very long ones; write NAME=cat,dog")
        return MetricVariable(variable.name, "enum", values)
    return MetricVariable(variable.name, variable.type)


def declared_for(url: str, specs: Mapping[str, MetricSpec], default_frequency: float) -> Declared | None:
    """Return the declaration for ``url``: under its own name, or else the longest matching wildcard (``name/*``)."""
    found = specs.get(url)
    if found is None:
        covering = [key for key in specs if key.endswith("*") and _covers(key, url)]
        if not covering:
            return None
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


def category_of(value: object) -> str | None:
    """Return a value as the name of a category; None if it has no such form."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("false", "true")[value]
    if isinstance(value, int | float):
        return f"{value:g}" if -1e15 < value < 1e15 else OTHER
    return None


def spelled_as_a_value(declared: str) -> str:
    """Return the category of the boolean or number that a declared value is written for: ``true`` for ``True``."""
    if declared.lower() in ("false", "true"):
        return declared.lower()
    try:
        number = category_of(float(declared))
    except ValueError:
        return declared
    return declared if number in (None, OTHER) else number


def split(name: str) -> tuple[str, ...]:
    """Return a variable's name as a path of keys and list positions."""
    return tuple(name.split("."))


def find(places: Sequence[object], name: str, path: tuple[str, ...]) -> list[object]:
    """Return a variable's values from the first place that has it: the answer, the request, or what the hook reported.

    A name is a key, or a path of keys and list positions. A key is looked up in each
    element of a list. A list of values counts as several values.
    """
    for place in places:
        if isinstance(place, Mapping) and name in place:
            found = list(islice(_leaves(place[name]), MAX_VALUES))
        else:
            found = list(islice(_walk(place, path, 0), MAX_VALUES)) if len(path) > 1 or _is_list(place) else []
        if found:
            return found
    return []


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _walk(value: object, path: tuple[str, ...], depth: int) -> Iterator[object]:
    if depth == len(path):
        yield from _leaves(value)
    elif isinstance(value, Mapping):
        if path[depth] in value:
            yield from _walk(value[path[depth]], path, depth + 1)
    elif isinstance(value, list | tuple | np.ndarray):
        items = cast("Sequence[object]", value)
        key = path[depth]
        if key.isdecimal():
            if int(key) < len(items):
                yield from _walk(items[int(key)], path, depth + 1)
        elif not isinstance(value, np.ndarray):
            for item in items[:MAX_VALUES]:
                yield from _walk(item, path, depth)


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for item in value[:MAX_VALUES]:
            yield from _leaves(item)
    elif isinstance(value, np.ndarray):
        yield from value.reshape(-1)[:MAX_VALUES].tolist()
    elif value is not None:
        yield value
