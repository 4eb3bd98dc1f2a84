"""What a gateway and a hook process say to each other over a UNIX socket: frames, and values that are safe to read.

A frame is a head (JSON, small) and a payload (bytes): two lengths, then both. Gateway to hook the payload is a pickle.
Hook to gateway it is JSON where it is an answer, and else a pickle that is read with nothing but numpy's own
constructors: user code cannot make the gateway run anything. Imported by both sides; knows neither.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import orjson

_LENGTHS: Final = struct.Struct("<II")
_MOST_HEAD: Final = 64 << 20
JSON_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS

_SCALARS: Final = (str, int, float, bool, bytes, type(None))
_NUMPY: Final = frozenset({
    "_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype", "core.multiarray", "core.numeric",
})  # fmt: skip


def pack(head: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """One frame; ``head`` holds JSON values only."""
    text = orjson.dumps(head, default=str, option=JSON_OPTIONS)
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Take what arrived; yield each frame that is complete now. Raises ``ValueError`` for what is no frame."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTHS.size:
            head, payload = _LENGTHS.unpack_from(buffer, start)
            if head > _MOST_HEAD:
                raise ValueError("lengths of a frame were expected")
            body = start + _LENGTHS.size
            end = body + head + payload
            if len(buffer) < end:
                break
            view = memoryview(buffer)
            frame = orjson.loads(view[body : body + head]), bytes(view[body + head : end])
            view.release()
            start = end
            yield frame
        if start:
            del buffer[:start]


def json_form(value: object) -> object:
    """What an answer may hold beyond JSON and numpy arrays: anything with ``tolist`` or ``model_dump``, sets, bytes.

    Raises ``TypeError`` for the rest.
    """
    for method in ("tolist", "model_dump"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dump_plain(value: object) -> bytes:
    """Pickle containers, scalars and numeric arrays (torch tensors and the like as arrays). Raises ``TypeError``."""
    return pickle.dumps(_plain(value), protocol=5)


def load_plain(payload: bytes) -> Any:
    """Read what ``dump_plain`` wrote; raises ``pickle.UnpicklingError`` for anything else."""
    return _PlainUnpickler(io.BytesIO(payload)).load()


def _plain(value: object) -> object:
    if type(value) in _SCALARS:
        return value
    # A subclass would be pickled by its class, which the other side does not have.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    if not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__"):
        raise TypeError(f"{type(value).__name__} is neither numbers, text, an array nor a list of them")
    array = np.asarray(value)
    if array.dtype.hasobject:
        return array.tolist()
    return array


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Only what an array is made of."""
        if module.partition(".")[0] == "numpy" and name in _NUMPY:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # bytes of old protocols, inside arrays
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
