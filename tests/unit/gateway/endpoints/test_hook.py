"""The one handler of users' code: the stages it has, Triton between them, and what is released when a request ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gateway.endpoints.hook import HookHandler
from gateway.endpoints.tensors import TritonCall
from gateway.errors import BackendUnavailable, GatewayError, HookFailed
from gateway.hooks.executor import ThreadExecutor, Work
from gateway.trace import Trace
from gateway.triton.port import TensorInfo
from preprocessing.user_code import UserCode
from tests.waiting import soon


class Executor:
    """Notes what it is asked; each stage adds its name to the data."""

    at_once = 1
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
                    work.state = "held"
                    if stage == self.fails_in:
                        work.error = HookFailed("boom")

    def holder(self, _work: Work) -> None:
        """See ``Executor.holder``."""

    def forget(self, works: Sequence[Work]) -> None:
        """See ``Executor.forget``."""
        self.log += [f"forget {work.state}" for work in works]

    async def close(self) -> None:
        """See ``Executor.close``."""
        self.log.append("close")


class Backend:
    """Doubles, or fails."""

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
    """A thread for what takes long."""
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture
def make(threads: ThreadPoolExecutor) -> Callable[..., HookHandler]:
    """A handler around Triton, or in its place."""

    def made(executor: Any, *, error: GatewayError | None = None, has_model: bool = True) -> HookHandler:
        backend: Any = Backend(getattr(executor, "log", []), error)
        call = TritonCall(backend, "m", (TensorInfo("x", "float32", (-1,)),), ("y",)) if has_model else None
        return HookHandler(executor, call=call, default=None, threads=threads, max_rows=8)

    return made


async def ask(handler: HookHandler, body: Any) -> Any:
    """One request with time enough."""
    return await handler.answer(body, Trace("t"), asyncio.get_running_loop().time() + 30)


async def test_the_stages_stand_around_the_model(make: Any) -> None:
    """What comes before it is no answer; the state is released in any case."""
    executor = Executor("preprocess", "postprocess")
    assert [2.0, 4.0] == (await ask(make(executor), [1, 2])).tolist()
    assert ["preprocess", "infer", "postprocess!", "forget held"] == executor.log


async def test_a_process_method_takes_the_models_place(make: Any) -> None:
    """All stages are one call."""
    executor = Executor("preprocess", "process")
    await ask(make(executor), {"x": 1})
    assert ["preprocess!", "process!", "forget held"] == executor.log


@pytest.mark.parametrize("where", ["preprocess", "model"])
async def test_what_a_request_holds_is_released_wherever_it_ends(make: Any, where: str) -> None:
    """And its body is not the one that the next version is tried with."""
    executor = Executor("preprocess", "postprocess")
    executor.fails_in = where
    handler = make(executor, error=BackendUnavailable("down") if where == "model" else None)
    with pytest.raises(GatewayError):
        await ask(handler, [1])
    assert "forget held" == executor.log[-1]
    assert "postprocess!" not in executor.log
    assert handler.last_body is None


async def test_the_body_that_was_answered_is_kept_as_it_came(make: Any, tmp_path: Any) -> None:
    """Hooks change bodies in place; the next version is tried with what was asked."""
    path = tmp_path / "hook.py"
    path.write_text("class Preprocess:\n    def process(self, body, state, s=None):\n        return body.pop('x')\n")
    code = UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)
    handler = make(ThreadExecutor(code, threads=1), has_model=False)
    body = {"x": 1}
    assert 1 == await ask(handler, body)
    assert ({"x": 1}, b'{"x":1}') == (body, handler.last_body)
    await handler.close()


async def test_a_thread_is_free_again_when_its_hook_has_ended_and_not_before(make: Any, tmp_path: Any) -> None:
    """A request that was given up still occupies it; one that waits for it can be given up."""
    gate = tmp_path / "gate"
    path = tmp_path / "hook.py"
    path.write_text(
        "import time\nfrom pathlib import Path\nclass Preprocess:\n    def process(self, body, state, s=None):\n"
        f"        Path({str(gate)!r} + str(body['n'])).touch()\n"
        f"        while body['wait'] and not Path({str(gate)!r}).exists():\n            time.sleep(0.01)\n"
        "        return body['n']\n"
    )
    code = UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)
    handler = make(ThreadExecutor(code, threads=1), has_model=False)
    first, second, third = (asyncio.create_task(ask(handler, {"wait": n == 0, "n": n})) for n in range(3))
    await soon(lambda: (tmp_path / "gate0").exists())
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await asyncio.sleep(0.05)  # for what must not happen there is nothing else to wait for
    assert not third.done()
    assert not (tmp_path / "gate2").exists()
    gate.touch()
    assert 2 == await third
    await handler.close()
