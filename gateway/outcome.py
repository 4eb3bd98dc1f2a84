"""What the coroutine of a request waits for.

An asyncio task for each request would cost as much as parsing it. So a request's own code awaits only an ``Outcome``,
which is set from a callback of the event loop and runs the coroutine at once (see ``path.ask``). A task may await one
as well. Work that needs a task or a thread is an outcome through ``in_task`` and ``in_thread``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from gateway.trace import TRACEPARENT

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


class _Task:
    """A task that waits for an outcome."""

    __slots__ = ("_callback", "_context", "_outcome")

    def __init__(self, outcome: Outcome[Any], callback: Callable[[Any], object], context: Context | None) -> None:
        self._outcome, self._callback, self._context = outcome, callback, context

    def go_on(self) -> None:
        asyncio.get_running_loop().call_soon(self._callback, self._outcome, context=self._context)


class _Work(Outcome[T]):
    """The outcome of a task or a thread, which is cancelled if nobody waits for it any more."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[T]) -> None:
        super().__init__()
        self._future = future
        future.add_done_callback(self._ended)

    def give_up(self) -> None:
        self._future.cancel()

    def _ended(self, future: asyncio.Future[T]) -> None:
        if self.is_set:
            if not future.cancelled():
                future.exception()  # nobody waits: asyncio would log that it was never read
        elif future.cancelled():
            self.set_exception(asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(future.result())


def in_task(work: Coroutine[Any, Any, T], traceparent: str | None = None) -> Outcome[T]:
    """Run ``work`` in a task; its calls belong to the trace ``traceparent``, or to the current one."""
    context = copy_context()
    if traceparent is not None:
        context.run(TRACEPARENT.set, traceparent)
    return _Work(asyncio.get_running_loop().create_task(work, context=context))


def in_thread(
    threads: Executor, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> Outcome[T]:  # fmt: skip
    """Run ``function`` in one of ``threads``. A running function goes on if nobody waits for it any more."""
    return _Work(asyncio.get_running_loop().run_in_executor(threads, lambda: function(*arguments, **named)))
