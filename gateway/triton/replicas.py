"""Which Tritons stand behind an address, and which of them gets the next call. No gRPC here.

``triton`` and ``http`` use it. A name (``dns:///triton:8001``, a headless Service) is looked up again and again:
replicas that are new get calls once they answer, replicas that have left the name get none, while what is in flight
ends. gRPC's own resolver looks a name up only when a connection is lost, so that a new replica would stand idle and a
replica on its way out would be called until it refuses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

RESOLVE_S: Final = 2.0
"""Seconds between two looks at a name. A cluster's DNS answers from memory and keeps an answer for some seconds."""

QUIET_S: Final = 1.0
"""A call among several servers that is not answered for so long makes its server be asked whether it is alive."""

ALIVE_S: Final = 2.0
"""How long that question waits: its own time, never a caller's, whose hurry says nothing about Triton."""

Lookup = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""``lookup(host, port)``: the gRPC targets of a name; raises ``OSError``."""

_MOST_ATTEMPTS: Final = 3
_BURST: Final = 64.0
_REPEATS_PER_CALL: Final = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """An address taken apart: ``host`` to be looked up, or the ``fixed`` gRPC targets. ``is_secure`` asks for TLS."""

    host: str
    port: int
    fixed: tuple[str, ...]
    is_secure: bool


def parse_address(address: str) -> Target:
    """Read ``host:port``, ``dns:///host:port``, ``ipv4:a:1,b:2``, ``grpc://…``, ``grpcs://…``; the rest is gRPC's."""
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


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """Look a name up: its addresses as gRPC targets, sorted. Raises ``OSError`` where it has none now."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=socket.AF_UNSPEC)
    ips = {str(entry[4][0]) for entry in found}
    # A name with both kinds of addresses names every server twice: one kind is enough.
    four = {ip for ip in ips if ":" not in ip}
    return tuple(sorted(f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}" for ip in four or ips))


class Candidate(Protocol):
    """What is known of one replica where it is chosen."""

    in_flight: int
    is_out: bool
    """It did not answer the last time."""
    missing: set[str]
    """Models it did not have the last time."""


R = TypeVar("R", bound=Candidate)


def choose(replicas: Sequence[R], model: str, start: int, tried: Collection[R]) -> R | None:
    """Return the replica for the next call: one that answers and has the model, with the fewest calls; else any.

    Pure. Equally good ones take turns as ``start`` grows. None when every one is in ``tried``.
    """
    # Turns are taken among the good ones: passing over a bad one in line would give its neighbour twice the calls.
    left = [r for r in replicas if not r.is_out and model not in r.missing and r not in tried]
    if not left:
        left = [r for r in replicas if r not in tried]
        if not left:
            return None
        best_of = min((r.is_out, model in r.missing) for r in left)
        left = [r for r in left if (r.is_out, model in r.missing) == best_of]
    count = len(left)
    best = left[start % count]
    for number in range(1, count):
        if not best.in_flight:
            break
        other = left[(start + number) % count]
        if other.in_flight < best.in_flight:
            best = other
    return best


class RepeatBudget:
    """How many calls may be made once more at another replica: a tenth of all calls, and some at once.

    Inference changes nothing, so that repeating it is safe; without a bound, a backend that fails everything would get
    three times the load.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _BURST

    def earn(self) -> None:
        """Count a call."""
        if self._left < _BURST:
            self._left += _REPEATS_PER_CALL

    def spend(self, attempts: int) -> bool:
        """True when a call that was attempted so often may be made again."""
        if attempts >= _MOST_ATTEMPTS or self._left < 1:
            return False
        self._left -= 1
        return True
