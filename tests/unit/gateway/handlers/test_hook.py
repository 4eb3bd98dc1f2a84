"""The handler of users' code: what it keeps of a request, and what it releases at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from gateway.handlers.hook import HookHandler
from gateway.hooks.executor import ThreadExecutor
from gateway.trace import Trace
from preprocessing.user_code import UserCode
from tests.waiting import soon


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], HookHandler]]:
    """Return a function that makes a handler, with one thread, of the lines of ``process`` and without a model."""

    def made(lines: str) -> HookHandler:
        path = tmp_path / "hook.py"
        path.write_text(f"class Preprocess:\n    def process(self, body, state, s=None):\n{indent(lines, ' ' * 8)}")
        code = UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)
        return HookHandler(ThreadExecutor(code, threads=1), call=None, default=None, threads=threads)

    with ThreadPoolExecutor(1) as threads:
        yield made


async def ask(handler: HookHandler, body: Any) -> Any:
    """Send one request with a distant deadline."""
    trace = Trace("t")
    trace.deadline = asyncio.get_running_loop().time() + 30
    return await handler.answer(body, trace)


async def test_the_body_of_a_request_is_left_unchanged(make: Any) -> None:
    """Hooks change bodies in place, but a canary's is answered by the stable version if it fails."""
    handler, body = make("return body.pop('x')"), {"x": 1}
    assert 1 == await ask(handler, body)
    assert {"x": 1} == body
    await handler.close()


async def test_a_thread_is_occupied_until_its_hook_has_ended(make: Any, tmp_path: Path) -> None:
    """Also if the request of that hook was cancelled. One that is cancelled while it waits never runs."""
    gate = tmp_path / "gate"
    handler = make(f"""
import os, time
open({str(gate)!r} + str(body["n"]), "x").close()
while body["wait"] and not os.path.exists({str(gate)!r}): time.sleep(0.01)
return body["n"]
""")
    first = asyncio.create_task(ask(handler, {"wait": True, "n": 0}))
    try:
        await soon(lambda: (tmp_path / "gate0").exists())
        second, third = (asyncio.create_task(ask(handler, {"wait": False, "n": n})) for n in (1, 2))
        await asyncio.sleep(0)
        assert 0 == handler._executor._threads._work_queue.qsize(), (
            "there, callers that left would stay while hooks hang"
        )
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
