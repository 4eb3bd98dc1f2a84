"""Counts the gateways, so that each admits its share of a quota."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from gateway.triton.addresses import one_family

_log = logging.getLogger("triton_gateway.callers")

LOOK_S: Final = 5.0


async def follow_siblings(
    replicas: str, tell: Callable[[int], None], *, count: Callable[[str], int] | None = None, pause: float = LOOK_S
) -> None:
    """Call ``tell`` with the number of gateways, again whenever it changes, until cancelled.

    ``replicas``: a number, or a DNS name whose addresses are counted. While they cannot be counted the last number
    stays, at first 1.
    """
    count = count or addresses_of
    known, problem = int(replicas) if replicas.isdecimal() else 1, ""
    tell(known)
    while not replicas.isdecimal():
        try:
            found = await asyncio.to_thread(count, replicas)
        except (OSError, UnicodeError) as error:  # an invalid name is a UnicodeError
            if str(error) != problem:
                _log.warning("the gateways behind %s cannot be counted (%d assumed): %s", replicas, known, error)
            problem = str(error)
        else:
            problem = ""
            if found > 0 and found != known:
                known = found
                _log.info("quotas are divided among %d gateways", known)
                tell(known)
        await asyncio.sleep(pause)


def addresses_of(name: str, *, look_up: Callable[..., Any] = socket.getaddrinfo) -> int:
    """Return how many gateways are behind a DNS name. Raises ``OSError``."""
    return len(one_family(str(found[4][0]) for found in look_up(name, None, type=socket.SOCK_STREAM)))
