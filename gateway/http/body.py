"""Unpacks a request's body, within its limit. Pure, except for the thread of a large one.

Every fault of a body becomes a ``RequestError`` that says what to send.
"""

from __future__ import annotations

import zlib
from typing import Final

from gateway.errors import MalformedBody, PayloadTooLarge, UnsupportedMedia
from gateway.outcome import in_thread
from gateway.path.ask import BODY_THREADS, MAX_INLINE_BYTES

_GZIP: Final = 31  # zlib's window bits for a gzip member
_PIECE_BYTES: Final = 16 << 10
_INLINE_PACKED_BYTES: Final = 32 << 10
"""Unpacking at most this many bytes to at most ``MAX_INLINE_BYTES`` takes about a millisecond."""


async def unpacked(raw: bytes, encoding: bytes, *, limit: int) -> bytes:
    """Undo the content encoding as ``unpack`` does, of a large body in a thread.

    A few bytes may unpack to megabytes, so a body counts as large by its unpacked size as well.
    """
    if len(raw) <= _INLINE_PACKED_BYTES:
        try:
            return unpack(raw, encoding, limit=min(limit, MAX_INLINE_BYTES))
        except PayloadTooLarge:
            if limit <= MAX_INLINE_BYTES:
                raise
    return await in_thread(BODY_THREADS, unpack, raw, encoding, limit=limit)


def unpack(raw: bytes, encoding: bytes, *, limit: int) -> bytes:
    """Undo the content encoding (gzip, or none), in time proportional to the bytes that go in and come out.

    Raises ``UnsupportedMedia``, ``MalformedBody`` (not gzip, cut short) or ``PayloadTooLarge`` (unpacks to more than
    ``limit`` bytes; unpacking stops there, whatever the archive claims).
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return raw
    if name not in (b"gzip", b"x-gzip"):
        raise UnsupportedMedia(
            f"content-encoding {ascii(name.decode('latin-1'))[1:-1][:40]} is not supported", hint="send gzip or plain"
        )
    parts: list[bytes] = []
    left, at, view = limit, 0, memoryview(raw)
    while at < len(raw):  # a gzip file may have several members
        member = zlib.decompressobj(_GZIP)
        while not member.eof:
            # zlib copies the bytes behind a member, so it gets small pieces: otherwise the time would be quadratic.
            piece = view[at : at + _PIECE_BYTES]
            if not piece:
                raise MalformedBody("the gzip body is cut short")
            try:
                part = member.decompress(piece, left + 1)
            except zlib.error as error:
                raise MalformedBody("the body is not valid gzip", hint="or leave out content-encoding: gzip") from error
            left -= len(part)
            if left < 0:
                raise too_large(limit, "unpacks to more")
            parts.append(part)
            at += len(piece) - len(member.unused_data)
    return b"".join(parts)


def too_large(limit: int, than: str = "is larger") -> PayloadTooLarge:
    """Return the error of a body of more than ``limit`` bytes."""
    return PayloadTooLarge(
        f"the body {than} than {limit} bytes",
        hint="send less at once, tensors as binary data (Open Inference Protocol), or raise "
        "TRITON_GATEWAY_MAX_BODY_BYTES",
    )
