"""Writes what users' code answers as JSON: every type that FastAPI writes, and arrays.

clearml-serving answers through FastAPI, so classes written for it answer with any of these types.
"""

from __future__ import annotations

import json
from typing import Any, Final, Protocol, runtime_checkable

import orjson

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@runtime_checkable
class _Array(Protocol):
    """An array of any library, or one of its numbers."""

    def tolist(self) -> object: ...


def to_json(value: object, option: int = 0) -> bytes:
    """Return a value as JSON. Raises ``TypeError``, ``ValueError`` or ``RecursionError`` if it has no JSON form."""
    return write(value, option)[0]


def plain(answer: object) -> Any:
    """Return an answer as JSON values, as its caller reads it. Raises as ``to_json``, or ``ValueError``."""
    if isinstance(answer, bytes | bytearray | memoryview):
        return orjson.loads(answer)
    content = getattr(answer, "body", None)  # a hook may return a response object
    return orjson.loads(content if isinstance(content, bytes) else to_json(answer))


def write(value: object, option: int = 0) -> tuple[bytes, bool]:
    """Return ``to_json`` of a value, and whether orjson reads the same again: integers beyond 64 bits become floats."""
    try:
        return orjson.dumps(value, default=_lists, option=_OPTIONS | option), True
    except TypeError:
        # Imported here: in a hook process FastAPI takes its time and memory, and most answers are plain.
        from fastapi.encoders import jsonable_encoder

        plain = jsonable_encoder(value, custom_encoder={_Array: _lists})
    try:
        return orjson.dumps(plain, option=_OPTIONS | option), True
    except TypeError:  # a large integer
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        return orjson.dumps(orjson.Fragment(text.encode()), option=option), False


def _lists(value: Any) -> object:
    if isinstance(value, _Array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no plain JSON form")
