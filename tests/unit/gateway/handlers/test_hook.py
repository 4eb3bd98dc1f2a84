"""The handler of users' code: what it keeps of a request, and what it releases at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateway.handlers.hook import HookHandler
from gateway.hooks.executor import ThreadExecutor
from gateway.trace import Trace
from preprocessing.user_code import UserCode
from tests.waiting import soon


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """A thread for slow work."""
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def make(threads: ThreadPoolExecutor) -> Callable[..., HookHandler]:
    """Return a function that makes a handler without a model."""
    return lambda executor: HookHandler(executor, call=None, default=None, threads=threads)


async def ask(handler: HookHandler, body: Any) -> Any:
    """Send one request with a distant deadline."""
    trace = Trace("t")
    trace.deadline = asyncio.get_running_loop().time() + 30
    return await handler.answer(body, trace)


async def test_the_body_of_a_request_is_left_unchanged(make: Any, tmp_path: Any) -> None:
    """Hooks change bodies in place, but a canary's is answered by the stable version if it fails."""
    path = tmp_path / "hook.py"
    path.write_text("class Preprocess:\n    def process(self, body, state, s=None):\n        return body.pop('x')\n")
    code = UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)
    handler = make(ThreadExecutor(code, threads=1))
    body = {"x": 1}
    assert 1 == await ask(handler, body)
    assert {"x": 1} == body
    await handler.close()


async def test_a_thread_is_occupied_until_its_hook_has_ended(make: Any, tmp_path: Any) -> None:
    """Also if the request of that hook was cancelled. One that is cancelled while it waits never runs."""
    gate = tmp_path / "gate"
    path = tmp_path / "hook.py"
    path.write_text(
        "import time\nfrom pathlib import Path\nclass Preprocess:\n    def process(self, body, state, s=None):\n"
        f"        Path({str(gate)!r} + str(body['n'])).touch()\n"
        f"        while body['wait'] and not Path({str(gate)!r}).exists():\n            time.sleep(0.01)\n"
        "        return body['n']\n"
    )
    code = UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)
    executor = ThreadExecutor(code, threads=1)
    handler = make(executor)
    first = asyncio.create_task(ask(handler, {"wait": True, "n": 0}))
    try:
        await soon(lambda: (tmp_path / "gate0").exists())
        second, third = (asyncio.create_task(ask(handler, {"wait": False, "n": n})) for n in (1, 2))
        await asyncio.sleep(0)
        assert 0 == executor._threads._work_queue.qsize(), "there, callers that left would stay while hooks hang"
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(0.05)  # for what must not happen there is nothing else to wait for
        assert not third.done()
        assert not (tmp_path / "gate2").exists()
    finally:
        gate.touch()
    assert 2 == await third
    assert not (tmp_path / "gate1").exists()
    await handler.close()
