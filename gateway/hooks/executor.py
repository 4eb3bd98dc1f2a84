"""Runs the stages of users' code for a request in threads of the worker; ``pool`` does in hook processes.

``handlers.hook.HookHandler`` uses an ``Executor`` and does not know which of the two it is.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from types import GeneratorType
from typing import Any, Final, TypeAlias

from gateway.errors import DeadlineExceeded
from gateway.hooks.answers import HookResponse
from gateway.hooks.pool import HookPool
from gateway.own_thread import in_own_thread
from gateway.trace import Trace
from preprocessing.errors import UserCodeError
from preprocessing.user_code import Stage, UserCode

_log = logging.getLogger("triton_gateway.hooks")

_UNLOAD_S: Final = 10.0


class ThreadExecutor:
    """Runs stages in threads of the worker, or on its event loop if they are async.

    A hook that blocks occupies only its own endpoint's threads, never the event loop. ``timeout``: seconds for each
    stage, 0 for no limit.
    """

    def __init__(self, code: UserCode, *, threads: int, timeout: float = 0.0) -> None:
        self._code = code
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout or None
        self.stages: frozenset[str] = frozenset(code.stages)
        self._threads = ThreadPoolExecutor(threads, f"hook-{code.name}"[:40])
        self._free = asyncio.Semaphore(threads)

    async def run(self, stages: Sequence[Stage], data: Any, state: dict[str, Any], ask: Trace) -> Any:
        """See ``HookPool.run``; if Triton comes between, ``stages`` are those before or after it."""
        code = self._code
        for stage in stages:
            if stage not in self.stages:
                continue
            started = perf_counter_ns()
            try:
                async with asyncio.timeout(self._timeout):
                    data = await self._call(getattr(code, stage), code.is_async(stage), data, state, ask.collect)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"{stage} took longer than the {self._timeout:g} s that gateway.hook_timeout allows",
                    hint="it still runs: code that may hang belongs in a process (engine custom)",
                ) from None
            finally:
                _spend(ask, stage, perf_counter_ns() - started)
        return HookResponse.of(data) if "postprocess" in stages else data  # else it is for Triton, not for the caller

    async def close(self) -> None:
        """See ``HookPool.close``; ``unload`` gets ten seconds in a thread of its own."""
        try:
            async with asyncio.timeout(_UNLOAD_S):
                await in_own_thread(self._code.unload, "unload-code")
        except (TimeoutError, UserCodeError) as error:
            reason = error or f"took more than {_UNLOAD_S:g} s"
            _log.warning("unload of %s failed: %s", self._code.name, reason)
        self._threads.shutdown(wait=False)

    async def _call(self, hook: Callable[..., Any], is_async: bool, *arguments: Any) -> Any:
        if is_async:
            return await hook(*arguments)
        # Calls wait here, not in the pool's queue: there, those of callers that left would pile up while hooks hang.
        await self._free.acquire()
        running = self._loop.run_in_executor(self._threads, _listing, hook, *arguments)
        running.add_done_callback(lambda _: self._free.release())
        result = await asyncio.shield(running)  # a hook runs on if its caller leaves, and occupies its thread
        return await result if inspect.isawaitable(result) else result


Executor: TypeAlias = HookPool | ThreadExecutor
"""Where stages run."""


def _listing(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook, and read a generator in its result here: its code must not run on the event loop."""
    result = hook(*arguments)
    if isinstance(result, GeneratorType):
        return list(result)
    if type(result) is dict and any(isinstance(value, GeneratorType) for value in result.values()):
        return {name: list(value) if isinstance(value, GeneratorType) else value for name, value in result.items()}
    return result


def _spend(trace: Trace, stage: Stage, spent: int) -> None:
    if stage == "preprocess":
        trace.prepare_ns += spent
    elif stage == "process":
        trace.infer_ns += spent
    else:
        trace.finish_ns += spent
