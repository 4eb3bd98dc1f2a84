"""One served version: its identity, its handler, the leases that keep it open, and how it closes.

``control.assemble`` builds it, a snapshot publishes it, and requests reach it through ``Endpoint.start``. Kinds of
handler: text tasks (``text``), plain models (``tensors``), text generation (``generation``), users' code (``hook``),
and a cache of answers in front of a text task (``cache``).

A handler's ``start`` gets a ``Job`` and never waits. A handler that is easier to write as a coroutine has ``answer``
(and ``stream``) instead of ``start``; ``in_task`` adapts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from gateway.admission import Pressure
from gateway.errors import BackendGarbage, ContextLengthExceeded, GatewayError, HookFailed, InputRefused, InternalError
from gateway.metrics.drift import Reference
from gateway.trace import Trace
from preprocessing.errors import (
    InvalidInput,
    InvalidOutput,
    PreprocessingError,
    TokenizationFailed,
    TooLong,
    UserCodeError,
    UserCodeRefused,
)
from preprocessing.types import Prepared

if TYPE_CHECKING:
    from gateway.batching.batcher import Batcher
    from gateway.handlers.text import TextHandler
    from preprocessing.processor import TextProcessor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """What an endpoint is, for headers, metrics, logs and the status page.

    ``fingerprint`` covers everything that is served: endpoints with equal fingerprints are interchangeable.
    """

    url: str
    endpoint: str
    version: str
    fingerprint: str
    model_id: str = ""
    model_name: str = ""
    triton_name: str = ""
    pool: str = ""
    """The names of the Tritons it runs on, separated by commas; empty if it needs none."""
    details: Mapping[str, object] = field(default_factory=dict)
    reference: Reference = field(default_factory=Reference)
    """The reference distributions for drift, by variable; from the model's folder."""


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of a generated text; the last one has a ``finish_reason`` (``eos``, ``length``, ``stop``).

    ``tokens`` is the number of prompt tokens that the model reads, ``generated_tokens`` the number generated so far.
    ``token_ids``, those of this piece, may include tokens without text, such as the end token.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    tokens: int
    generated_tokens: int
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Lookup:
    """A request to a text task's tokenizer rather than to its model.

    ``find(processor)`` runs in a thread, returns the answer, and raises ``PreprocessingError``.
    """

    find: Callable[[TextProcessor], object]


Streams = Callable[[object, Trace, float], AsyncGenerator[Event, None]]


class Job(Protocol):
    """What a handler sees of a request in flight (``path.inflight``).

    A handler calls ``answered`` or ``failed`` once, from the event loop. A job that has ended in the meantime ignores
    both.
    """

    question: Any
    """The request: a body of the endpoint's own, or one of the forms that its handler documents."""
    trace: Trace
    deadline: float
    """Loop time at which the job ends itself."""
    give_up: Callable[[], object] | None
    """Stops the work on this job; called when the caller leaves or the deadline passes."""
    outputs: Mapping[str, Any] | None
    """The model's own outputs (name → array, rows first), if the handler has them."""
    remember: Callable[[object], None] | None
    """If set, called with the answer (a cache)."""

    @property
    def needs_outputs(self) -> bool:
        """Whether ``outputs`` must be set before ``answered``."""
        ...

    def prepared(self) -> None:
        """Report that everything is ready for the backend."""
        ...

    def queued(self, leave: Callable[[], object], *, is_watched: bool = False) -> None:
        """Report that the job is in a queue; ``leave`` takes it out.

        ``is_watched``: the queue ends the job at its deadline, as the batcher does. Otherwise the job ends itself.
        """
        ...

    def sent(self, give_up: Callable[[], object]) -> None:
        """Report that a task works on the job; ``give_up`` stops it."""
        ...

    def works(self, give_up: Callable[[], object]) -> None:
        """Report work that does not watch the deadline, such as a thread; ``give_up`` stops it."""
        ...

    def render(self, answer: object) -> object:
        """Write the reply that ``answered`` will send, and return ``answer``. Raises ``GatewayError``.

        For answers that take long to write: this may run in a thread.
        """
        ...

    def answered(self, answer: object) -> None:
        """End the job with its answer: a value that can be written as JSON, or bytes."""
        ...

    def failed(self, error: BaseException) -> None:
        """End the job with an error."""
        ...


class Handler(Protocol):
    """How an endpoint answers; ``Endpoint`` adds leases and labels.

    It has one of two methods; both raise ``GatewayError`` for a request that is refused:

    - ``start(job)`` starts to answer a ``Job``; it never waits.
    - ``await answer(body, trace, deadline)`` returns the answer (anything JSON, or bytes) before ``deadline`` (loop
      time).

    It also has ``stream`` (``Streams``) if it can answer in pieces, and ``unread`` if its model may work on after a
    request has ended: the number of those.
    """

    takes_bytes: bool
    """Whether a body that is not JSON is passed on as bytes."""

    async def close(self) -> None:
        """Release everything; called once, after the last request."""
        ...


class Endpoint:
    """A handler with its identity and the count of its leases."""

    __slots__ = (
        "_closed", "_idle", "_leases", "_retired", "batcher", "handler", "head", "headers", "identity", "start",
        "stream", "takes_bytes", "task", "text",
    )  # fmt: skip

    def __init__(self, identity: Identity, handler: Handler, closed: Callable[[], object] = lambda: None) -> None:
        """``closed`` is called after the handler was closed."""
        self.identity = identity
        self._closed = closed
        # Built once here, not for every answer.
        self.headers = (
            (b"x-served-by", quote(identity.url, safe="/").encode()),
            (b"x-model-id", identity.model_id.encode("unicode_escape")),
        )
        self.head = b"".join(b"%b: %b\r\n" % pair for pair in self.headers)
        self.handler = handler
        self.takes_bytes = handler.takes_bytes
        self.text: TextHandler | None = getattr(handler, "text", None)
        """The handler of a text task without user code, also if a cache is in front of it."""
        self.task: str = getattr(handler, "task", "")
        """The text task, for protocols that depend on it; empty for hooks and plain tensors."""
        self.start: Callable[[Job], None] = getattr(handler, "start", None) or _starter(handler)
        """Starts to answer a job; see ``Handler``."""
        self.stream: Streams | None = getattr(handler, "stream", None)
        """Answers in pieces, if the handler can (text generation)."""
        self.batcher: Batcher[Any] | None = getattr(self.text or handler, "batcher", None)
        """The queue of requests for calls to the model; None if each request has a call of its own."""
        self._leases = 0
        self._retired = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_text(self) -> bool:
        """True for a text task: requests are tokenized, but for those that a cache answers."""
        return self.text is not None

    @property
    def leases(self) -> int:
        """The number of requests that hold it open, and of those that have ended before their model did."""
        return self._leases + getattr(self.handler, "unread", 0)

    def is_overloaded(self, rank: int, tenant: str = "") -> bool:
        """Return whether one more request of this class and tenant would be refused for the work in hand."""
        return self.batcher is not None and self.batcher.is_full(rank, tenant)

    @property
    def pressure(self) -> tuple[Pressure, ...]:
        """Whether its limit of work is in force, if it has one."""
        return () if self.batcher is None else (self.batcher.pressure,)

    @property
    def prices(self) -> dict[str, float] | None:
        """The learned cost of calls to its model, for people; None if none were made or none are shared."""
        prices = None if self.batcher is None else self.batcher.prices
        return prices.report() if prices is not None and prices.calls else None

    @property
    def last_body(self) -> bytes | None:
        """A body that this version's code has answered recently; None if none was kept."""
        return getattr(self.handler, "last_body", None)

    def lease(self) -> None:
        """Hold the endpoint open for one request; ``release`` must follow."""
        self._leases += 1

    def release(self) -> None:
        """End one lease."""
        self._leases -= 1
        if self._retired and self._leases == 0:
            self._idle.set()

    async def retire(self) -> None:
        """Wait for the last lease, then close. The endpoint is in no snapshot any more."""
        self._retired = True
        if self._leases:
            self._idle.clear()
            await self._idle.wait()
        try:
            await self.handler.close()
        finally:
            self._closed()


def _starter(handler: Any) -> Callable[[Job], None]:
    answer = handler.answer

    def start(job: Job) -> None:
        in_task(job, answer(job.question, job.trace, job.deadline))

    return start


def in_task(job: Job, work: Coroutine[Any, Any, object]) -> None:
    """Run ``work`` in a task, and end ``job`` with what it returns or raises."""
    task = asyncio.get_running_loop().create_task(_finish(job, work))
    job.sent(task.cancel)


def in_pieces(job: Job, stream: Streams, send: Callable[[Event], Awaitable[None]]) -> None:
    """Answer ``job`` by sending every piece of ``stream``; each ``send`` is awaited before the next piece is made."""
    in_task(job, _send_all(stream(job.question, job.trace, job.deadline), send))


async def _finish(job: Job, work: Coroutine[Any, Any, object]) -> None:
    try:
        answer = await work
    except BaseException as error:
        job.failed(translate(error) if isinstance(error, PreprocessingError) else error)
        if not isinstance(error, Exception):
            raise
    else:
        job.answered(answer)


async def _send_all(pieces: AsyncGenerator[Event, None], send: Callable[[Event], Awaitable[None]]) -> None:
    async with aclosing(pieces):
        async for piece in pieces:
            await send(piece)


def offload(
    job: Job, threads: Executor, function: Callable[..., T], *arguments: Any, then: Callable[[T], None]
) -> None:
    """Run ``function`` in one of ``threads``, then ``then`` with its result on the loop, unless the job has ended.

    An exception of either is the job's error.
    """
    future = asyncio.get_running_loop().run_in_executor(threads, function, *arguments)
    job.works(future.cancel)
    future.add_done_callback(partial(_offloaded, job, then))


def _offloaded(job: Job, then: Callable[[T], None], future: asyncio.Future[T]) -> None:
    if future.cancelled() or job.give_up is None:  # the job has ended
        return
    error = future.exception()
    try:
        if error is None:
            then(future.result())
    except Exception as refused:  # noqa: BLE001 - it is the error of this job
        error = refused
    if error is not None:
        job.failed(translate(error) if isinstance(error, PreprocessingError) else error)


def translate(error: PreprocessingError) -> GatewayError:
    """Return the gateway's error for an error of ``preprocessing``."""
    hint = error.hint or ""
    if isinstance(error, TooLong):
        return ContextLengthExceeded(error.message, hint=hint)
    if isinstance(error, InvalidInput | UserCodeRefused):
        return InputRefused(error.message, hint=hint)
    if isinstance(error, InvalidOutput):
        return BackendGarbage(error.message, hint=hint)
    if isinstance(error, UserCodeError):
        return HookFailed(error.message, hint=hint)
    if isinstance(error, TokenizationFailed):
        return InternalError(error.message, hint=hint)
    return InternalError(str(error))


def note(trace: Trace, prepared: Prepared) -> None:
    """Record in ``trace`` what was encoded: rows, tokens, unknown tokens, truncated texts."""
    rows = prepared.rows
    trace.rows = len(rows)
    trace.encoded = rows
    trace.prepared = prepared
    if len(rows) == 1:
        row = rows[0]
        trace.tokens, trace.unknown_tokens, trace.truncated = row.n_tokens, row.n_unknown, int(row.truncated)
        return
    trace.tokens = prepared.n_tokens
    trace.unknown_tokens = prepared.n_unknown
    trace.truncated = prepared.n_truncated
