"""The protocol between a gateway and a hook process over a UNIX socket: frames, and shared memory for large payloads.

A frame is two lengths, a head (small, JSON) and a payload (bytes). A large payload goes as shared memory instead: its
descriptor is sent over a second socket, before the frame that gives its size (``shared``). Payloads are values of
``values.py``; answers are JSON. Both sides import this module; it imports neither.
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
"""Payloads of more bytes go as shared memory. Over the socket they would wake both sides many times."""

MAX_MEMORY: Final = 1 << 30
"""The most bytes of shared memory of one frame."""

_MAX_HEAD: Final = 16 << 20
"""The most bytes of a frame's head."""
MAX_INLINE: Final = 64 << 20
"""The most bytes of a payload that goes over the socket."""
_MAX_VECTORS: Final = 512
"""Pieces per ``writev``; Linux allows 1,024."""
try:
    import fcntl

    _SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
except (ModuleNotFoundError, AttributeError):  # not Linux
    _SEALS = 0
CAN_SEND_MEMORY: Final = _SEALS != 0 and hasattr(os, "memfd_create")
"""Whether this system has sealed shared memory, which its writer cannot change after sending it."""


def pack(head: Mapping[str, Any], payload: Buffer = b"") -> bytes:
    """Return a frame. ``head`` may hold only JSON values."""
    text = orjson.dumps(head, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


class FrameReader:
    """Cuts a stream of bytes into frames. Keeps only the bytes of an incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytearray]]:
        """Add bytes, and yield (head, payload) of each complete frame. Raises ``ValueError`` for anything else."""
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


def to_memory(pieces: Sequence[Buffer]) -> int:
    """Write pieces to new sealed memory. Return its descriptor, which the caller sends and closes."""
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
    """Map the memory that ``to_memory`` has written, and close the descriptor.

    Raises ``ValueError`` if it is not sealed: if its writer shortened it, the reader would crash.
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
