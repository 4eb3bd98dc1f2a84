"""The set of Tritons behind an address: discovery, health, and the choice of a replica. ``backend`` calls them.

A replica has two transports: gRPC and, if its HTTP port answers, HTTP. It has one health state: an error of either
transport makes it unhealthy, and only its answer to a health probe, which has a time-out of its own, makes it healthy
again. A caller that leaves or sets a short time-out never counts against it.

A name (``dns:///triton:8001``, a headless Service) is resolved repeatedly. A new replica gets calls once it answers. A
replica that has left the name gets no new calls; its calls in flight end. gRPC's own resolver resolves a name only when
a connection is lost: a new replica would stay idle, and a terminating one would get calls until it refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from math import inf
from time import monotonic
from typing import Any, Final

from gateway.prices import Prices
from gateway.triton.addresses import HttpOf, Lookup, servers_of
from gateway.triton.choice import Call, Server, choose
from gateway.triton.grpc import GrpcTransport
from gateway.triton.http import HttpTransport
from gateway.triton.port import Tensors
from gateway.triton.tls import TritonTls, for_address

_log = logging.getLogger("triton_gateway.triton")

RESOLVE_S: Final = 2.0
"""Seconds between two DNS lookups. A cluster's DNS caches an answer for some seconds."""

_SURVEY_S: Final = 0.5
"""Seconds between two reads of a server's list of models."""

_RETIRE_S: Final = 60.0
"""Seconds that the calls of a removed server may take before its connections are closed."""
_FORGET_S: Final = 600.0
"""Seconds after which a model that is no longer called is forgotten."""


class Replica(Server):
    """One Triton: its transports and its state."""

    __slots__ = ("address", "grpc", "http", "is_filled", "survey_due")

    def __init__(self, address: str, grpc: GrpcTransport, http: HttpTransport) -> None:
        super().__init__()
        self.address = address
        self.grpc = grpc
        self.http = http
        self.is_filled = False
        """Whether it has had all models that others have, without cold ones, since it began to answer."""
        self.survey_due = 0.0

    async def close(self, *, within: float = 0.0) -> None:
        """Wait up to ``within`` seconds for calls in flight, then close the connections."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while self.in_flight:  # noqa: ASYNC110 - rare, and nothing waits for it
                        await asyncio.sleep(0.05)
        finally:
            await self.http.close()
            await self.grpc.close()


class Replicas:
    """The replicas behind ``address`` (of several names: pools that share an endpoint); see ``TritonBackend``."""

    def __init__(
        self, address: str, *, options: Sequence[tuple[str, Any]], http_of: HttpOf, tls: TritonTls | None,
        lookup: Lookup, lookup_every: float,
    ) -> None:  # fmt: skip
        self.address = address
        self._options = dict(options)
        self._http_of = http_of
        self._tls = for_address(address, tls)
        self._lookup = lookup
        self._lookup_every = lookup_every
        self._survey_s = min(_SURVEY_S, lookup_every)
        self._surveying = asyncio.Lock()
        self.all: list[Replica] = []
        self.replicas = 1
        """See ``Backend.replicas``."""
        self.is_away = False
        """Whether no server answered the last call or question."""
        self._problem = ""
        """Why the list of replicas is missing or out of date; empty if it is current."""
        self._servers = servers_of(address)
        self._hosts: dict[str, str] = {}
        """gRPC target → the host name that was resolved to it."""
        self._stamped: object = None
        """Changes with the certificates, which asks for new connections."""
        self._cold: dict[str, int] = {}
        """Models that are unloaded while they get no calls, so that servers need not have them, and how many versions
        say so.
        """
        self._prices: dict[str, Prices] = {}
        """What a call of each model costs at any of several replicas."""
        self._asked: dict[str, float] = {}
        """When each model was last called, in ``monotonic`` seconds."""
        self._due = 0.0
        self._refreshing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        fixed = [server for server in self._servers if isinstance(server, str)]
        if len(fixed) == len(self._servers):
            self._join(fixed)

    def asked(self, model: str) -> float:
        """Record that ``model`` is called, and return the time in ``monotonic`` seconds."""
        now = self._asked[model] = monotonic()
        return now

    def call(self, model: str, inputs: Tensors) -> Call | None:
        """Return a call to choose a replica for, with what is known of its duration; None if there is only one."""
        if len(self.all) < 2:
            return None
        first = next(iter(inputs.values()), None)
        rows, elements = (len(first), first.size) if first is not None and first.ndim else (1, 1)
        return Call(self._prices.setdefault(model, Prices()), rows, elements)

    def pick(self, model: str, tried: Collection[Replica] = (), call: Call | None = None) -> Replica | None:
        """Return the replica for an attempt; None if there is none except those already ``tried``."""
        if len(self.all) == 1 and not tried:
            return self.all[0]
        return choose(self.all, model, 0.0 if call is None else call.seconds, monotonic(), tried)

    def lose(self, replica: Replica, *, over_http: bool) -> None:
        """Send no calls to a replica whose transport has failed, until it answers a health probe."""
        if over_http:
            replica.http.shut()
        self._judge(replica, is_live=False)

    def unreachable(self, what: str) -> str:
        """Return the message that Triton ``what``, with the reason if the replicas are unknown."""
        return f"Triton at {self.address} {what}" + (f" ({self._problem})" if self._problem else "")

    async def _probe(self, replica: Replica) -> None:
        was_unhealthy = replica.is_unhealthy
        is_live = await replica.grpc.is_live()
        # A server that was away may be a new process, without models.
        if is_live and (
            replica.held is None or (not self._asked.keys() <= replica.held and monotonic() >= replica.survey_due)
        ):
            await self._survey(replica)
        if replica.http.is_shut or not is_live:  # it may have failed since its last check without a call noticing
            is_live = await replica.http.is_live() or is_live
        # A call that failed meanwhile says more than an answer from before: the next probe decides.
        if was_unhealthy or not replica.is_unhealthy:
            self._judge(replica, is_live=is_live)

    async def survey(self, model: str) -> None:
        """Update the lists of models of all servers that are due, for a caller that waits for ``model``.

        One read returns all models of a server.
        """
        await self.refresh()
        self.asked(model)
        async with self._surveying:
            now = monotonic()
            await asyncio.gather(*(self._survey(replica) for replica in self.all if now >= replica.survey_due))
        self._compare()

    def holder(self, model: str) -> Replica | None:
        """Return a replica that has ``model`` by its last list of models; None if none has it."""
        held = [r for r in self.all if not r.is_unhealthy and r.held is not None and not r.lacks(model)]
        return self.pick(model) if held else None

    def _compare(self) -> None:
        everything = {one for replica in self.all for one in replica.held or () if one not in self._cold}
        for replica in self.all:
            if replica.held is not None:
                replica.is_filled = replica.is_filled or not any(map(replica.lacks, everything))

    async def _survey(self, replica: Replica) -> None:
        """Read the server's list of models."""
        replica.held = await replica.grpc.holds()
        replica.survey_due = monotonic() + self._survey_s

    def _judge(self, replica: Replica, *, is_live: bool) -> None:
        if replica.is_unhealthy == is_live:
            _log.info("Triton at %s %s", replica.address, "gets calls" if is_live else "does not answer")
        replica.is_unhealthy = not is_live
        if not is_live:
            replica.held, replica.is_filled = None, False
        self._count()

    def _count(self) -> None:
        healthy = [replica for replica in self.all if not replica.is_unhealthy]
        self.replicas, self.is_away = max(1, len(healthy)), not healthy

    async def is_live(self) -> bool:
        """See ``Backend.is_live``; also updates the list of replicas and their health."""
        await self.refresh()
        # Replaced versions are on no new replica, so they are forgotten.
        forgotten = monotonic() - _FORGET_S
        self._asked = {model: asked for model, asked in self._asked.items() if asked > forgotten}
        self._prices = {model: prices for model, prices in self._prices.items() if model in self._asked}
        for replica in self.all:
            replica.fade()
        await asyncio.gather(*map(self._probe, self.all))
        self._compare()
        return not self.is_away

    async def refresh(self) -> None:
        """If it is due, update the replicas from the DNS name and the certificates on disk."""
        async with self._refreshing:
            now = monotonic()
            if now < self._due:
                return
            self._due = now + self._lookup_every
            self._problem = ""
            targets = [found for server in self._servers for found in await self._behind(server)]
            if self._problem and (not targets or len(self._servers) == 1):
                self.is_away = self.is_away or not self.all
                return
            self._join(targets)

    async def _behind(self, server: str | tuple[str, int]) -> Sequence[str]:
        if isinstance(server, str):
            return (server,)
        host, port = server
        try:
            found = await self._lookup(host, port)
        except OSError as error:
            # The known replicas stay: a failed name server says nothing about Triton.
            self._problem = f"{host}: {error.strerror or error}"
            return [replica.address for replica in self.all if self._hosts.get(replica.address) == host]
        self._hosts |= dict.fromkeys(found, host)
        return found

    def _join(self, targets: Sequence[str]) -> None:
        targets = [*dict.fromkeys(targets)]
        known = {replica.address: replica for replica in self.all}
        # A replica that joins others gets its first call only after it has answered and has the models.
        is_beside_others = bool(known)
        replicas = []
        try:
            stamp = self._tls.changed() if self._tls else ()
            if known and stamp != self._stamped:
                _log.info("certificates for Triton at %s have changed: reconnecting", self.address)
                known, is_beside_others = {}, False
            elif [*known] == targets:
                self._count()  # if the name has no address yet, all count as away
                return
            for target in targets:
                replica = known.pop(target, None)
                if replica is None:
                    replica = self._connect(target)
                    replica.is_unhealthy = is_beside_others
                replicas.append(replica)
        except OSError as error:
            self._problem = f"TLS: {error}"
            return
        self._stamped = stamp
        gone = [replica for replica in self.all if replica not in replicas]
        if self.all:
            _log.info("Triton at %s is now %s", self.address, ", ".join(targets))
        self.all = replicas
        self._count()
        for replica in gone:
            task = asyncio.get_running_loop().create_task(replica.close(within=_RETIRE_S))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def _connect(self, target: str) -> Replica:
        """Return a new replica. Raises ``OSError`` for TLS files that cannot be read."""
        host = self._hosts.get(target, "")
        http_at = None if self._tls else self._http_of(target)  # Triton offers TLS over gRPC only
        grpc = GrpcTransport(target, options=self._options, tls=self._tls, host=host)
        return Replica(target, grpc, HttpTransport(http_at))

    async def close(self) -> None:
        """See ``Backend.close``."""
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        replicas, self.all, self._due = self.all, [], inf
        for replica in replicas:
            await replica.close()
