"""The backend port for Triton: a set of replicas, and the transport for each call.

Inference goes over HTTP if the replica's HTTP port answers, because HTTP costs a fraction of gRPC; otherwise, and for
everything else, over gRPC. A call that a replica could not take (it is stopping, it is gone, it does not have the model
yet) is repeated once at another replica; if there is none, over the transport that has not failed. Only over gRPC does
Triton notice that a caller has left: over HTTP an abandoned call runs to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final

from numpy.typing import NDArray

from gateway.errors import BackendUnavailable, GatewayError, ModelNotReady
from gateway.trace import TRACEPARENT
from gateway.triton.addresses import HttpOf, Lookup, resolve
from gateway.triton.errors import TransportError
from gateway.triton.port import ModelInfo, Tensors
from gateway.triton.replicas import RESOLVE_S, Replica, Replicas
from gateway.triton.tls import TritonTls

_LOOK_S: Final = 0.1
_WANTED_S: Final = 60.0
"""Seconds for which a pool without servers counts as wanted after the last call. Autoscalers look every few seconds."""
_KEEP: Final = 0.9
"""The share of its time-out that a request waits at most, so that its caller still gets the reason."""
_RETRY_AFTER_S: Final = 5.0


class TritonBackend(Replicas):
    """One Triton, or all replicas behind one name or list of addresses. ``http_of``: see ``HttpOf``.

    A call waits ``away_s`` seconds for a server if none answers, and ``cold_s`` seconds for a model that is unloaded
    (``expect_cold``); meanwhile ``ask_to_load(model)`` is called repeatedly. Then it fails with a ``retry_after``.
    ``lookup`` runs at most every ``lookup_every`` seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        options: Sequence[tuple[str, Any]] = (),
        http_of: HttpOf = lambda _target: None,
        tls: TritonTls | None = None,
        lookup: Lookup = resolve,
        lookup_every: float = RESOLVE_S,
        away_s: float = 0.0,
        cold_s: float = 0.0,
        ask_to_load: Callable[[str], object] = lambda _model: None,
    ) -> None:
        super().__init__(address, options=options, http_of=http_of, tls=tls, lookup=lookup, lookup_every=lookup_every)
        self._away_s, self._cold_s, self._ask_to_load = away_s, cold_s, ask_to_load
        self._waiting = 0
        self._wanted = -inf

    @property
    def waiting(self) -> int:
        """See ``Backend.waiting``."""
        if not self.is_away:
            return 0
        return self._waiting or int(monotonic() - self._wanted < _WANTED_S)

    def expect_cold(self, model: str) -> Callable[[], None]:
        """See ``Backend.expect_cold``."""
        self._cold[model] = self._cold.get(model, 0) + 1

        def leave() -> None:
            self._cold[model] -= 1
            if not self._cold[model]:
                del self._cold[model]

        return leave

    async def infer(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float
    ) -> dict[str, NDArray[Any]]:
        """See ``Backend.infer``."""
        parent = TRACEPARENT.get()
        until = self.asked(model) + timeout
        left = timeout
        call = self.call(model, inputs)
        replica = self.pick(model, call=call) or await self._find(model, left)
        tried: dict[Replica, bool] = {}
        while True:
            over_http = replica.http.is_open
            transport = replica.http if over_http else replica.grpc
            found = None
            replica.begin(call, monotonic())
            try:
                found = await transport.infer(model, inputs, outputs, timeout=left, parent=parent)
            except (TransportError, ModelNotReady) as error:
                why = error
            else:
                return found
            finally:
                replica.end(call, monotonic(), was_answered=found is not None)
            replica = await self._after(replica, model, why, tried, until, over_http=over_http)
            left = until - monotonic()

    async def stream(
        self, model: str, inputs: Tensors, outputs: Sequence[str], *, timeout: float,
        ended: Callable[[], object] = lambda: None,
    ) -> AsyncGenerator[dict[str, NDArray[Any]], None]:  # fmt: skip
        """See ``Backend.stream``; the call is repeated at another replica if no response has arrived yet."""
        parent = TRACEPARENT.get()
        until = self.asked(model) + timeout
        reader: asyncio.Task[None] | None = None  # of the last call; it reads on after this generator is closed

        def begun(on: Replica, task: asyncio.Task[None]) -> None:
            nonlocal reader
            reader = task
            on.begin(None, monotonic())
            task.add_done_callback(lambda _: on.end(None, monotonic(), was_answered=False))

        try:
            replica = self.pick(model) or await self._find(model, timeout)
            tried: dict[Replica, bool] = {}
            while True:
                has_begun = False
                try:
                    responses = replica.grpc.stream(
                        model, inputs, outputs, timeout=until - monotonic(), parent=parent,
                        begun=partial(begun, replica),
                    )  # fmt: skip
                    async with aclosing(responses):
                        async for response in responses:
                            has_begun = True
                            yield response
                except (TransportError, ModelNotReady) as error:
                    why = error
                else:
                    return
                if has_begun:
                    if isinstance(why, TransportError):
                        self.lose(replica, over_http=False)
                    raise why
                replica = await self._after(replica, model, why, tried, until, over_http=False)
        finally:
            if reader is None or reader.done():
                ended()
            else:
                reader.add_done_callback(lambda _: ended())

    async def _find(self, model: str, left: float) -> Replica:
        """Resolve the address, then return the replica for a call, if need be after a wait; see ``_wait``."""
        await self.refresh()
        away = BackendUnavailable(
            self.unreachable("cannot be reached"), hint="it may be starting: try again shortly", retry_after=1
        )
        return self.pick(model) or await self._wait(model, away, left)

    async def _after(
        self, replica: Replica, model: str, why: GatewayError, tried: dict[Replica, bool], until: float, *,
        over_http: bool,
    ) -> Replica:  # fmt: skip
        """Return the replica for the attempt after one that failed. A call that was lost is repeated once.

        ``tried`` maps the replicas of this call so far to whether gRPC can still be tried there. Another replica is
        tried before that. If there is none left, see ``_wait``.
        """
        is_lost = isinstance(why, TransportError)
        tried[replica] = is_lost and over_http and replica not in tried
        if is_lost:
            self.lose(replica, over_http=over_http)
        else:
            replica.held = (replica.held or frozenset()) - {model}
            replica.survey_due = 0.0
        # Inference changes nothing, so one repeat is safe. A server without the model has run nothing at all.
        if not is_lost or len(tried) == 1:
            over_grpc = (other for other, has_grpc in tried.items() if has_grpc and other in self.all)
            if again := self.pick(model, tried) or next(over_grpc, None):
                return again
        tried.clear()
        return await self._wait(model, why, until - monotonic())

    async def _wait(self, model: str, error: GatewayError, left: float) -> Replica:
        """Wait for a replica that has ``model``, and return it.

        Raises ``error`` at once if neither a server nor the model is to be waited for. Raises ``BackendUnavailable`` or
        ``ModelNotReady`` after the configured time, or after most of the ``left`` seconds of the request.
        """
        if self.is_away:
            self._wanted = monotonic()
        # A lost call does not mean that the model is unloaded; a lost call is repeated once.
        is_cold = model in self._cold and (self.is_away or isinstance(error, ModelNotReady))
        # The pool may have had no servers, and a new server does not load the model at once.
        seconds = max(self._cold_s if is_cold else 0.0, self._away_s if self.is_away else 0.0)
        if not seconds:
            raise error
        until = monotonic() + min(seconds, _KEEP * left)
        self._waiting += 1
        try:
            while monotonic() < until:
                if is_cold and not self.is_away:
                    self._ask_to_load(model)
                await asyncio.sleep(_LOOK_S)
                await self.survey(model)
                if (found := self.holder(model)) is not None:
                    return found
        finally:
            self._waiting -= 1
            if self.is_away:
                self._wanted = monotonic()
        what = "a Triton is being started" if self.is_away else "the model is being loaded"
        raise type(error)(f"{error.message}; {what}", hint="try again shortly", retry_after=_RETRY_AFTER_S) from error

    def lacks(self, model: str) -> bool:
        """See ``Backend.lacks``."""
        healthy = [replica for replica in self.all if not replica.is_unhealthy]
        return bool(healthy) and all(replica.lacks(model) for replica in healthy)

    async def is_ready(self, model: str) -> bool:
        """See ``Backend.is_ready``."""
        await self.survey(model)
        if self.is_away:
            self._wanted = monotonic()
        elif model in self._cold and self.holder(model) is None:
            self._ask_to_load(model)
        known = [one for one in self.all if one.held is not None]
        # One that still loads many models, which can take long, gets calls for those that it has.
        awaited = [one for one in known if one.is_filled]
        return not all(one.lacks(model) for one in known) and not any(one.lacks(model) for one in awaited)

    async def why_not_ready(self, model: str) -> str:
        """See ``Backend.why_not_ready``."""
        await self.survey(model)
        lacking = [one.address for one in self.all if one.lacks(model)]
        if not lacking:
            return self.unreachable("does not answer")
        where = f" at {', '.join(lacking)}" if len(self.all) > 1 else ""
        return f"Triton{where} does not have the model yet; model sync's log has the reason"

    async def describe(self, model: str) -> ModelInfo:
        """See ``Backend.describe``."""
        return await (await self._find(model, 0.0)).grpc.describe(model)
