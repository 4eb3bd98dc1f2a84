"""Runs the stages of users' code for one or several requests, in threads of the worker or in hook processes.

``handlers.hook.HookHandler`` uses an ``Executor`` and does not know which of the two it is. It passes ``Work``: data,
the state between stages, and an error if there is one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import GeneratorType
from typing import Any, Final, TypeAlias

from gateway.errors import DeadlineExceeded, GatewayError, HookFailed, InputRefused
from gateway.hooks.answers import HookResponse
from gateway.hooks.pool import HookPool
from gateway.hooks.stages import Job, run_stage
from gateway.own_thread import in_own_thread
from gateway.trace import Trace
from preprocessing.errors import UserCodeError, UserCodeRefused
from preprocessing.user_code import STAGES, Stage, UserCode

_log = logging.getLogger("triton_gateway.hooks")

_THREAD_BATCHES: Final = 2
_UNLOAD_S: Final = 10.0


@dataclass(slots=True, eq=False)
class Work:
    """One request between stages. ``state`` is the dict that the stages share; ``deadline`` is in the loop's time."""

    data: Any
    trace: Trace
    deadline: float
    state: dict[str, Any] = field(default_factory=dict)
    error: GatewayError | None = None


class ProcessExecutor:
    """Runs all stages of requests in a pool of hook processes."""

    def __init__(self, pool: HookPool) -> None:
        self._pool = pool
        self.stages = frozenset(pool.loaded.stages)
        """The stages that the code has."""
        self.batches = frozenset(pool.loaded.batches)
        """The stages that take several requests in one call."""

    @property
    def concurrency(self) -> int:
        """The number of calls that can run at once."""
        return self._pool.concurrency

    async def run(self, _stages: Sequence[Stage], works: Sequence[Work]) -> None:
        """Run the stages on the works: each gets new ``data``, or an ``error``.

        Raises ``GatewayError`` if all works failed with the same error. The works are then unchanged, so parts of them
        may be retried.
        """
        reply = await self._pool.run([w.data for w in works], max([w.deadline for w in works]))
        for work, outcome in zip(works, reply.outcomes, strict=True):
            work.data, work.error = outcome.answer, outcome.error
            work.trace.queue_ns += reply.queue_ns
            for stage, spent in zip(STAGES, reply.stage_ns, strict=True):
                if spent:
                    _spend(work.trace, stage, spent)
            if outcome.statistics:
                work.trace.collect(outcome.statistics)

    async def close(self) -> None:
        """Unload the code and release everything."""
        await self._pool.close()


class ThreadExecutor:
    """Runs stages in threads of the worker, or on its event loop if they are async.

    A hook that blocks occupies only its own endpoint's threads, never the event loop. ``timeout``: seconds for each
    stage, 0 for no limit.
    """

    concurrency = _THREAD_BATCHES

    def __init__(self, code: UserCode, *, threads: int, timeout: float = 0.0) -> None:
        self._code = code
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout or None
        self.batches: frozenset[str] = frozenset(code.batch_hooks)
        self.stages: frozenset[str] = frozenset(code.stages)
        self._threads = ThreadPoolExecutor(threads, f"hook-{code.name}"[:40])
        self._free = asyncio.Semaphore(threads)

    async def run(self, stages: Sequence[Stage], works: Sequence[Work]) -> None:
        """See ``ProcessExecutor.run``; if Triton comes between, ``stages`` are those before or after it."""
        jobs = [Job(w.data, w.state, w.trace.collect) for w in works]
        for stage in stages:
            if stage not in self.stages:
                continue
            started = perf_counter_ns()
            try:
                if self._timeout is None:
                    await run_stage(self._code, stage, jobs, self._call)
                else:
                    async with asyncio.timeout(self._timeout):
                        await run_stage(self._code, stage, jobs, self._call)
            except TimeoutError:
                late = DeadlineExceeded(
                    f"{stage} took longer than the {self._timeout:g} s that gateway.hook_timeout allows",
                    hint="it still runs: code that may hang belongs in a process (engine custom)",
                )
                for work in works:
                    work.error = late
                return
            spent = perf_counter_ns() - started
            for work in works:
                _spend(work.trace, stage, spent)
        for work, job in zip(works, jobs, strict=True):
            work.data = job.data
            if job.error is not None:
                work.error = _gateway_error(job.error)
            elif "postprocess" in stages:  # it is for the caller, not for Triton
                try:
                    work.data = HookResponse.of(job.data)
                except HookFailed as error:
                    work.error = error

    async def close(self) -> None:
        """See ``ProcessExecutor.close``; ``unload`` gets ten seconds in a thread of its own."""
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


Executor: TypeAlias = ProcessExecutor | ThreadExecutor
"""Where stages run."""


def _listing(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook, and read a generator in its result here: its code must not run on the event loop."""
    result = hook(*arguments)
    if isinstance(result, GeneratorType):
        return list(result)
    if type(result) is dict and any(isinstance(value, GeneratorType) for value in result.values()):
        return {name: list(value) if isinstance(value, GeneratorType) else value for name, value in result.items()}
    return result


def _gateway_error(error: UserCodeError) -> GatewayError:
    kind = InputRefused if isinstance(error, UserCodeRefused) else HookFailed
    return kind(error.message, hint=error.hint or "")


def _spend(trace: Trace, stage: Stage, spent: int) -> None:
    if stage == "preprocess":
        trace.prepare_ns += spent
    elif stage == "process":
        trace.infer_ns += spent
    else:
        trace.finish_ns += spent
