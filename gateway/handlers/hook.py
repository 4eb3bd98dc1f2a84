"""Answers with users' code: runs its stages around a call to Triton or instead of it, and defaults for the rest.

One handler for every kind of code. The ``Executor`` decides where the stages run (threads, processes). Concurrent
requests share the calls to the model in Triton, if it has a batch dimension.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any

from gateway.handlers.endpoint import note
from gateway.handlers.tensors import TritonCall
from gateway.hooks.executor import Executor
from gateway.trace import Trace
from preprocessing.processor import TextProcessor
from preprocessing.user_code import STAGES


class HookHandler:
    """A user's class, a model of an engine, or both, run by an executor; ``call`` is the model in Triton, if any."""

    takes_bytes = True

    def __init__(
        self,
        executor: Executor,
        *,
        call: TritonCall | None,
        default: TextProcessor | None,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._executor = executor
        self.call = None if "process" in executor.stages else call
        self._default = default
        self._threads = threads
        self.batcher = None if self.call is None else self.call.batcher
        """The queue for calls to the model, if it has a batch dimension; its tokens are elements."""

    async def answer(self, question: Any, ask: Trace) -> object:
        """See ``Handler``."""
        ask.rows = 1
        data: Any = {**question} if type(question) is dict else question
        state: dict[str, Any] = {}
        executor, call = self._executor, self.call
        if call is None:
            data = await executor.run(STAGES, data, state, ask)
        else:
            if "preprocess" in executor.stages:
                data = await executor.run(("preprocess",), data, state, ask)
            elif self._default is not None:
                data = await self._tokenize(self._default, data, ask)
            data = await self._infer(call, data, ask)
            if "postprocess" in executor.stages:
                data = await executor.run(("postprocess",), data, state, ask)
        return data

    async def close(self) -> None:
        """See ``Handler.close``."""
        if self.call is not None:
            await self.call.close()
        await self._executor.close()

    async def _tokenize(self, default: TextProcessor, data: object, ask: Trace) -> object:
        started = perf_counter_ns()
        prepared = await asyncio.get_running_loop().run_in_executor(self._threads, default.prepare, data)
        note(ask, prepared)
        tensors = default.collate_rows(prepared.rows)
        ask.prepare_ns += perf_counter_ns() - started
        return tensors

    async def _infer(self, call: TritonCall, data: object, ask: Trace) -> object:
        outputs, queued, inferred = await call.infer(call.tensors(data), call.outputs, ask)
        ask.queue_ns += queued
        ask.infer_ns += inferred
        ordered = [outputs[name] for name in call.outputs if name in outputs] or list(outputs.values())
        return ordered[0] if len(ordered) == 1 else ordered
