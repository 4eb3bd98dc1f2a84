"""Counts the gateways, so that each admits its share of a quota."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Final

from gateway.callers.quotas import Quotas

_log = logging.getLogger("triton_gateway.callers")

LOOK_S: Final = 5.0


async def follow_siblings(
    quotas: Quotas, replicas: str, *, workers: int, count: Callable[[str], int] | None = None, pause: float = LOOK_S
) -> None:
    """Keep the share current until cancelled. ``replicas``: a number, or a DNS name whose addresses are counted."""
    count = count or addresses_of
    known, problem = 1, ""
    while True:
        try:
            found = int(replicas) if replicas.isdecimal() else await asyncio.to_thread(count, replicas)
        except (OSError, UnicodeError) as error:  # an invalid name is a UnicodeError
            if str(error) != problem:
                _log.warning("the gateways behind %s cannot be counted (%d assumed): %s", replicas, known, error)
            problem = str(error)
        else:
            problem = ""
            if found > 0 and found != known:
                known = found
                _log.info("quotas are divided among %d gateways", known)
        quotas.configure(None, 1.0 / (known * workers), time.monotonic())
        if replicas.isdecimal():
            return
        await asyncio.sleep(pause)


def addresses_of(name: str) -> int:
    """Return the number of addresses of a DNS name. Raises ``OSError``."""
    return len({found[4][0] for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
