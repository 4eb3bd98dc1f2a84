"""Hook processes start for a request and make room when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import DeadlineExceeded, HookFailed
from gateway.hooks.bound import ProcessBound
from gateway.hooks.pool import HookPool, PoolLimits
from gateway.hooks.process import Program
from tests.waiting import LIMIT_S, soon

SOURCE = """
import os
class Preprocess:
    def process(self, data, state, s=None):
        if data.get("exit"): os._exit(3)
        return {"pid": os.getpid()}
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The class above, in a file."""
    path = tmp_path / "hook.py"
    path.write_text(SOURCE)
    return path


def pool_of(
    code: Path, name: str = "h", bound: ProcessBound | None = None, engine: str = "custom", other: Any = None
) -> HookPool:
    """Return a pool that has not started."""
    return HookPool(Program(name, engine, code, None, {}), PoolLimits(processes=1), other, bound)


@asynccontextmanager
async def opened(code: Path, *more: Any, **fields: Any) -> AsyncIterator[HookPool]:
    """Return a pool that is closed after the test."""
    pool = pool_of(code, *more, **fields)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


async def ask(pool: HookPool, body: Any, within: float = LIMIT_S) -> Any:
    """Return the outcome of one request."""
    outcome, _ = await pool.ask(body, asyncio.get_running_loop().time() + within)
    return outcome


async def test_a_pool_whose_process_has_ended_starts_one_for_the_next_request(code: Path) -> None:
    """Whether it made room or crashed. The wait for the start counts towards the request's time limit."""
    bound = ProcessBound(1)
    async with opened(code, bound=bound) as pool, opened(code, "other", bound) as other:
        assert ([], 1) == (pool.pids, len(other.pids))
        first = (await ask(pool, {})).answer["pid"]
        assert ([first], []) == (pool.pids, other.pids)
        with pytest.raises(HookFailed, match="exited with code 3"):
            await ask(pool, {"exit": True})
        await soon(lambda: not pool.pids and bound.taken == 0)
        assert first != (await ask(pool, {})).answer["pid"]
        await soon(lambda: pool.pids and pool.processes[0].is_idle)
        await ask(other, {})
    assert 0 == bound.taken
    async with opened(code) as pool:
        pool.processes[0].kill("the test")
        await soon(lambda: not pool.pids)
        with pytest.raises(DeadlineExceeded, match="not started in time"):
            await ask(pool, {}, within=0.001)


async def test_code_that_cannot_be_started_again_is_tried_again_after_a_pause(code: Path) -> None:
    """Until then its requests fail at once, with the reason."""
    source = code.read_text()
    async with opened(code) as pool:
        code.write_text("import nosuchmodule")
        pool.processes[0].kill("the test")
        await soon(lambda: not pool.pids)
        for _ in range(2):
            with pytest.raises(HookFailed, match=r"cannot be started.*nosuchmodule"):
                await ask(pool, {})
        await soon(lambda: not pool._started)
        code.write_text(source)
        pool._retry_at = 0.0
        assert "pid" in (await ask(pool, {})).answer


@pytest.mark.parametrize(
    ("end", "error"),
    [("raise ValueError('no')", HookFailed), ("__import__('os')._exit(7)", HookFailed),
     ("__import__('time').sleep(3600)", asyncio.CancelledError)],
)  # fmt: skip
async def test_a_pool_that_cannot_start_leaves_no_process_behind(
    tmp_path: Path, end: str, error: type[BaseException]
) -> None:
    """Not even for a moment: the event loop may end next. It does not try again by itself, either."""
    code, starts = tmp_path / "bad.py", tmp_path / "starts"
    code.write_text(f"with open({str(starts)!r}, 'a') as file:\n    file.write('x')\n{end}")
    bound = ProcessBound(1)
    pool = pool_of(code, bound=bound)
    starting = asyncio.create_task(pool.start())
    if error is asyncio.CancelledError:
        await soon(lambda: starts.exists() and starts.read_text())
        assert 1 == bound.taken
        starting.cancel()
    with pytest.raises(error):
        await starting
    assert (0, set(), None) == (bound.taken, pool._started, pool._adding)
    assert "x" == starts.read_text()


ASKS = """
import os
class Preprocess:
    async def process(self, body, state, s=None):
        told = await self.send_request("other", None, {}) if body["asks"] else None
        return {"pid": os.getpid(), "told": told}
"""


async def test_calls_of_a_hook_to_other_endpoints(code: Path) -> None:
    """A late answer to a cancelled hook is ignored, and its process continues. With the process, its calls end."""
    code.write_text(ASKS)
    asked, answers, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def other(*_: Any) -> Any:
        asked.set()
        try:
            await answers.wait()
        finally:
            ended.set()
        return "late"

    async with opened(code, engine="custom_async", other=other) as pool:
        [pid] = pool.pids
        given_up = asyncio.create_task(ask(pool, {"asks": True}))
        await asked.wait()
        given_up.cancel()
        await soon(lambda: not pool.processes[0].running)
        answers.set()
        await soon(lambda: not pool.processes[0].send_requests)
        assert {"pid": pid, "told": None} == (await ask(pool, {"asks": False})).answer
        assert {"pid": pid, "told": "late"} == (await ask(pool, {"asks": True})).answer
        for event in (asked, answers, ended):
            event.clear()
        killed = asyncio.create_task(ask(pool, {"asks": True}))
        await asked.wait()
        pool.processes[0].kill("the test")
        with pytest.raises(HookFailed, match="the test"):
            await killed
        async with asyncio.timeout(LIMIT_S):
            await ended.wait()
