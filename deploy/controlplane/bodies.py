"""Reads request bodies within limits of size and time, or discards them.

`app` and `files` call it once they have identified the caller: no body of an unknown caller is kept.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from deploy.controlplane.envelope import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a call may be and how long its body may take.

    `size`: bytes of a call's body (files have no limit of size). `idle_s`: without a byte. `discard_s`: for the rest
    of a refused body, so that the caller reads the answer before the connection is closed.
    """

    size: int = 64 << 20
    idle_s: float = 30.0
    discard_s: float = 5.0


LIMITS = Limits()


async def read(request: Request, limits: Limits) -> bytes:
    """The whole body of a call.

    Raises:
        ApiError: 413 when it is too large, 408 when it does not come.
        ClientDisconnect: the caller is gone.
    """
    announced = request.headers.get("content-length", "")
    body = bytearray()
    if not announced.isdecimal() or int(announced) <= limits.size:
        async for piece in pieces(request, limits):
            body += piece
            if len(body) > limits.size:
                break
        else:
            return bytes(body)
    raise ApiError(413, 0, f"The request is larger than {limits.size >> 20} MiB")


async def pieces(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """The body piece by piece.

    Raises:
        ApiError: 408 when the next piece does not come.
        ClientDisconnect: the caller is gone.
    """
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(limits.idle_s):
                piece = await anext(stream, None)
        except TimeoutError as exc:
            raise ApiError(408, 0, "The body of the request did not arrive in time") from exc
        if piece is None:
            return
        yield piece


async def discard(request: Request, limits: Limits) -> None:
    """Read the rest of a refused body within limits, without keeping it.

    If a connection is closed while its body is being sent, the answer is lost too: the caller would see a broken
    connection and try again, instead of reading the refusal.
    """
    if "expect" in request.headers:
        # this client waits for 100-continue before it sends the body, and reads the refusal instead
        return
    size = 0
    # RuntimeError: the body has already been read
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
        async with asyncio.timeout(limits.discard_s):
            async for piece in request.stream():
                size += len(piece)
                if size > limits.size:
                    return
