"""Writes what users' code answers as JSON: every type that FastAPI writes, and arrays.

clearml-serving answers through FastAPI, so classes written for it answer with any of these types.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import orjson

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@runtime_checkable
class _Array(Protocol):
    """An array of any library, or one of its numbers."""

    def tolist(self) -> object: ...


def to_json(value: object, option: int = 0) -> bytes:
    """Return a value as JSON.

    Raises ``TypeError``, ``ValueError`` or ``RecursionError`` if it has no JSON form, or has integers beyond 64 bits.
    """
    try:
        return orjson.dumps(value, default=_lists, option=_OPTIONS | option)
    except TypeError:
        # Imported here: in a hook process FastAPI takes its time and memory, and most answers are plain.
        from fastapi.encoders import jsonable_encoder

        return orjson.dumps(jsonable_encoder(value, custom_encoder={_Array: _lists}), option=_OPTIONS | option)


def plain(answer: object) -> Any:
    """Return an answer as JSON values, as its caller reads it. Raises as ``to_json``, or ``ValueError``."""
    if isinstance(answer, bytes | bytearray | memoryview):
        return orjson.loads(answer)
    content = getattr(answer, "body", None)  # a hook may return a response object
    return orjson.loads(content if isinstance(content, bytes) else to_json(answer))


def _lists(value: Any) -> object:
    if isinstance(value, _Array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no plain JSON form")
