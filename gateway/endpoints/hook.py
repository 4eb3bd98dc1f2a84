"""How an endpoint with users' code answers: the stages it has, around Triton or in its place; the default for the rest.

One handler for every kind of code. Where the stages run (threads, processes) is the ``Executor``'s affair; concurrent
requests go through together if the class has ``preprocess_batch``, ``process_batch`` or ``postprocess_batch``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.endpoints.endpoint import note, translate
from gateway.endpoints.gathering import Gatherer
from gateway.endpoints.tensors import TritonCall
from gateway.errors import GatewayError
from gateway.hooks.executor import Executor, Work
from gateway.trace import Trace
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor
from preprocessing.user_code import STAGES

_MOST_BATCHES: Final = 8
_BODY_EVERY_S: Final = 10.0
_MOST_BODY_BYTES: Final = 256 << 10


class HookHandler:
    """A user's class, a model of an engine, or both, run by an executor; ``call`` is Triton if that is in between."""

    takes_bytes = True

    def __init__(
        self,
        executor: Executor,
        *,
        call: TritonCall | None,
        default: TextProcessor | None,
        heavy: ThreadPoolExecutor,
        most_rows: int,
        can_stack: bool = False,
    ) -> None:
        self._executor = executor
        self.call = None if "process" in executor.stages else call
        self._default = default
        self._heavy = heavy
        self._can_stack = can_stack
        self._gatherer: Gatherer[Work] | None = None
        if executor.batches:
            self._gatherer = Gatherer(self._together, most=most_rows, at_once=min(executor.at_once, _MOST_BATCHES))
        self._next_body_at = 0.0
        self.last_body: bytes | None = None
        """A body that was answered lately: what the next version of this code is tried with."""

    async def answer(self, body: object, trace: Trace, deadline: float) -> object:
        """See ``Handler.answer``."""
        trace.rows = 1
        now = asyncio.get_running_loop().time()
        kept = None
        if now >= self._next_body_at:
            self._next_body_at = now + _BODY_EVERY_S
            kept = _copied(body)
        work = Work({**body} if type(body) is dict else body, trace, deadline)
        if self._gatherer is not None:
            waiting = perf_counter_ns()
            await self._gatherer.submit(work)
            spent = trace.prepare_ns + trace.infer_ns + trace.finish_ns
            trace.queue_ns = max(0, perf_counter_ns() - waiting - spent)
        else:
            await self._go([work])
        if work.error is not None:
            raise work.error
        if kept is not None:
            self.last_body = kept
        return work.data

    async def close(self) -> None:
        """See ``Handler.close``."""
        if self._gatherer is not None:
            await self._gatherer.close()
        await self._executor.close()

    async def _together(self, works: list[Work]) -> list[Work]:
        await self._go(works)
        return works

    async def _go(self, works: Sequence[Work]) -> None:
        executor = self._executor
        if self.call is None:
            await executor.run(STAGES, works, is_answer=True)
            return
        try:
            await self._around(executor, works)
        finally:
            executor.forget(works)

    async def _around(self, executor: Executor, works: Sequence[Work]) -> None:
        """The stages around a call to Triton."""
        if "preprocess" in executor.stages:
            await executor.run(("preprocess",), works, is_answer=False)
        elif self._default is not None:
            await asyncio.gather(*(self._tokenize(work) for work in works))
        live = [work for work in works if work.error is None]
        if live:
            await self._infer(live)
        live = [work for work in works if work.error is None]
        if live and "postprocess" in executor.stages:
            await executor.run(("postprocess",), live, is_answer=True)

    async def _tokenize(self, work: Work) -> None:
        assert self._default is not None  # noqa: S101 - asked before
        started = perf_counter_ns()
        try:
            prepared = await asyncio.get_running_loop().run_in_executor(self._heavy, self._default.prepare, work.data)
        except PreprocessingError as error:
            work.error = translate(error)
            return
        note(work.trace, prepared)
        work.data = self._default.collate_rows(prepared.rows)
        work.trace.prepare_ns += perf_counter_ns() - started

    async def _infer(self, works: Sequence[Work]) -> None:
        call = self.call
        assert call is not None  # noqa: S101 - asked before
        started = perf_counter_ns()
        tensors: list[tuple[Work, dict[str, NDArray[Any]]]] = []
        for work in works:
            try:
                tensors.append((work, call.tensors(work.data)))
            except GatewayError as error:
                work.error = error
        for group in _stackable(tensors) if self._can_stack else [[t] for t in tensors]:
            await self._infer_group(call, group)
        spent = perf_counter_ns() - started
        for work in works:
            work.trace.infer_ns += spent

    async def _infer_group(self, call: TritonCall, group: Sequence[tuple[Work, dict[str, NDArray[Any]]]]) -> None:
        timeout = max(w.deadline for w, _ in group) - asyncio.get_running_loop().time()
        alone = len(group) == 1
        inputs = group[0][1] if alone else {n: np.concatenate([t[n] for _, t in group]) for n in group[0][1]}
        try:
            outputs = await call.backend.infer(call.model, inputs, call.outputs, timeout=timeout)
        except GatewayError as error:
            if alone:
                group[0][0].error = error
                return
            await asyncio.gather(*(self._infer_group(call, [one]) for one in group))  # one of them is at fault
            return
        start = 0
        for work, own in group:
            end = start + (0 if alone else len(next(iter(own.values()))))
            found = outputs if alone else {name: array[start:end] for name, array in outputs.items()}
            ordered = [found[name] for name in call.outputs if name in found] or list(found.values())
            work.data = ordered[0] if len(ordered) == 1 else ordered
            start = end


def _stackable(
    tensors: Sequence[tuple[Work, dict[str, NDArray[Any]]]],
) -> list[list[tuple[Work, dict[str, NDArray[Any]]]]]:
    """Groups of requests whose tensors differ in their rows only: one call each."""
    groups: dict[Any, list[tuple[Work, dict[str, NDArray[Any]]]]] = {}
    for work, arrays in tensors:
        is_scalar = any(a.ndim == 0 for a in arrays.values())
        key = id(work) if is_scalar else tuple((n, a.shape[1:]) for n, a in arrays.items())
        groups.setdefault(key, []).append((work, arrays))
    return list(groups.values())


def _copied(body: object) -> bytes | None:
    # Before the hook gets it: hooks change bodies in place.
    try:
        copied = body if isinstance(body, bytes) else orjson.dumps(body)
    except TypeError:
        return None
    return copied if len(copied) <= _MOST_BODY_BYTES else None
