"""Tensors as Triton's protocols carry them: names of types, and packed bytes. Pure; shared by gRPC and HTTP.

The formats are the Open Inference Protocol's (its binary tensor data extension for HTTP, ``raw_input_contents`` for
gRPC): little-endian numbers in C order; ``BYTES`` elements each behind their length as four bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.errors import BackendGarbage, BackendRefused, InputRefused

TO_TRITON: Final = {
    np.dtype(np.bool_): "BOOL", np.dtype(np.int8): "INT8", np.dtype(np.int16): "INT16", np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64", np.dtype(np.uint8): "UINT8", np.dtype(np.uint16): "UINT16",
    np.dtype(np.uint32): "UINT32", np.dtype(np.uint64): "UINT64", np.dtype(np.float16): "FP16",
    np.dtype(np.float32): "FP32", np.dtype(np.float64): "FP64",
    np.dtype("V2"): "BF16",  # numpy does not know it: two opaque bytes, passed on as they are
}  # fmt: skip
FROM_TRITON: Final = {name: dtype for dtype, name in TO_TRITON.items()}
BYTES: Final = "BYTES"
_LIST_TYPES: Final = (list, tuple)
_OF_KIND: Final = {
    "b": (frozenset({bool}), "true or false"), "i": (frozenset({int}), "whole numbers"),
    "u": (frozenset({int}), "whole numbers"), "f": (frozenset({int, float}), "numbers"),
    "O": (frozenset({str}), "texts"),
}  # fmt: skip
"""The types of the JSON values that an array may be made of, by the kind of its dtype, and their names."""


def pack(name: str, array: NDArray[Any]) -> tuple[str, bytes]:
    """Return the type's name and the bytes of one input. Raises ``BackendRefused`` for a type unknown to Triton."""
    if array.dtype.kind in "OSU":
        return BYTES, _pack_bytes(array)
    try:
        return TO_TRITON[array.dtype], array.tobytes()
    except KeyError:
        raise BackendRefused(f"input {name} has type {array.dtype}, which Triton has no name for") from None


def unpack(name: str, datatype: str, shape: Sequence[int], buffer: bytes | memoryview) -> NDArray[Any]:
    """Return one output as a view of ``buffer``. Raises ``BackendGarbage`` if it does not fit."""
    try:
        if datatype == BYTES:
            return unpack_bytes(buffer).reshape(shape)
        return np.frombuffer(buffer, dtype=FROM_TRITON[datatype]).reshape(shape)
    except (KeyError, ValueError) as error:
        raise BackendGarbage(
            f"Triton's output {name} ({datatype} {list(shape)}) does not fit its {len(buffer)} bytes"
        ) from error


def _pack_bytes(array: NDArray[Any]) -> bytes:
    parts = []
    for item in array.ravel().tolist():
        value = item if isinstance(item, bytes) else str(item).encode()
        parts.append(len(value).to_bytes(4, "little"))
        parts.append(value)
    return b"".join(parts)


def unpack_bytes(buffer: bytes | memoryview) -> NDArray[Any]:
    """Return the elements of a BYTES tensor as a flat object array of ``bytes``. Raises ``ValueError`` if one is cut
    short.
    """
    items, at, content = [], 0, bytes(buffer)
    while at < len(content):
        begin = at + 4
        at = begin + int.from_bytes(content[at:begin], "little")
        if max(begin, at) > len(content):
            raise ValueError("an element is cut short")
        items.append(content[begin:at])
    return np.array(items, dtype=object)


def from_lists(name: str, dtype: np.dtype[Any], data: object) -> NDArray[Any]:
    """Return JSON values (nested lists, or one value) as an array of ``dtype`` in which every value is unchanged.

    Raises ``InputRefused`` otherwise; numpy would wrap, cut and convert them. ``name`` is for the message. An array,
    which a hook may send to another endpoint, counts as its lists.
    """
    if type(data) is not list and isinstance(data, np.ndarray | np.generic):
        data = data.tolist()
    datatype = BYTES if dtype.kind == "O" else TO_TRITON[dtype]
    if dtype.kind not in _OF_KIND:
        raise InputRefused(f"{datatype} data cannot be sent as JSON: send input {name} as binary data")
    types, called = _OF_KIND[dtype.kind]
    flattened = flatten(data) if isinstance(data, _LIST_TYPES) else ([data], [])
    if flattened is None or not types.issuperset(map(type, flattened[0])):
        raise InputRefused(f"data of input {name} must be {called} for {datatype}, in lists of one length")
    flat, shape = flattened
    try:
        if dtype.kind in "iu" and flat:
            _check_range(min(flat), max(flat), dtype)
        if dtype.kind != "f":
            return np.array(flat, dtype=dtype).reshape(shape)
        with np.errstate(over="raise"):
            return np.array(flat, dtype=dtype).reshape(shape)
    except ArithmeticError:
        raise InputRefused(f"data of input {name} does not fit {datatype}") from None


def _check_range(least: float, most: float, dtype: np.dtype[Any]) -> None:
    limits = np.iinfo(dtype)
    if least < limits.min or most > limits.max:
        raise OverflowError(f"it has numbers beyond {limits.min} to {limits.max}")


def flatten(data: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
    """Return the elements of nested lists in order, and their shape; None if lists at the same depth differ in length.

    ``np.array`` is not used: it would pad every text to the length of the longest.
    """
    shape, flat = [len(data)], list(data)
    while flat and type(flat[0]) in _LIST_TYPES:
        length = len(flat[0])
        if any(type(item) not in _LIST_TYPES or len(item) != length for item in flat):
            return None
        shape.append(length)
        flat = list(chain.from_iterable(flat))
    return flat, shape
