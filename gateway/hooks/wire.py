"""The protocol between a gateway and a hook process over a UNIX socket.

A frame is two lengths, a head (small, JSON) and a payload: the body or the answer of a request, as JSON or bytes.
Nothing that can execute crosses it. Both sides import this module; it imports neither.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import orjson

Buffer: TypeAlias = bytes | bytearray | memoryview

_LENGTHS: Final = struct.Struct("<II")

_MAX_HEAD: Final = 16 << 20
"""The most bytes of a frame's head."""
MAX_PAYLOAD: Final = 256 << 20
"""The most bytes of a frame's payload."""


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
            if head > _MAX_HEAD or payload > MAX_PAYLOAD:
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
