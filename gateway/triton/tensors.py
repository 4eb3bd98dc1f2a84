"""Tensors as Triton's protocols carry them: names of types, and packed bytes. Pure; shared by gRPC and HTTP.

The formats are the Open Inference Protocol's (its binary tensor data extension for HTTP, ``raw_input_contents`` for
gRPC): little-endian numbers in C order; ``BYTES`` elements each behind their length as four bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.errors import BackendGarbage, BackendRefused

TO_TRITON: Final = {
    np.dtype(np.bool_): "BOOL", np.dtype(np.int8): "INT8", np.dtype(np.int16): "INT16", np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64", np.dtype(np.uint8): "UINT8", np.dtype(np.uint16): "UINT16",
    np.dtype(np.uint32): "UINT32", np.dtype(np.uint64): "UINT64", np.dtype(np.float16): "FP16",
    np.dtype(np.float32): "FP32", np.dtype(np.float64): "FP64",
    np.dtype("V2"): "BF16",  # numpy does not know it: two opaque bytes, passed on as they are
}  # fmt: skip
FROM_TRITON: Final = {name: dtype for dtype, name in TO_TRITON.items()}
BYTES: Final = "BYTES"


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
            return _unpack_bytes(bytes(buffer)).reshape(shape)
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


def _unpack_bytes(buffer: bytes) -> NDArray[Any]:
    items, at = [], 0
    while at + 4 <= len(buffer):
        size = int.from_bytes(buffer[at : at + 4], "little")
        items.append(buffer[at + 4 : at + 4 + size])
        at += 4 + size
    return np.array(items, dtype=object)
