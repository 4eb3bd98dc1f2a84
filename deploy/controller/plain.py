"""Dataclasses as plain JSON values, and back: how the controller's records are stored. Pure."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar

T = TypeVar("T")
_DIGITS: Final = 4
"""Decimal places of stored numbers: logarithms of stakes, seconds, shares."""


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def read(kind: type[T], stored: Any) -> T:
    """Return the ``kind`` that ``plain`` stored; more fields than its own are ignored.

    Raises ``KeyError``, ``TypeError``, ``ValueError`` or ``AttributeError`` for anything else.
    """
    return typing.cast("T", _read(kind, stored))


def _read(kind: Any, stored: Any) -> Any:
    of, within = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**{name: _read(one, stored[name]) for name, one in _fields(kind).items()})
    if of is tuple:
        kinds = within[:1] * len(stored) if within[-1] is Ellipsis else within
        return tuple(_read(one, value) for one, value in zip(kinds, stored, strict=True))
    if of is Mapping:
        return {_read(within[0], key): _read(within[1], value) for key, value in stored.items()}
    if of in (types.UnionType, typing.Union):
        return None if stored is None else _read(within[0], stored)
    if of is typing.Literal and stored not in within:
        raise ValueError(f"{stored!r} is none of {within}")
    return kind(stored) if kind in (int, float, str, bool) else stored


@functools.cache
def _fields(kind: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
