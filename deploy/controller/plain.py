"""Dataclasses as plain JSON values, and back: how the controller's records are stored. Pure."""

from __future__ import annotations

import functools
import json
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
_DIGITS: Final = 4
"""Decimal places of stored numbers: logarithms of stakes, seconds, shares."""


@functools.cache
def _of(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def plain(value: Any) -> Any:
    """Return a dataclass as JSON has it."""
    text = _of(value.__class__).dump_json(value, warnings=False)
    return json.loads(text, parse_float=lambda number: round(float(number), _DIGITS))


def read(kind: type[T], stored: Any) -> T:
    """Return the ``kind`` that ``plain`` stored; more fields than its own are ignored. Raises ``ValueError``."""
    of: Any = kind
    found: T = _of(of).validate_python(stored)
    return found
