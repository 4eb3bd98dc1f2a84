"""One served version: its identity, its handler, the leases that keep it open, and how it closes.

``control.assemble`` builds it, a snapshot publishes it, and requests reach it through ``Endpoint.answer``. Kinds of
handler: text tasks (``text``), plain models (``tensors``), text generation (``generation``), users' code (``hook``),
and a cache of answers in front of a text task (``cache``). Trials of versions and shadows use ``ask_version``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from gateway.errors import (
    BackendGarbage,
    ContextLengthExceeded,
    DeadlineExceeded,
    GatewayError,
    HookFailed,
    InputRefused,
    InternalError,
)
from gateway.metrics.drift import Reference
from gateway.outcome import gone, in_task
from gateway.trace import DEFAULT_FLOW, TRACEPARENT, Flow, Trace
from preprocessing.errors import (
    InvalidInput,
    InvalidOutput,
    PreprocessingError,
    TooLong,
    UserCodeError,
    UserCodeRefused,
)
from preprocessing.types import Prepared

if TYPE_CHECKING:
    from gateway.batching.batcher import Batcher
    from gateway.handlers.text import TextHandler
    from preprocessing.processor import TextProcessor

_log = logging.getLogger("triton_gateway.request")

_OF_PREPROCESSING: Final[Mapping[type[PreprocessingError], type[GatewayError]]] = {
    TooLong: ContextLengthExceeded, InvalidInput: InputRefused, UserCodeRefused: InputRefused,
    InvalidOutput: BackendGarbage, UserCodeError: HookFailed, PreprocessingError: InternalError,
}  # fmt: skip
"""What an error of ``preprocessing`` is here: the first one that fits."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What an endpoint is, for headers, metrics, logs and the status page."""

    url: str
    endpoint: str
    version: str
    model_id: str = ""
    model_name: str = ""
    triton_name: str = ""
    pool: str = ""
    """The names of the Tritons it runs on, separated by commas; empty if it needs none."""
    details: Mapping[str, object] = field(default_factory=dict)
    reference: Reference = field(default_factory=Reference)
    """The reference distributions for drift, by variable; from the model's folder."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its model, in their order; empty if they are not known."""
        found = self.details.get("labels")
        return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


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


Answer = Callable[[Any, Trace], Awaitable[object]]
Stream = Callable[[Any, Trace], AsyncGenerator[Event, None]]


class Handler(Protocol):
    """How an endpoint answers; ``Endpoint`` adds leases and labels.

    ``await answer(question, ask)`` returns the answer (anything JSON, or bytes) to a body of the endpoint's own, or to
    one of the forms that the handler documents, and fills ``ask``. It ends before ``ask.deadline`` or is interrupted
    then, as it is if the caller leaves. It raises ``GatewayError`` or ``PreprocessingError`` for a request that is
    refused. If ``needs_task`` is False, it awaits only outcomes (``gateway.outcome``); otherwise it runs in a task.

    A handler also has ``stream`` (``Stream``) if it can answer in pieces, and ``unread`` if its model may work on after
    a request has ended: the number of those.
    """

    takes_bytes: bool
    """Whether a body that is not JSON is passed on as bytes."""

    async def answer(self, question: Any, ask: Trace) -> object:
        """Answer one request; see the class."""
        ...

    async def close(self) -> None:
        """Release everything; called once, after the last request."""
        ...


class Endpoint:
    """A handler with its identity and the count of its leases."""

    __slots__ = (
        "_closed", "_idle", "_leases", "_retired", "answer", "batcher", "handler", "head", "headers", "identity",
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
        self.answer: Answer = _in_task(handler.answer) if getattr(handler, "needs_task", True) else handler.answer
        """Answers a request; see ``Handler``."""
        self.stream: Stream | None = getattr(handler, "stream", None)
        """Answers in pieces, if the handler can (text generation)."""
        self.batcher: Batcher[Any] | None = getattr(self.text or handler, "batcher", None)
        """The queue of requests for calls to the model; None if each request has a call of its own."""
        self._leases = 0
        self._retired = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def leases(self) -> int:
        """The number of requests that hold it open, and of those that have ended before their model did."""
        return self._leases + getattr(self.handler, "unread", 0)

    def is_overloaded(self, rank: int, tenant: str = "") -> bool:
        """Return whether one more request of this class and tenant would be refused for the work in hand."""
        return self.batcher is not None and self.batcher.is_full(rank, tenant)

    def press(self, now: float) -> None:
        """Put its limit of work into force, if it has one: a request was refused."""
        if self.batcher is not None:
            self.batcher.pressure.press(now)

    @property
    def prices(self) -> dict[str, float] | None:
        """The learned cost of calls to its model, for people; None if none were made or none are shared."""
        prices = None if self.batcher is None else self.batcher.prices
        return prices.report() if prices is not None and prices.calls else None

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


def _in_task(answer: Callable[[Any, Trace], Coroutine[Any, Any, object]]) -> Answer:
    return lambda question, ask: in_task(answer(question, ask), ask.traceparent)


async def ask_version(version: Endpoint, body: object, timeout: float, flow: Flow = DEFAULT_FLOW) -> Trace:
    """Ask exactly this version, published or not, from a task; return the trace, which has its answer.

    For trials and shadows: no metric counts it. Raises ``GatewayError``.
    """
    trace = Trace("", TRACEPARENT.get())
    trace.flow, trace.deadline = flow, asyncio.get_running_loop().time() + timeout
    version.lease()
    try:
        async with asyncio.timeout(timeout):
            trace.answer = await version.answer(body, trace)
    except TimeoutError:
        raise DeadlineExceeded(f"no answer within {timeout:g} s") from None
    except GatewayError:
        raise
    except Exception as error:
        raise as_known(error, trace) from error
    finally:
        version.release()
    return trace


def as_known(error: BaseException, trace: Trace) -> GatewayError:
    """Return ``error`` as a ``GatewayError``. Any that is not one of ours is a bug of the gateway, and logged."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, PreprocessingError):
        kind = next(known for ours, known in _OF_PREPROCESSING.items() if isinstance(error, ours))
        return kind(error.message, hint=error.hint or "")
    if not isinstance(error, Exception):
        return gone()
    _log.error("unexpected error", exc_info=error, extra={"request_id": trace.request_id, "url": trace.url})
    return InternalError("the gateway failed on this request", hint="see its log for the request id")


def note(trace: Trace, prepared: Prepared) -> None:
    """Record in ``trace`` what was encoded: rows, tokens, truncated texts."""
    rows = prepared.rows
    trace.rows = len(rows)
    trace.encoded = rows
    trace.prepared = prepared
    if len(rows) == 1:
        row = rows[0]
        trace.tokens, trace.truncated = row.n_tokens, int(row.truncated)
        return
    trace.tokens = prepared.n_tokens
    trace.truncated = prepared.n_truncated
