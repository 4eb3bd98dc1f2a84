"""Answers with users' code: runs its stages around a call to Triton or instead of it, and defaults for the rest.

One handler for every kind of code. The ``Executor`` decides where the stages run (threads, processes). A stage with a
method for several requests at once (``preprocess_batch``, ``process_batch``, ``postprocess_batch``) has a batcher of
its own, and so has the model in Triton if it has a batch dimension. Concurrent requests then share one run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

import orjson

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits
from gateway.handlers.endpoint import note, translate
from gateway.handlers.stacking import StackedCalls
from gateway.handlers.tensors import TritonCall
from gateway.hooks.executor import Executor, Work
from gateway.trace import Trace
from gateway.triton.port import Servers
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor
from preprocessing.user_code import STAGES, Stage

_BEFORE: Final[tuple[Stage, ...]] = ("preprocess",)
_AFTER: Final[tuple[Stage, ...]] = ("postprocess",)
_MAX_BATCHES: Final = 8
_BODY_EVERY_S: Final = 10.0
_MAX_BODY_BYTES: Final = 256 << 10


class _ExecutorServers(Servers):
    """Presents an executor's processes or threads to a batcher as servers with one call at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def replicas(self) -> int:
        return max(min(self._executor.concurrency, _MAX_BATCHES), 1)


class HookHandler:
    """A user's class, a model of an engine, or both, run by an executor; ``call`` is the model in Triton, if any.

    ``max_rows`` bounds the requests in one run of a stage, ``model_rows`` the rows in one call to the model (0: the
    model has no batch dimension); ``on_call`` gets the rows of each such call.
    """

    takes_bytes = True

    def __init__(
        self,
        executor: Executor,
        *,
        call: TritonCall | None,
        default: TextProcessor | None,
        threads: ThreadPoolExecutor,
        max_rows: int,
        model_rows: int = 0,
        on_call: Callable[[int], None] | None = None,
    ) -> None:
        self._executor = executor
        self.call = None if "process" in executor.stages else call
        self._default = default
        self._threads = threads
        self._batchers = {
            stages: Batcher[Work](
                partial(self._run_batch, stages), limits=BatchLimits(max_rows, max_rows, 1), on_batch=_uncounted,
                servers=_ExecutorServers(executor), size=_size_one, share=_outcomes,
            )
            for stages in ((_BEFORE, _AFTER) if self.call else (STAGES,)) if executor.batches.intersection(stages)
        }  # fmt: skip
        self._calls = None if self.call is None else self.call.stacked(model_rows, on_call)
        self.batcher = None if self._calls is None else self._calls.batcher
        """The queue for calls to the model, if it has a batch dimension; its tokens are elements."""
        self._next_body_at = 0.0
        self.last_body: bytes | None = None
        """A body that was answered recently. The next version of this code is validated with it."""

    async def answer(self, question: Any, ask: Trace) -> object:
        """See ``Handler``."""
        body: object = question
        ask.rows = 1
        now = asyncio.get_running_loop().time()
        kept = None
        if now >= self._next_body_at:
            self._next_body_at = now + _BODY_EVERY_S
            kept = _copy_of(body)
        work = Work({**body} if type(body) is dict else body, ask, ask.deadline)
        stages, call, calls = self._executor.stages, self.call, self._calls
        if call is None or calls is None:
            await self._run(STAGES, work)
        else:
            if "preprocess" in stages:
                await self._run(_BEFORE, work)
            elif self._default is not None:
                await self._tokenize(self._default, work)
            await self._infer(call, calls, work)
            if "postprocess" in stages:
                await self._run(_AFTER, work)
        if kept is not None:
            self.last_body = kept
        return work.data

    async def close(self) -> None:
        """See ``Handler.close``."""
        for batcher in self._batchers.values():
            await batcher.close()
        if self._calls is not None:
            await self._calls.close()
        await self._executor.close()

    async def _run(self, stages: Sequence[Stage], work: Work) -> None:
        """Run stages on a request, with others if the code takes several. Raises the request's ``GatewayError``."""
        batcher = self._batchers.get(tuple(stages))
        if batcher is None:
            await self._executor.run(stages, [work])
        else:
            _, queued, _ = await batcher.submit([work], work.deadline, flow=work.trace.flow)
            work.trace.queue_ns += queued
        if work.error is not None:
            raise work.error

    async def _run_batch(self, stages: Sequence[Stage], works: Sequence[Work], _timeout: float) -> Sequence[Work]:
        await self._executor.run(stages, works)
        return works

    async def _tokenize(self, default: TextProcessor, work: Work) -> None:
        started = perf_counter_ns()
        try:
            prepared = await asyncio.get_running_loop().run_in_executor(self._threads, default.prepare, work.data)
        except PreprocessingError as error:
            raise translate(error) from error
        note(work.trace, prepared)
        work.data = default.collate_rows(prepared.rows)
        work.trace.prepare_ns += perf_counter_ns() - started

    async def _infer(self, call: TritonCall, calls: StackedCalls, work: Work) -> None:
        trace = work.trace
        outputs, queued, inferred = await calls.infer(call.tensors(work.data), call.outputs, trace)
        trace.queue_ns += queued
        trace.infer_ns += inferred
        ordered = [outputs[name] for name in call.outputs if name in outputs] or list(outputs.values())
        work.data = ordered[0] if len(ordered) == 1 else ordered


def _outcomes(works: Sequence[Work], _counts: Sequence[int]) -> Sequence[object]:
    return [work.error or work for work in works]


def _size_one(_work: Work) -> int:
    return 1


def _uncounted(_rows: int, _padded: int, _tokens: int) -> None:
    """Count nothing: stages are not calls to Triton, and the requests' own times include them."""


def _copy_of(body: object) -> bytes | None:
    # Copied before the hook gets it, because hooks change bodies in place.
    try:
        copied = body if isinstance(body, bytes) else orjson.dumps(body)
    except TypeError:
        return None
    return copied if len(copied) <= _MAX_BODY_BYTES else None
