"""How an endpoint answers whose code runs in hook processes, or takes several requests at a time.

``HookHandler`` (``endpoint.py``) is the plain case: stages in threads, one request each. Here the stages run where a
``Place`` says (processes, or threads), around Triton or in place of it, and concurrent requests go through together
where the class has ``preprocess_batch``, ``process_batch`` or ``postprocess_batch``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.endpoints.endpoint import TritonCall, translate
from gateway.endpoints.gathering import Gatherer
from gateway.errors import DeadlineExceeded, GatewayError, HookFailed
from gateway.hooks.pool import HookPool
from gateway.hooks.stages import Job, run_stage
from gateway.trace import Trace
from preprocessing.errors import PreprocessingError, UserCodeError
from preprocessing.processor import TextProcessor
from preprocessing.user_code import Stage, UserCode

_log = logging.getLogger("triton_gateway.endpoint")

ALL: Final[tuple[Stage, ...]] = ("preprocess", "process", "postprocess")
_BATCHES_AT_ONCE: Final = 2
_BODY_EVERY_S: Final = 10.0
_MOST_BODY_BYTES: Final = 256 << 10


@dataclass(slots=True, eq=False)
class Work:
    """One request on its way; ``state`` is a dict in threads and opaque bytes between processes."""

    data: Any
    trace: Trace
    deadline: float
    state: Any = None
    error: GatewayError | None = None


class Place(Protocol):
    """Where stages run."""

    stages: frozenset[str]
    """The stages the code has."""
    batches: frozenset[str]
    """Those that take several requests at once."""

    async def run(self, stages: Sequence[Stage], works: Sequence[Work], *, is_answer: bool) -> None:
        """Put the works through the stages: each gets new ``data`` and ``state``, or its ``error``."""
        ...

    async def close(self) -> None:
        """Unload."""
        ...


class InProcesses:
    """Stages run in a pool of hook processes."""

    def __init__(self, pool: HookPool) -> None:
        self._pool = pool
        self.stages = frozenset(pool.details["stages"])
        self.batches = frozenset(pool.details["batches"])

    @property
    def at_once(self) -> int:
        """Calls that can run together."""
        return self._pool.at_once

    async def run(self, stages: Sequence[Stage], works: Sequence[Work], *, is_answer: bool) -> None:
        """See ``Place.run``. Where a process ends under several works, each is tried alone: one of them did it."""
        deadline = max(w.deadline for w in works)
        try:
            reply = await self._pool.run(stages, [(w.data, w.state) for w in works], deadline, is_answer=is_answer)
        except HookFailed as error:
            if len(works) == 1:
                works[0].error = error
                return
            await asyncio.gather(*(self.run(stages, [w], is_answer=is_answer) for w in works))
            return
        except GatewayError as error:
            for work in works:
                work.error = error
            return
        for work, outcome in zip(works, reply.outcomes, strict=True):
            work.data, work.state, work.error = outcome.answer, outcome.state, outcome.error
            trace = work.trace
            trace.queue_ns += reply.queue_ns
            trace.prepare_ns += reply.stage_ns[0]
            trace.infer_ns += reply.stage_ns[1]
            trace.finish_ns += reply.stage_ns[2]
            if outcome.statistics:
                trace.collect(outcome.statistics)

    async def close(self) -> None:
        """See ``Place.close``."""
        await self._pool.close()


class InThreads:
    """Stages run in threads of the worker, or on its event loop where they are async."""

    def __init__(self, code: UserCode, *, threads: int, timeout: float = 0.0) -> None:
        self._code = code
        self._timeout = timeout or None
        self.batches = frozenset(code.batch_hooks)
        flags = {"preprocess": code.has_preprocess, "process": code.has_process, "postprocess": code.has_postprocess}
        self.stages = frozenset(stage for stage, has in flags.items() if has)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"hook-{code.name}"[:40])
        self.at_once = _BATCHES_AT_ONCE

    async def run(self, stages: Sequence[Stage], works: Sequence[Work], *, is_answer: bool) -> None:  # noqa: ARG002 - see ``Place.run``
        """See ``Place.run``."""
        jobs = [Job(w.data, {} if w.state is None else w.state, w.trace.collect) for w in works]
        for stage in stages:
            started = perf_counter_ns()
            try:
                async with asyncio.timeout(self._timeout):
                    await run_stage(self._code, stage, jobs, self._call)
            except TimeoutError:
                late = DeadlineExceeded(
                    f"{stage} took longer than the {self._timeout:g} s that gateway.hook_timeout allows"
                )
                for work in works:
                    work.error = late
                return
            spent = perf_counter_ns() - started
            for work in works:
                _spend(work.trace, stage, spent)
        for work, job in zip(works, jobs, strict=True):
            work.data, work.state = job.data, job.state
            if job.error is not None:
                work.error = translate(job.error)

    async def close(self) -> None:
        """See ``Place.close``; ``unload`` gets ten seconds in a thread of its own."""
        try:
            async with asyncio.timeout(10):
                await asyncio.get_running_loop().run_in_executor(None, self._code.unload)
        except (TimeoutError, UserCodeError) as error:
            _log.warning("unload of %s did not end well: %s", self._code.name, error or "took more than 10 s")
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, hook: Callable[..., Any], is_async: bool, *arguments: Any) -> Any:
        if is_async:
            return await hook(*arguments)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, hook, *arguments)
        return await result if inspect.isawaitable(result) else result


class StagedHandler:
    """A user's class, a model of an engine, or both, run in a ``Place``; ``call`` is Triton where it is in between."""

    takes_bytes = True

    def __init__(
        self,
        place: InProcesses | InThreads,
        *,
        call: TritonCall | None,
        default: TextProcessor | None,
        heavy: ThreadPoolExecutor,
        most_rows: int,
        can_stack: bool = False,
    ) -> None:
        self._place = place
        self.call = None if "process" in place.stages else call
        self._default = default
        self._heavy = heavy
        self._can_stack = can_stack
        self._gatherer: Gatherer[Work] | None = None
        if place.batches:
            self._gatherer = Gatherer(self._together, most=most_rows, at_once=min(place.at_once, 8))
        self._next_body_at = 0.0
        self.last_body: bytes | None = None
        """A body that was answered lately: what the next version of this code is tried with."""

    async def answer(self, body: object, trace: Trace, deadline: float) -> object:
        """See ``Handler.answer``."""
        trace.rows = 1
        now = asyncio.get_running_loop().time()
        kept = _copied(body) if now >= self._next_body_at else None
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
            self._next_body_at = now + _BODY_EVERY_S
            self.last_body = kept
        return work.data

    async def close(self) -> None:
        """See ``Handler.close``."""
        if self._gatherer is not None:
            await self._gatherer.close()
        await self._place.close()

    async def _together(self, works: list[Work]) -> list[Work]:
        await self._go(works)
        return works

    async def _go(self, works: Sequence[Work]) -> None:
        place = self._place
        if self.call is None and (self._default is None or "preprocess" in place.stages or "process" in place.stages):
            await place.run(ALL, works, is_answer=True)
            return
        if "preprocess" in place.stages:
            await place.run(("preprocess",), works, is_answer=False)
        elif self._default is not None:
            await asyncio.gather(*(self._tokenize(work) for work in works))
        live = [work for work in works if work.error is None]
        if live and self.call is not None:
            await self._infer(live)
        live = [work for work in works if work.error is None]
        if live and "postprocess" in place.stages:
            await place.run(("postprocess",), live, is_answer=True)

    async def _tokenize(self, work: Work) -> None:
        assert self._default is not None  # noqa: S101 - asked before
        started = perf_counter_ns()
        try:
            prepared = await asyncio.get_running_loop().run_in_executor(self._heavy, self._default.prepare, work.data)
        except PreprocessingError as error:
            work.error = translate(error)
            return
        trace = work.trace
        trace.rows, trace.encoded, trace.tokens = len(prepared.rows), prepared.rows, prepared.n_tokens
        trace.unknown_tokens, trace.truncated = prepared.n_unknown, prepared.n_truncated
        work.data = self._default.collate_rows(prepared.rows)
        trace.prepare_ns += perf_counter_ns() - started

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
        rows = [len(next(iter(t.values()))) for _, t in group]
        inputs = {name: np.concatenate([t[name] for _, t in group]) for name in group[0][1]}
        try:
            outputs = await call.backend.infer(call.model, inputs, call.outputs, timeout=timeout)
        except GatewayError as error:
            if len(group) == 1:
                group[0][0].error = error
                return
            await asyncio.gather(*(self._infer_group(call, [one]) for one in group))  # one of them is at fault
            return
        ends = np.cumsum(rows)
        for (work, _), end, count in zip(group, ends, rows, strict=True):
            own = {name: array[end - count : end] for name, array in outputs.items()} if len(group) > 1 else outputs
            ordered = [own[name] for name in call.outputs if name in own] or list(own.values())
            work.data = ordered[0] if len(ordered) == 1 else ordered


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


def _spend(trace: Trace, stage: str, spent: int) -> None:
    if stage == "preprocess":
        trace.prepare_ns += spent
    elif stage == "process":
        trace.infer_ns += spent
    else:
        trace.finish_ns += spent


def _copied(body: object) -> bytes | None:
    # Before the hook gets it: hooks change bodies in place.
    try:
        copied = body if isinstance(body, bytes) else orjson.dumps(body)
    except TypeError:
        return None
    return copied if len(copied) <= _MOST_BODY_BYTES else None
