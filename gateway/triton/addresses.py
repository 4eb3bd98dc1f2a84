"""Reads addresses of Triton: the servers behind an address, and their HTTP addresses. Pure except ``resolve``.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

Lookup = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""``lookup(host, port)`` returns the gRPC targets of a name. Raises ``OSError``."""

HttpAddress = tuple[str, int]
"""Host and port."""

HttpOf = Callable[[str], HttpAddress | None]
"""``http_of(target)`` returns the HTTP address of the Triton at a gRPC target; None: it is called over gRPC only."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed address: a ``host`` to look up, or ``fixed`` gRPC targets. ``is_secure``: use TLS."""

    host: str
    port: int
    fixed: tuple[str, ...]
    is_secure: bool


def parse_address(address: str) -> Target:
    """Read ``host:port``, ``dns:///host:port``, ``ipv4:a:1,b:2``, ``grpc://…``, ``grpcs://…``; gRPC reads the rest."""
    is_secure = address.startswith("grpcs://")
    text = address.removeprefix("grpcs://").removeprefix("grpc://")
    if text.startswith(("ipv4:", "ipv6:")):
        return Target("", 0, tuple(part.strip() for part in text[5:].split(",") if part.strip()), is_secure)
    if text.startswith("dns:"):
        text = text[4:]
        if text.startswith("//"):  # dns://authority/name
            text = text[2:].partition("/")[2]
    elif "/" in text or text.startswith(("unix:", "unix-abstract:", "xds:", "vsock:")):
        return Target("", 0, (text,), is_secure)
    if "," in text:
        return Target("", 0, tuple(part.strip() for part in text.split(",") if part.strip()), is_secure)
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        return Target("", 0, (text,), is_secure)
    bare = host.strip("[]")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return Target(bare, int(port), (), is_secure)
    return Target("", 0, (text,), is_secure)


def parts(address: str) -> list[str]:
    """Return the addresses of several pools, separated by ``;``."""
    return [part.strip() for part in address.split(";") if part.strip()] or [address]


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


def host_and_port(target: str) -> HttpAddress:
    """Split ``host:port``. Raises ``ValueError``."""
    host, _, port = target.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{target.strip()!r} is not an address; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def http_beside(setting: str) -> HttpOf:
    """Return what finds the HTTP address of a Triton by ``setting``: a port on the same host, ``auto`` (port 8000 if
    gRPC uses 8001, Triton's defaults) or ``off``.
    """

    def http_of(target: str) -> HttpAddress | None:
        try:
            host, port = host_and_port(target)
        except ValueError:  # a socket file, or another form that only gRPC can read
            return None
        if setting == "auto":
            return (host, 8000) if port == 8001 else None
        return None if setting == "off" else (host, int(setting))

    return http_of
