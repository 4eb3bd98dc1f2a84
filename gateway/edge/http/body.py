"""Bytes of a request to its body: size limits, gzip, JSON. Pure except for reading the ASGI stream.

Every way in which a body can be wrong ends here as a ``RequestError`` that says what to send.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import orjson

from gateway.errors import ClientGone, MalformedBody, PayloadTooLarge, UnsupportedMedia

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_GZIP: Final = 31  # zlib's window bits for a gzip member
_PIECE_BYTES: Final = 16 << 10
_INLINE_PACKED_BYTES: Final = 32 << 10
_INLINE_BYTES: Final = 256 << 10
"""What comes to no more than this, packed and unpacked, costs about a millisecond."""
_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="unpack")
_EXAMPLE: Final = """send JSON: -H 'content-type: application/json' -d '{"text": "…"}'"""


async def read(receive: Receive, *, limit: int, announced: bytes) -> bytes:
    """Return the request's raw body.

    ``announced`` is the content-length header (or empty). Raises ``PayloadTooLarge`` beyond ``limit`` bytes and
    ``ClientGone``; how long it may take is the caller's business.
    """
    if announced and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    if announced == b"0":
        return b""
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body", False):
        if len(body) > limit:
            raise _too_large(limit)
        return body
    chunks, size = [body], len(body)
    while message["type"] == "http.request" and message.get("more_body", False):
        message = await receive()
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
    if message["type"] != "http.request":
        raise ClientGone("the client left while sending the body")
    return b"".join(chunks)


async def unpacked(raw: bytes, encoding: bytes, *, limit: int) -> bytes:
    """Undo the content encoding as ``unpack`` does: of a small body at once, of any other in a thread.

    A few bytes may unpack to megabytes, so what counts is what comes out, too.
    """
    if len(raw) <= _INLINE_PACKED_BYTES:
        try:
            return unpack(raw, encoding, limit=min(limit, _INLINE_BYTES))
        except PayloadTooLarge:
            if limit <= _INLINE_BYTES:
                raise
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, lambda: unpack(raw, encoding, limit=limit))


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
            # A member copies what follows it in the bytes it was given, so it is never given all of them.
            piece = view[at : at + _PIECE_BYTES]
            if not piece:
                raise MalformedBody("the gzip body is cut short")
            try:
                part = member.decompress(piece, left + 1)
            except zlib.error as error:
                raise MalformedBody("the body is not valid gzip", hint="or leave out content-encoding: gzip") from error
            left -= len(part)
            if left < 0:
                raise PayloadTooLarge(f"the body unpacks to more than {limit} bytes", hint="send less at once")
            parts.append(part)
            at += len(piece) - len(member.unused_data)
    return b"".join(parts)


def decode(raw: bytes, content_type: bytes, *, takes_bytes: bool) -> object:
    """Return the body as JSON values, or as it is where the type is not JSON and the endpoint takes bytes.

    No content type counts as JSON. Raises ``UnsupportedMedia`` or ``MalformedBody``.
    """
    if not _is_json(content_type):
        if takes_bytes:
            return raw
        shown = ascii(content_type.decode("latin-1"))[1:-1][:80]
        raise UnsupportedMedia(f"content-type {shown} is not JSON", hint=_EXAMPLE)
    if not raw:
        raise MalformedBody("the body is empty", hint=_EXAMPLE)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason = str(error)
        if "utf-8" in reason.lower() or "surrogate" in reason.lower():
            raise MalformedBody("the body is not valid UTF-8", hint="encode it as UTF-8") from None
        raise MalformedBody(f"the body is not valid JSON: {reason}", hint=_EXAMPLE) from None


def _is_json(content_type: bytes) -> bool:
    if not content_type or content_type == b"application/json":
        return True
    kind, _, parameters = content_type.lower().partition(b";")
    kind = kind.strip()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        return False
    for parameter in parameters.split(b";"):
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"charset" and value.strip(b'" ') not in (b"utf-8", b"utf8", b"us-ascii"):
            raise UnsupportedMedia("JSON must be sent as UTF-8", hint="leave the charset out of content-type")
    return True


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {limit} bytes", hint="send fewer texts at once")
