"""Reads addresses of Triton: the servers behind an address, and their HTTP addresses. Pure except ``resolve``.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

Lookup = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""``lookup(host, port)`` returns the gRPC targets of a name. Raises ``OSError``."""

HttpAddress = tuple[str, int]
"""Host and port."""


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


def http_hosts(address: str, http: str) -> list[HttpAddress]:
    """Return the HTTP hosts and ports of the Triton at the gRPC ``address``.

    ``http`` is a port (on the same hosts), separate addresses (``host:port``, several with commas), ``auto`` (port 8000
    if gRPC uses 8001, Triton's defaults) or ``off``. Raises ``ValueError`` for anything else.
    """
    http = http.strip()
    if http == "off":
        return []
    if not is_beside(http):
        return _hosts(http.removeprefix("http://"))
    try:
        hosts = _hosts(address)
    except ValueError:  # a socket file, or another form that only gRPC can read
        return []
    if http == "auto":
        return [(host, 8000) for host, port in hosts if port == 8001]
    return [(host, int(http)) for host, _ in hosts]


def is_beside(http: str) -> bool:
    """Return whether the setting means a port on gRPC's hosts (or ``off``), not separate addresses."""
    return http.strip() in ("auto", "off") or http.strip().isdecimal()


def http_address(target: str) -> HttpAddress:
    """Split ``host:port``. Raises ``ValueError``."""
    host, _, port = target.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{target.strip()!r} is not an address; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _hosts(address: str) -> list[HttpAddress]:
    targets = [parse_address(part) for part in parts(address)]
    return [http_address(part) for target in targets for part in target.fixed or (f"{target.host}:{target.port}",)]


def pair(targets: Sequence[str], https: Sequence[HttpAddress]) -> list[tuple[str, HttpAddress | None]]:
    """Pair gRPC ``targets`` with separately configured HTTP addresses.

    Addresses with the same host are paired, in order. If no host is in both lists (a proxy or a Service is in front of
    one of them), the lists are paired by position and the shorter one is repeated, so that every address is used.
    """
    if not targets or not https:
        return [(target, None) for target in targets]
    left = list(https)
    pairs: list[tuple[str, HttpAddress | None]] = []
    for target in targets:
        host = target.rpartition(":")[0].strip("[]")
        found = next((address for address in left if address[0] == host), None)
        if found is not None:
            left.remove(found)
        pairs.append((target, found))
    if len(left) == len(https):
        pairs = []
        left += [https[i % len(https)] for i in range(len(https), len(targets))]
    return pairs + [(targets[i % len(targets)], address) for i, address in enumerate(left)]
