"""The members of a pool: the Tritons among which models with a limited number of copies are distributed.

There is no coordinator. Every model sync looks up the same name (a headless Service that also publishes addresses that
are not ready, or a list) and computes the same answer with ``gateway.pools``. ``Members`` does no I/O; ``look_up``
does. A set of members counts once it has stayed the same for a while: replicas that start together find each other
before they load, and a member that is missing from a single look-up moves nothing.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Sequence
from typing import Final

from gateway import pools, triton

SETTLE_S: Final = 10.0


class Members:
    """The members of a pool, this one included. Empty until a set has settled.

    ``mine``: this member's host, or its addresses (a pod may have an IPv4 and an IPv6 one). The one that counts is of
    the same family as the others' addresses: every member must compute with the same words.
    """

    def __init__(self, mine: Sequence[str]) -> None:
        self._mine = mine
        self._me = mine[0]
        self._seen: frozenset[str] = frozenset()
        self._since = 0.0
        self.settled: frozenset[str] = frozenset()

    def note(self, found: Collection[str], now: float) -> None:
        """Record one look-up at time ``now`` (seconds). An empty result means that the look-up failed."""
        if found:
            is_six = any(":" in host for host in found)
            self._me = next((each for each in self._mine if (":" in each) == is_six), self._mine[0])
        seen = frozenset((*found, self._me)) if found else self._seen
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif seen and now - self._since >= SETTLE_S:
            self.settled = seen

    def hold(self, model: str, copies: int) -> bool | None:
        """Return whether this member holds a model that has ``copies`` copies; None while the members are unknown."""
        if not self.settled:
            return None
        return self._me in pools.holders(model, self.settled, copies)


def read_pools(text: str) -> frozenset[str]:
    """Parse the pools of a Triton from the command line. Raises ``ValueError``."""
    return pools.followed(text)


def look_up(address: str) -> list[str]:
    """Return the hosts behind ``address`` (a name, or a list); empty if the look-up fails."""
    target = triton.addresses.parse_address(address)
    if target.fixed:
        return [triton.addresses.host_and_port(one)[0] for one in target.fixed]
    with contextlib.suppress(OSError):
        return sorted(triton.addresses.one_family(_addresses(target.host)))
    return []


def myself(named: str) -> tuple[str, ...]:
    """Return this member's host: ``named``, or the addresses of this machine's name (in a pod, the pod's)."""
    if named:
        return (named,)
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        return tuple(sorted(_addresses(name), key=lambda ip: (":" in ip, ip)))
    return (name,)


def _addresses(host: str) -> set[str]:
    return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
