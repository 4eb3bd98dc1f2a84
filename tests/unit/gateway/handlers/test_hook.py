"""The handler of users' code: its stages, the call to Triton between them, and what it releases at a request's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gateway.errors import BackendUnavailable, GatewayError, HookFailed
from gateway.handlers.hook import HookHandler
from gateway.handlers.tensors import TritonCall
from gateway.hooks.executor import ThreadExecutor, Work
from gateway.trace import Trace
from gateway.triton.port import TensorInfo
from preprocessing.user_code import UserCode
from tests.waiting import soon


class Executor:
    """Records its calls; each stage adds its name to the data."""

    concurrency = 1
    batches: frozenset[str] = frozenset()

    def __init__(self, *stages: str) -> None:
        self.stages = frozenset(stages)
        self.log: list[str] = []
        self.fails_in = ""

    async def run(self, stages: Sequence[str], works: Sequence[Work], *, is_answer: bool) -> None:
        """See ``Executor.run``."""
        for stage in stages:
            if stage in self.stages:
                self.log.append(f"{stage}{'!' if is_answer else ''}")
                for work in works:
                    work.data = work.data if isinstance(work.data, dict) else np.asarray(work.data)
                    if stage == self.fails_in:
                        work.error = HookFailed("boom")

    async def close(self) -> None:
        """See ``Executor.close``."""
        self.log.append("close")


class Backend:
    """Doubles its input, or fails."""

    def __init__(self, log: list[str], error: GatewayError | None = None) -> None:
        self.log, self.error = log, error

    async def infer(self, _model: str, inputs: Any, _outputs: Any, *, timeout: float, **_: Any) -> Any:
        """See ``Backend.infer``."""
        assert timeout > 0
        self.log.append("infer")
        if self.error is not None:
            raise self.error
        return {"y": inputs["x"] * 2}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """A thread for slow work."""
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def make(threads: ThreadPoolExecutor) -> Callable[..., HookHandler]:
    """Return a function that makes a handler with a model, or without one."""

    def made(executor: Any, *, error: GatewayError | None = None, has_model: bool = True) -> HookHandler:
        backend: Any = Backend(getattr(executor, "log", []), error)
        call = TritonCall(backend, "m", (TensorInfo("x", "float32", (-1,)),), ("y",)) if has_model else None
        return HookHandler(executor, call=call, default=None, threads=threads, max_rows=8)

    return made


async def ask(handler: HookHandler, body: Any) -> Any:
    """Send one request with a distant deadline."""
    trace = Trace("t")
    trace.deadline = asyncio.get_running_loop().time() + 30
    return await handler.answer(body, trace)


async def test_the_stages_run_before_and_after_the_model(make: Any) -> None:
    """The output of the first stages is not an answer."""
    executor = Executor("preprocess", "postprocess")
    assert [2.0, 4.0] == (await ask(make(executor), [1, 2])).tolist()
    assert ["preprocess", "infer", "postprocess!"] == executor.log


async def test_a_process_method_replaces_the_model(make: Any) -> None:
    """All stages are one call to the executor."""
    executor = Executor("preprocess", "process")
    await ask(make(executor), {"x": 1})
    assert ["preprocess!", "process!"] == executor.log


@pytest.mark.parametrize("where", ["preprocess", "model"])
async def test_an_error_at_any_stage_ends_the_request(make: Any, where: str) -> None:
    """And the body that another version would be tried with is unchanged."""
    executor = Executor("preprocess", "postprocess")
    executor.fails_in = where
    handler = make(executor, error=BackendUnavailable("down") if where == "model" else None)
    with pytest.raises(GatewayError):
        await ask(handler, [1])
    assert "postprocess!" not in executor.log
    assert handler.last_body is None


async def test_the_body_of_an_answered_request_is_kept_unchanged(make: Any, tmp_path: Any) -> None:
    """Hooks change bodies in place, but a new version is tried with the original body."""
    path = tmp_path / "hook.py"
    path.write_text("class Preprocess:\n    def process(self, body, state, s=None):\n        return body.pop('x')\n")
    code = UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)
    handler = make(ThreadExecutor(code, threads=1), has_model=False)
    body = {"x": 1}
    assert 1 == await ask(handler, body)
    assert ({"x": 1}, b'{"x":1}') == (body, handler.last_body)
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
    handler = make(executor, has_model=False)
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
