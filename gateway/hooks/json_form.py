"""Writes what users' code answers as JSON: every type that FastAPI writes, and numpy arrays.

clearml-serving answers through FastAPI, so classes written for it answer with any of these types.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from re import Pattern
from types import GeneratorType
from typing import Any, Final

import orjson

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
"""The integers that orjson writes."""
_LISTS: Final = (set, frozenset, deque)
_AS_TEXT: Final = ("pathlib", "ipaddress", "uuid", "pydantic", "pydantic_core")
"""Packages whose types are written as their text: paths, addresses, ids, urls, secrets."""


def to_json(value: object, option: int = 0) -> bytes:
    """Return a value as JSON. Raises ``TypeError``, ``ValueError`` or ``RecursionError`` if it has no JSON form."""
    return write(value, option)[0]


def write(value: object, option: int = 0) -> tuple[bytes, bool]:
    """Return ``to_json`` of a value, and whether orjson reads the same again: integers beyond 64 bits become floats."""
    try:
        return orjson.dumps(value, default=json_form, option=_OPTIONS | option), True
    except TypeError:  # a large integer, a generator, a time with a zone, a key of another type
        return orjson.dumps(_plain(value), option=_OPTIONS | option), False


def json_form(value: Any) -> object:
    """Return the JSON form of a value that is neither JSON nor an array; the ``default`` of ``orjson.dumps``.

    An object becomes what ``dict`` makes of it, or its attributes. Raises ``TypeError`` if it has none.
    """
    if callable(convert := getattr(value, "tolist", None)):
        return convert()
    if callable(convert := getattr(value, "model_dump", None)):
        return convert(mode="json", by_alias=True)
    if isinstance(value, _LISTS):
        return list(value)
    if isinstance(value, Iterator):
        raise TypeError(f"{type(value).__name__} has no JSON form")  # it can be read only once: see `_plain`
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Pattern):
        return value.pattern
    if type(value).__module__.partition(".")[0] in _AS_TEXT:
        return str(value)
    try:
        return dict(value)
    except (TypeError, ValueError):
        pass
    try:
        return {name: kept for name, kept in vars(value).items() if not name.startswith("_sa")}  # SQLAlchemy's own
    except TypeError:
        raise TypeError(f"{type(value).__name__} has no JSON form") from None


def _plain(value: Any) -> Any:
    """Return a value in types that orjson writes by itself."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, str | float | bool):
        return value
    if isinstance(value, int):
        return value if value in _INTEGERS else orjson.Fragment(str(value).encode())
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, int) else _plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | GeneratorType):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return _plain(json_form(value))
