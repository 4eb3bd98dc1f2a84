"""What a gateway and a hook process say to each other over a UNIX socket: frames, and memory that is handed over.

A frame is a head (JSON, small) and a payload (bytes): two lengths, then both. A large payload is shared memory instead,
whose descriptor goes through a second socket before the frame that tells its size (``shared``). Values in payloads are
those of ``values.py``; answers are JSON. Imported by both sides; knows neither.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.hooks.values import Buffer, size_of

_LENGTHS: Final = struct.Struct("<II")

LARGE: Final = 256 << 10
"""Payloads above this go as shared memory: through the socket they take many wake-ups of both sides."""

MAX_MEMORY: Final = 1 << 30
"""Bytes of shared memory with one frame."""

_MAX_HEAD: Final = 16 << 20
MAX_INLINE: Final = 64 << 20
_MAX_VECTORS: Final = 512
try:
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
except (ModuleNotFoundError, AttributeError):  # not Linux
    _SEALS = 0
CAN_SEND_MEMORY: Final = _SEALS != 0 and hasattr(os, "memfd_create")
"""Whether a large value can go to another process as memory that never changes again."""
JSON_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def pack(head: Mapping[str, Any], payload: Buffer = b"") -> bytes:
    """One frame; ``head`` holds JSON values only."""
    text = orjson.dumps(head, default=str, option=JSON_OPTIONS)
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


class FrameReader:
    """Cuts a stream of bytes into frames; holds no more than what has arrived of one."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytearray]]:
        """Take what arrived; yield each frame that is complete now. Raises ``ValueError`` for what is no frame."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTHS.size:
            head, payload = _LENGTHS.unpack_from(buffer, start)
            if head > _MAX_HEAD or payload > MAX_INLINE:
                raise ValueError("lengths of a frame were expected")
            body = start + _LENGTHS.size
            end = body + head + payload
            if len(buffer) < end:
                break
            found = orjson.loads(buffer[body : body + head])
            if type(found) is not dict:
                raise ValueError("the head of a frame was expected")
            frame = found, buffer[body + head : end]
            start = end
            yield frame
        if start:
            del buffer[:start]


def json_form(value: object) -> object:
    """What an answer may hold beyond JSON and plain arrays: anything with ``tolist`` or ``model_dump``, sets, bytes.

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


def to_memory(pieces: Sequence[Buffer]) -> int:
    """Write pieces to memory of their own that never changes again; returns its descriptor, to be sent and closed."""
    descriptor = os.memfd_create("hook", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = [memoryview(p).cast("B") for p in pieces if size_of(p)]
        while left:
            written = os.writev(descriptor, left[:_MAX_VECTORS])
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if left:
                left[0] = left[0][written:]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def from_memory(descriptor: int, size: object) -> memoryview:
    """Map what ``to_memory`` wrote, and close the descriptor. Raises ``ValueError`` for anything else: memory that its
    writer could still shorten would end its reader.
    """
    try:
        try:
            is_sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        except OSError:
            is_sealed = False
        if not is_sealed or type(size) is not int or os.fstat(descriptor).st_size != size or size > MAX_MEMORY:
            raise ValueError("sealed memory was expected")
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE))
    finally:
        os.close(descriptor)
