"""What a gateway and a hook process say to each other over a UNIX socket: frames, and values that are safe to read.

A frame is a head (JSON, small) and a payload (bytes): two lengths, then both. A large payload is shared memory instead,
whose descriptor goes through a second socket before the frame that tells its size (``shared``). Gateway to hook the
payload is a pickle. Hook to gateway it is JSON where it is an answer, and else a pickle that is read with nothing but
numpy's own constructors: user code cannot make the gateway run anything. Imported by both sides; knows neither.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
import orjson

_LENGTHS: Final = struct.Struct("<II")
Buffer: TypeAlias = bytes | memoryview

LARGE: Final = 256 << 10
"""Payloads above this go as shared memory: through the socket they take many wake-ups of both sides."""

_MOST_HEAD: Final = 64 << 20
_MOST_PIECES: Final = 1 << 16
_MOST_VECTORS: Final = 512
_ALIGNED: Final = 64
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
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


def dump(value: object) -> list[Buffer]:
    """Pickle a value as pieces to be written one after the other; the memory of arrays is not copied."""
    found: list[pickle.PickleBuffer] = []
    main = pickle.dumps(value, protocol=5, buffer_callback=found.append)
    buffers: list[memoryview] = [buffer.raw() for buffer in found]
    lengths = [len(main), *(b.nbytes for b in buffers)]
    head = struct.pack(f"<{len(lengths) + 1}Q", len(lengths), *lengths)
    pieces: list[Buffer] = [head]
    for piece in cast(list[Buffer], [main, *buffers]):
        # Arrays at places that are no multiple of their item size are slow to read.
        pieces.append(b"\0" * (-total(pieces) % _ALIGNED))
        pieces.append(piece)
    return pieces


def load(payload: Buffer) -> Any:
    """Read what ``dump`` wrote, from whom we trust. Arrays may stand in the payload's memory."""
    main, buffers = _pieces(payload)
    return pickle.loads(main, buffers=buffers)  # noqa: S301 - see above


def dump_plain(value: object) -> list[Buffer]:
    """``dump`` of containers, scalars and arrays (torch tensors and the like as arrays) only. Raises ``TypeError``."""
    return dump(_plain(value))


def load_plain(payload: Buffer) -> Any:
    """Read what ``dump_plain`` wrote; raises ``pickle.UnpicklingError`` for anything else."""
    main, buffers = _pieces(payload)
    return _PlainUnpickler(io.BytesIO(main), buffers=buffers).load()


def _pieces(payload: Buffer) -> tuple[memoryview, list[memoryview]]:
    view = memoryview(payload)
    try:
        (count,) = struct.unpack_from("<Q", view)
        lengths = struct.unpack_from(f"<{min(count, _MOST_PIECES)}Q", view, 8)
    except struct.error as error:
        raise pickle.UnpicklingError(f"cut short: {error}") from error
    place = 8 * (1 + count)
    found = []
    for length in lengths:
        place += -place % _ALIGNED
        found.append(view[place : place + length])
        place += length
    if not found or place > len(view):
        raise pickle.UnpicklingError("cut short")
    return found[0], found[1:]


def total(pieces: Sequence[Buffer]) -> int:
    """Bytes in all."""
    return sum(map(_size, pieces))


def _size(piece: Buffer) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def to_memory(pieces: Sequence[Buffer]) -> int:
    """Write pieces to memory of their own that never changes again; returns its descriptor, to be sent and closed."""
    descriptor = os.memfd_create("hook", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = [memoryview(p).cast("B") for p in pieces if _size(p)]
        while left:
            written = os.writev(descriptor, left[:_MOST_VECTORS])
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if left:
                left[0] = left[0][written:]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def from_memory(descriptor: int, size: int) -> memoryview:
    """Map what ``to_memory`` wrote, and close the descriptor. Raises ``ValueError`` for anything else: memory that its
    writer could still shorten would end its reader.
    """
    try:
        try:
            is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        except OSError:
            is_sealed = False
        if not is_sealed or os.fstat(descriptor).st_size != size:
            raise ValueError("sealed memory was expected")
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE))
    finally:
        os.close(descriptor)


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
