"""Reads addresses of Triton: the servers behind an address, and their HTTP addresses. Pure except ``resolve``.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

Lookup = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""``lookup(host, port)`` returns the gRPC targets of a name. Raises ``OSError``."""

HttpAddress = tuple[str, int]
"""Host and port."""

HttpOf = Callable[[str], HttpAddress | None]
"""``http_of(target)`` returns the HTTP address of the Triton at a gRPC target; None: it is called over gRPC only."""


_SCHEME: Final = re.compile(r"(grpcs?://)?(ipv[46]:|dns:(//[^/]*/)?)?")
_NAME: Final = re.compile(r"[\w.-]*[a-zA-Z][\w.-]*")


def servers_of(address: str) -> list[str | tuple[str, int]]:
    """Return the servers in an address, which commas or semicolons separate: names to look up, with their ports, and
    gRPC targets that are used as they are.

    A server is written ``host:port``, ``dns:///host:port``, ``ipv4:…``, or in another form that only gRPC reads.
    """
    found: list[str | tuple[str, int]] = []
    for part in filter(None, map(str.strip, re.split("[;,]", address))):
        target = _SCHEME.sub("", part, count=1)
        host, _, port = target.rpartition(":")
        found.append((host, int(port)) if port.isdigit() and _NAME.fullmatch(host) else target)
    return found


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """Return the addresses of a host name as sorted gRPC targets. Raises ``OSError`` if it has none now."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=socket.AF_UNSPEC)
    ips = one_family(str(entry[4][0]) for entry in found)
    return tuple(sorted(f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}" for ip in ips))


def one_family(ips: Iterable[str]) -> set[str]:
    """Return the IPv4 addresses, or if there are none all: a name with both families lists every server twice."""
    found = {*ips}
    return {ip for ip in found if ":" not in ip} or found


def http_beside(setting: str) -> HttpOf:
    """Return what finds the HTTP address of a Triton by ``setting``: a port on the same host, ``auto`` (port 8000 if
    gRPC uses 8001, Triton's defaults) or ``off``.
    """

    def http_of(target: str) -> HttpAddress | None:
        host, _, port = target.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not port.isdecimal() or setting == "off":  # a socket file, or another form that only gRPC can read
            return None
        if setting == "auto":
            return (host, 8000) if port == "8001" else None
        return host, int(setting)

    return http_of
