"""Stand-ins around the path of a request: a handler that the test controls, endpoints that count their leases."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from gateway.batching.pressure import Pressure
from gateway.errors import GatewayError
from gateway.handlers.endpoint import Endpoint, Identity
from gateway.health import Health
from gateway.metrics.observer import Observer
from gateway.outcome import Outcome
from gateway.path.admission import Permits
from gateway.path.ask import Ask
from gateway.path.call import UNADDRESSED, Call
from gateway.path.canary import Weighted
from gateway.path.routing import RoutingTable, Snapshot
from gateway.path.serve import DataPlane, serve
from gateway.trace import Trace


class Job(Outcome[Any]):
    """What a handler waits for; ``given_up`` counts how often nobody waits for it any more."""

    def __init__(self, question: Any, ask: Trace) -> None:
        super().__init__()
        self.question, self.ask, self.given_up = question, ask, 0

    def answered(self, answer: Any) -> None:
        """Answer it, unless nobody waits."""
        if not (self.is_set or self.given_up):
            self.set_result(answer)

    def failed(self, error: BaseException) -> None:
        """Let it fail, unless nobody waits."""
        if not (self.is_set or self.given_up):
            self.set_exception(error)

    def give_up(self) -> None:
        """Count it."""
        self.given_up += 1


class Obedient:
    """A handler that keeps its jobs until the test ends them; ``begin`` is called with each new one."""

    takes_bytes = False
    needs_task = False

    def __init__(self, begin: Callable[[Job], None] | None = None) -> None:
        self.jobs: list[Job] = []
        self.is_closed = False
        self._begin = begin

    async def answer(self, question: Any, ask: Trace) -> object:
        """Take a job."""
        assert not self.is_closed, "asked after it was closed"
        job = Job(question, ask)
        self.jobs.append(job)
        if self._begin is not None:
            self._begin(job)
        answer: object = await job
        return answer

    async def close(self) -> None:
        """Be closed: nobody may hold it any more."""
        assert not self.is_closed, "closed twice"
        self.is_closed = True


class Counted(Endpoint):
    """An endpoint that counts its leases and releases."""

    __slots__ = ("leased", "released")

    def __init__(self, handler: Any, url: str = "e") -> None:
        super().__init__(Identity(url, url, ""), handler)
        self.leased = self.released = 0

    def lease(self) -> None:
        """Count it."""
        assert not self.handler.is_closed, "leased after it was closed"
        self.leased += 1
        super().lease()

    def release(self) -> None:
        """Count it."""
        self.released += 1
        assert self.released <= self.leased
        super().release()


class Echo(Call):
    """A call whose reply is the answer's repr; ``refuses`` makes ``question`` raise for the endpoint of that url."""

    def __init__(self, path: str = "e", refuses: dict[str, Exception] | None = None) -> None:
        self.path = path
        self.refuses = refuses or {}

    def question(self, endpoint: Endpoint) -> Any:
        """Return a body."""
        if endpoint.identity.url in self.refuses:
            raise self.refuses[endpoint.identity.url]
        return {"text": endpoint.identity.url}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes:
        """Return the reply. An answer that is an exception is raised."""
        del trace
        if isinstance(answer, Exception):
            raise answer
        return repr((endpoint.identity.url, answer)).encode()


class Told(Ask):
    """A request that keeps what is written to its client: ``replies`` and ``refusals``. Its call is known already.

    ``room`` is what the client must set before it has taken the answer, if the test sets it.
    """

    can_stream = True

    def __init__(self, call: Call, request_id: str = "r", parent: str = "") -> None:
        super().__init__(request_id, parent)
        self.call = call
        self.replies: list[Any] = []
        self.refusals: list[GatewayError] = []
        self.room: Outcome[None] | None = None

    def respond(self, reply: Any) -> None:
        """Keep the answer."""
        self.replies.append(reply)

    def refuse(self, error: GatewayError, route: Any) -> None:
        """Keep the refusal."""
        del route
        self.refusals.append(error)

    @property
    def is_unread(self) -> bool:  # type: ignore[override]  # a constant in the base class
        """Whether the client must take the answer."""
        return self.room is not None

    async def drained(self) -> None:
        """Wait for it."""
        assert self.room is not None
        await self.room


class Plane:
    """A data plane over endpoints whose handlers the test controls; ``ended`` are the recorded requests."""

    def __init__(
        self, *urls: str, timeout: float = 30.0, max_requests: int = 3, max_bytes: int = 1000, limits: str = "off"
    ) -> None:
        self.table, self.health = RoutingTable(), Health()
        self.permits = Permits(max_requests, max_bytes, Pressure(limits))
        self.observer = Observer()
        self.plane = DataPlane(self.table, self.permits, self.observer, self.health, timeout=timeout)
        self.ended: list[Trace] = []
        self.plane.subscribe(self.ended.append)
        self.endpoints = {url: Counted(Obedient(), url) for url in urls}
        self.publish()

    def publish(self, **canaries: Weighted) -> None:
        """Publish a snapshot of ``endpoints``."""
        served: dict[str, Endpoint] = dict(self.endpoints)
        self.table.swap(Snapshot("r", MappingProxyType(served), MappingProxyType(canaries)))

    def job(self, url: str) -> Job:
        """Return the newest job of an endpoint."""
        handler: Any = self.endpoints[url].handler
        job: Job = handler.jobs[-1]
        return job

    def ask(self, call: Call, **options: Any) -> Told:
        """Start a request."""
        return self.start(Told(call, **options))

    def start(self, ask: Told) -> Told:
        """Start this request."""
        ask.run(serve(ask, UNADDRESSED, self.plane))
        return ask
