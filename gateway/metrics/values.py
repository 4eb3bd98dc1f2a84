"""Finds the values of a variable in an answer, a request, and what a hook reports. Pure.

The order of places is clearml-serving's. Values are users' objects of any type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, cast

import numpy as np

from gateway.metrics.drift import OTHER

MAX_VALUES: Final = 256
"""Values of one variable that are read per request."""


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

    The order is clearml-serving's. A name is a key, or a path of keys and list positions. A key is looked up in each
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
