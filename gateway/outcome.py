"""What the coroutine of a request waits for.

An asyncio task for each request would cost as much as parsing it. So a request's own code awaits only an ``Outcome``,
which is set from a callback of the event loop and runs the coroutine at once (see ``Driven``). A task may await one as
well. Work that needs a task or a thread is an outcome through ``in_task`` and ``in_thread``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from gateway.errors import ClientGone, forget_frames
from gateway.trace import TRACEPARENT

_log = logging.getLogger("triton_gateway.request")

P = ParamSpec("P")
T = TypeVar("T")


class Waiter(Protocol):
    """Who waits for an outcome."""

    def go_on(self) -> None:
        """Go on: it is set."""
        ...


class Outcome(Generic[T]):
    """A value or an error that is set once, from the event loop; at most one coroutine waits for it.

    A coroutine that is interrupted while it waits (its client has left, its time is over) calls ``give_up``.
    """

    __slots__ = ("error", "is_set", "value", "waiter")

    def __init__(self) -> None:
        self.waiter: Waiter | None = None
        self.is_set = False
        self.value: Any = None
        self.error: BaseException | None = None

    def set_result(self, value: T) -> None:
        """Set it, and run the coroutine that waits for it."""
        self.value = value
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        """Set it to an error, which the coroutine that waits for it gets."""
        self.error = error
        self._wake()

    def give_up(self) -> None:
        """Stop the work: nobody waits for it any more."""

    def _wake(self) -> None:
        self.is_set = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.go_on()

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_set:
            try:
                yield self
            except BaseException:
                self.waiter = None
                self.give_up()
                raise
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value

    # What a task asks of a future that it awaits (see ``asyncio.isfuture``).

    @property
    def _asyncio_future_blocking(self) -> bool:
        return True

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, _value: bool) -> None: ...

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See ``asyncio.Future``, as for the next three."""
        return asyncio.get_running_loop()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Call back in a later turn of the loop: a task cannot go on inside another one."""
        self.waiter = _Task(self, callback, context)

    def result(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value

    def cancel(self, msg: object = None) -> bool:
        """Interrupt the task that waits."""
        del msg
        if self.is_set:
            return False
        self.set_exception(asyncio.CancelledError())
        return True


Serving = Coroutine[Any, Any, None]
"""A coroutine that awaits nothing but outcomes."""


class Driven:
    """Who drives a coroutine without a task: whoever sets an outcome runs it until it waits for the next one.

    A client that leaves, and an error that is thrown, come where it waits; what it waited for is given up.
    """

    _coroutine: Serving | None
    _waits: Outcome[Any] | None
    has_left: bool
    """Whether the client has left."""
    is_over: bool
    """Whether nothing works on it any more."""
    ends: Outcome[None] | None = None
    """Set when it is over, if a task waits for that."""

    def run(self, serving: Serving) -> None:
        """Drive the coroutine from now on."""
        self._coroutine = serving
        self.go_on()

    def go_on(self, error: BaseException | None = None) -> None:
        """Run the coroutine until it waits or ends."""
        coroutine = self._coroutine
        if coroutine is None:
            return
        self._waits = None
        try:
            waits: Any = coroutine.send(None) if error is None else coroutine.throw(error)
            while self.has_left or not isinstance(waits, Outcome):
                foreign = RuntimeError(f"a request awaits {type(waits).__name__}, which needs a task: see `in_task`")
                waits = coroutine.throw(gone() if isinstance(waits, Outcome) else foreign)
        except StopIteration:
            self.over()
        except ClientGone as left:
            forget_frames(left)
            self.over()
        except BaseException as failure:  # noqa: BLE001 - a bug: this request fails, and no other
            self.over(failure)
        else:
            self._waits = waits
            waits.waiter = self

    def throw(self, error: BaseException) -> None:
        """Throw an error into the coroutine, in place of what it waits for, if it waits."""
        if self._waits is not None:
            self._waits.waiter = None
            self.go_on(error)

    def leave(self) -> None:
        """The client has left: what it waits for is given up, and nothing is written any more."""
        self.has_left = True
        self.throw(gone())

    def over(self, failure: BaseException | None = None) -> None:
        """Nothing works on it any more; ``failure``: a bug, after which nothing was answered."""
        self._coroutine = None
        self.is_over = True
        if isinstance(failure, Exception):
            _log.error("unexpected error", exc_info=failure)
        ends = self.ends
        if ends is not None:
            self.ends = None  # it refers to this: a cycle, which only a collection would free
            ends.set_result(None)

    def served(self, serving: Serving) -> Outcome[None]:
        """Drive the coroutine; a task may await its end. A task that is cancelled there leaves the request."""
        ends = self.ends = _Stoppable[None](self.leave)
        self.run(serving)
        return ends


def gone() -> ClientGone:
    """Return the error of a request whose client has left."""
    return ClientGone("the client left before the answer was ready")


class _Task:
    """A task that waits for an outcome."""

    __slots__ = ("_callback", "_context", "_outcome")

    def __init__(self, outcome: Outcome[Any], callback: Callable[[Any], object], context: Context | None) -> None:
        self._outcome, self._callback, self._context = outcome, callback, context

    def go_on(self) -> None:
        asyncio.get_running_loop().call_soon(self._callback, self._outcome, context=self._context)


class _Stoppable(Outcome[T]):
    """The outcome of work that ``stop`` ends if nobody waits for it any more."""

    __slots__ = ("_stop",)

    def __init__(self, stop: Callable[[], object]) -> None:
        super().__init__()
        self._stop = stop

    def give_up(self) -> None:
        self._stop()


def _of(future: asyncio.Future[T]) -> Outcome[T]:
    """Return the outcome of a task or a thread."""
    outcome = _Stoppable[T](future.cancel)

    def ended(_: asyncio.Future[T]) -> None:
        # Read in any case: asyncio would log an error that was never read.
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if outcome.is_set:
            return
        if error is None:
            outcome.set_result(future.result())
        else:
            outcome.set_exception(error)

    future.add_done_callback(ended)
    return outcome


def in_task(work: Coroutine[Any, Any, T], traceparent: str | None = None) -> Outcome[T]:
    """Run ``work`` in a task; its calls belong to the trace ``traceparent``, or to the current one."""
    context = copy_context()
    if traceparent is not None:
        context.run(TRACEPARENT.set, traceparent)
    return _of(asyncio.get_running_loop().create_task(work, context=context))


def in_thread(
    threads: Executor, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> Outcome[T]:  # fmt: skip
    """Run ``function`` in one of ``threads``. A running function goes on if nobody waits for it any more."""
    return _of(asyncio.get_running_loop().run_in_executor(threads, lambda: function(*arguments, **named)))
