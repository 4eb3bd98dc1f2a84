"""Who else is of this pool: the Tritons among which a model on some of them is shared out, as ``gateway.pools`` says.

No coordinator: every model sync looks the same name up (a headless Service that publishes addresses that are not ready
too, or a list) and computes the same answer. ``Members`` does no I/O; ``look_up`` does. A set counts once it has stayed
the same for a while: replicas that start together find each other before they load, and one that is missed in a single
look moves nothing.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection
from typing import Final

from gateway import pools, triton

SETTLE_S: Final = 10.0


class Members:
    """The members of a pool, ``me`` among them. Empty until a set has settled."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._seen: frozenset[str] = frozenset()
        self._since = 0.0
        self.settled: frozenset[str] = frozenset()

    def note(self, found: Collection[str], now: float) -> None:
        """Take over one look (nobody: the look failed, which says nothing); ``now`` in seconds."""
        seen = frozenset((*found, self._me)) if found else self._seen
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif seen and now - self._since >= SETTLE_S:
            self.settled = seen

    def hold(self, model: str, copies: int) -> bool | None:
        """Whether ``me`` holds a model that is on ``copies`` of the members; None while they are not known."""
        if not self.settled:
            return None
        return self._me in pools.holders(model, self.settled, copies)


def read_pools(text: str) -> frozenset[str]:
    """Read the pools that a Triton belongs to, as they are given on the command line. Raises ``ValueError``."""
    return pools.followed(text)


def look_up(address: str) -> list[str]:
    """Return the hosts behind ``address`` (a name, or a list); nobody if it cannot be looked up now."""
    target = triton.addresses.parse_address(address)
    if target.fixed:
        return [triton.addresses.http_address(one)[0] for one in target.fixed]
    with contextlib.suppress(OSError):
        return sorted(
            {str(found[4][0]) for found in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)}
        )
    return []


def myself(named: str) -> str:
    """Return this member's host: ``named``, else the address of this machine's name (of a pod, its own)."""
    if named:
        return named
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return socket.gethostname()
