"""Unpacks a request's body in a thread, within its limit. Every fault of a body is a ``RequestError``."""

from __future__ import annotations

import zlib
from typing import Final

from gateway.errors import MalformedBody, PayloadTooLarge, UnsupportedMedia

_GZIP: Final = 31  # zlib's window bits for a gzip member


def unpack(raw: bytes, encoding: bytes, *, limit: int) -> bytes:
    """Undo the content encoding (gzip of one member, or none).

    Raises ``UnsupportedMedia``, ``MalformedBody`` (not gzip, cut short, or more behind it) or ``PayloadTooLarge``
    (unpacks to more than ``limit`` bytes; unpacking stops there, whatever the archive claims).
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return raw
    if name not in (b"gzip", b"x-gzip"):
        raise UnsupportedMedia(
            f"content-encoding {ascii(name.decode('latin-1'))[1:-1][:40]} is not supported", hint="send gzip or plain"
        )
    member = zlib.decompressobj(_GZIP)
    try:
        unpacked = member.decompress(raw, limit + 1)
    except zlib.error as error:
        raise MalformedBody("the body is not valid gzip", hint="or leave out content-encoding: gzip") from error
    if len(unpacked) > limit:
        raise too_large(limit, "unpacks to more")
    if not member.eof:
        raise MalformedBody("the gzip body is cut short")
    if member.unused_data:
        raise MalformedBody("bytes follow the gzip body", hint="send it as one gzip member")
    return unpacked


def too_large(limit: int, than: str = "is larger") -> PayloadTooLarge:
    """Return the error of a body of more than ``limit`` bytes."""
    return PayloadTooLarge(
        f"the body {than} than {limit} bytes",
        hint="send less at once, tensors as binary data (Open Inference Protocol), or raise "
        "TRITON_GATEWAY_MAX_BODY_BYTES",
    )
