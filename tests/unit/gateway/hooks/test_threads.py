"""Threads of hooks: their number, the order of calls, and calls whose caller has left."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator

import pytest

from gateway.hooks.threads import HookThreads


class Gate:
    """A hook that blocks until the test releases it, and records its callers."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._open = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)

    def __call__(self, name: str) -> str:
        """Block until released."""
        self.calls.append(name)
        self._begun.release()
        self._open.acquire()
        return name

    async def begun(self, times: int = 1) -> None:
        """Wait until this many calls have begun."""
        for _ in range(times):
            await asyncio.to_thread(self._begun.acquire)

    def let_go(self, times: int = 1) -> None:
        """Release this many calls."""
        self._open.release(times)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is opened after the test, so that no thread waits for ever."""
    gate = Gate()
    yield gate
    gate.let_go(100)


async def test_calls_beyond_the_threads_wait_and_come_in_order(gate: Gate) -> None:
    """With two threads, two calls run at a time."""
    threads = HookThreads(2, "hook")
    answers = [threads.call(gate, name) for name in "abcd"]
    await gate.begun(2)
    assert {"a", "b"} == set(gate.calls)
    gate.let_go(2)
    await gate.begun(2)
    assert {"c", "d"} == set(gate.calls[2:])
    gate.let_go(2)
    assert list("abcd") == await asyncio.gather(*answers)


async def test_a_thread_is_started_only_if_none_is_idle() -> None:
    """Calls one after another share the first thread."""
    threads = HookThreads(4, "hook")
    assert {"hook-1"} == {await threads.call(lambda: threading.current_thread().name) for _ in range(5)}


async def test_a_call_that_is_cancelled_while_it_waits_never_runs(gate: Gate) -> None:
    """The next one runs."""
    threads = HookThreads(1, "hook")
    first, second, third = (threads.call(gate, name) for name in "abc")
    await gate.begun()
    second.cancel()
    gate.let_go(2)
    assert ["a", "c"] == [await first, await third] == gate.calls


async def test_a_call_that_is_cancelled_while_it_waits_is_freed(gate: Gate) -> None:
    """While a hook hangs, the bodies of callers that left would pile up."""

    class Body:
        """The body of a request."""

    threads = HookThreads(1, "hook")
    first = threads.call(gate, "a")
    await gate.begun()
    body = Body()
    held = weakref.ref(body)
    second = threads.call(print, body)
    del body
    second.cancel()
    del second
    await asyncio.sleep(0)
    assert held() is None
    gate.let_go()
    assert await first == "a"


async def test_a_running_call_keeps_its_thread_after_cancellation(gate: Gate) -> None:
    """A thread cannot be stopped, so the next call waits for it."""
    threads = HookThreads(1, "hook")
    first, second = threads.call(gate, "a"), threads.call(gate, "b")
    await gate.begun()
    first.cancel()
    await asyncio.sleep(0)
    assert ["a"] == gate.calls
    gate.let_go(2)
    assert "b" == await second


async def test_an_exception_of_a_hook_is_raised_to_its_caller(gate: Gate) -> None:
    """The thread continues after any exception."""
    threads = HookThreads(1, "hook")

    def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("no"), SystemExit(3)):
        with pytest.raises(type(error)):
            await threads.call(fail, error)
    gate.let_go()
    assert "a" == await threads.call(gate, "a")


async def test_an_idle_thread_keeps_no_request() -> None:
    """A body may have megabytes, and the next call may come much later."""

    class Data:
        pass

    threads, data, gone = HookThreads(1, "hook"), Data(), threading.Event()
    weakref.finalize(data, gone.set)
    await threads.call(id, data)
    del data
    assert await asyncio.to_thread(gone.wait, 30)


async def test_closing_ends_idle_threads_and_waiting_calls(gate: Gate) -> None:
    """Running calls end by themselves."""
    threads = HookThreads(1, "closing")
    running, waiting = threads.call(gate, "a"), threads.call(gate, "b")
    await gate.begun()
    [thread] = [one for one in threading.enumerate() if one.name == "closing-1"]
    threads.close()
    assert waiting.cancelled()
    gate.let_go()
    assert "a" == await running
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
