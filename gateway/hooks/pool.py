"""The hook processes of one endpoint version: started on demand, limited in time and memory, killed and replaced.

A process runs as many requests at a time as the hook has threads (one by default; many if it is async), so user code
that damages its process harms few requests. ``control.hooks`` creates a pool beside the running system, and
``handlers.hook`` sends it requests. The processes run ``gateway.hooks.child``. They end when the gateway process
ends, for whatever reason: the kernel sends them a signal, and their socket is closed. A pool may have no process for a
while, until a request waits for one: see ``bound``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.errors import DeadlineExceeded, GatewayError, HookFailed
from gateway.hooks.answers import Outcome
from gateway.hooks.bound import ProcessBound
from gateway.hooks.json_form import to_json
from gateway.hooks.process import (
    CLOSE_S,
    HookProcess,
    Loaded,
    PendingCall,
    Program,
    too_late,
)
from gateway.hooks.wire import MAX_PAYLOAD, Buffer
from gateway.trace import Trace
from preprocessing.user_code import Stage

_log = logging.getLogger("triton_gateway.hooks")

_KILLED_S: Final = 5.0
"""A killed process has ended after some milliseconds, on a very busy machine after seconds."""
_PAUSE_S: Final = 5.0
"""Code that could not be started is tried again after 5 s."""

SendRequest = Callable[[str, "str | None", Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of one pool.

    ``processes``: the most processes. ``threads``: requests at a time in one process, if the hook is not async.
    ``memory``: bytes that a process may take beyond what it has once loaded, 0 for half of the machine's memory.
    ``timeout``: seconds for one request, 0 for the request's own time-out. ``start``: seconds to load the code.
    """

    processes: int = 4
    threads: int = 1
    memory: int = 0
    timeout: float = 0.0
    start: float = 300.0


class HookPool:
    """The processes of one endpoint version, and the requests that wait for one.

    It starts one process, which describes the code, and more, up to the limit, while requests wait. The bound ends idle
    ones if others need their place. All methods must be called on the event loop.
    """

    def __init__(
        self, program: Program, limits: PoolLimits, send_request: SendRequest, bound: ProcessBound | None = None
    ) -> None:
        self.name = program.name
        self.is_async = False
        self.stages: frozenset[str] = frozenset()
        """The stages that the code has; known once it has started, as ``is_async``."""
        self.processes: list[HookProcess] = []
        self._program = program
        self._limits = limits if limits.memory else replace(limits, memory=_machine_memory() // 2)
        self._send_request = send_request
        self._bound = bound or ProcessBound()
        self._started: set[HookProcess] = set()
        self._adding: asyncio.Task[None] | None = None
        self._waiting: deque[PendingCall] = deque()
        self._broken: GatewayError | None = None
        self._retry_at = 0.0
        self._has_started = self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes, oldest first."""
        return [p.pid for p in self.processes]

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for a process."""
        while self._waiting and self._waiting[0].answer.done():  # its caller has left
            self._waiting.popleft()
        return bool(self._waiting)

    async def start(self) -> None:
        """Start the first process and read its description. Raises ``HookFailed`` if the code cannot be loaded."""
        self._bound.pools.add(self)
        try:
            try:
                async with asyncio.timeout(self._limits.start):
                    await self._bound.slot()
            except TimeoutError:
                raise HookFailed(
                    f"its code was not started within {self._limits.start:g} s: all {self._bound.limit} hook processes "
                    "of the worker are busy", hint="raise TRITON_GATEWAY_MAX_HOOK_PROCESSES",
                ) from None  # fmt: skip
            process, loaded = await self._start_process()
        except BaseException:
            self._is_closed = True  # nobody calls close for a pool that has not started
            await _have_ended([*self._started], _KILLED_S)  # as in close
            self._leave_bound_if_ended()
            raise
        self.is_async, self.stages = loaded.is_async, loaded.stages
        self.processes.append(process)
        self._has_started = True
        self.dispatch_waiting()

    async def run(self, _stages: Sequence[Stage], data: Any, _state: dict[str, Any], ask: Trace) -> Any:
        """Run the stages, here always all, on a request's ``data``, and return what they make of it.

        ``state`` is the dict that they share. Raises ``GatewayError``.
        """
        outcome, queued = await self.ask(data, ask.deadline)
        prepared, inferred, finished = outcome.stage_ns
        ask.queue_ns += queued
        ask.prepare_ns += prepared
        ask.infer_ns += inferred
        ask.finish_ns += finished
        if outcome.statistics:
            ask.collect(outcome.statistics)
        if outcome.error is not None:
            raise outcome.error
        return outcome.answer

    async def ask(self, body: object, deadline: float) -> tuple[Outcome, int]:
        """Run all stages on the body of a request; return the outcome, and the nanoseconds until a process took it.

        They must end before ``deadline`` (the event loop's time), or within the pool's own time-out if that is sooner.
        Raises ``HookFailed`` if the process ends or cannot be started, and ``DeadlineExceeded``.
        """
        loop = asyncio.get_running_loop()
        now = time.perf_counter_ns()
        pending = _pending_call(body, deadline)
        if self._broken is not None and not self.processes and loop.time() < self._retry_at:
            raise self._broken
        self._waiting.append(pending)
        self.dispatch_waiting()
        if pending.process is None:
            pending.timer = loop.call_at(deadline, self._time_out_waiting, pending)
        try:
            return await pending.answer, pending.sent_ns - now
        except asyncio.CancelledError:
            if pending.process is not None:
                pending.process.cancel(pending)
            raise
        finally:
            if pending.process is None and pending.timer is not None:
                pending.timer.cancel()

    async def close(self) -> None:
        """Unload the code in every process and end it; processes that still run after ten seconds are killed."""
        self._is_closed = True
        tasks = [
            *(call for process in self._started for call in process.send_requests),
            *([self._adding] if self._adding else ()),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in self._waiting:
            waiting.fail(HookFailed("the endpoint is closed"))
        processes = list(self._started)  # including those that are starting or ending
        try:
            for process in processes:
                process.close()
            await _have_ended(processes, CLOSE_S + 1)
        finally:
            for process in processes:
                process.kill("the endpoint is closed")
            await _have_ended(processes, _KILLED_S)  # so that none is left behind if the event loop ends next
            self._leave_bound_if_ended()

    # --- called by the processes and the bound ------------------------------------------------------------------------

    def dispatch_waiting(self) -> None:
        """Dispatch waiting requests, oldest first, and start a process if one is needed.

        Called whenever a process may have room.
        """
        while self.has_waiting:
            free = self._free_process()
            if free is None:
                break
            self._dispatch(self._waiting.popleft(), free)
        self._start_if_needed()
        self._bound.assign()  # a process that is idle now may make room for another pool

    def process_ended(self, process: HookProcess, reason: str) -> None:
        """Remove a process that has ended, and cancel its calls of ``send_request``."""
        self._started.discard(process)
        for call in process.send_requests:
            call.cancel()
        if process in self.processes:
            self.processes.remove(process)
            if not self._is_closed and not process.is_closing:
                _log.warning("%s: a hook process ended: %s", self.name, reason)
        self._bound.release()
        self._leave_bound_if_ended()
        self.dispatch_waiting()

    def answer_call(self, process: HookProcess, head: Mapping[str, Any], payload: Buffer) -> None:
        """Answer a hook's call of ``send_request``."""
        task = asyncio.create_task(self._call(process, head, payload))
        process.send_requests.add(task)
        task.add_done_callback(process.send_requests.discard)

    async def _call(self, process: HookProcess, head: Mapping[str, Any], payload: Buffer) -> None:
        try:
            answer = await self._send_request(head["endpoint"], head["version"], orjson.loads(payload))
            reply = to_json(answer)
        except Exception:  # noqa: BLE001 - after any error the hook gets None, as for a refusal
            _log.exception("%s: send_request failed", self.name)
            reply = b""
        process.reply(head["id"], reply)

    def _leave_bound_if_ended(self) -> None:
        if self._is_closed and not self._started:
            self._bound.pools.discard(self)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _dispatch(self, pending: PendingCall, process: HookProcess) -> None:
        if pending.timer is not None:
            pending.timer.cancel()
        timeout = self._limits.timeout
        limit = min(pending.deadline, asyncio.get_running_loop().time() + timeout) if timeout else pending.deadline
        process.send(pending, limit)

    def _time_out_waiting(self, pending: PendingCall) -> None:
        pending.fail(too_late() if self.processes else DeadlineExceeded(
            "the endpoint's code was not started in time: its process had ended",
            hint="try again; if other endpoints occupy all hook processes, raise TRITON_GATEWAY_MAX_HOOK_PROCESSES",
        ))  # fmt: skip

    # --- the processes ------------------------------------------------------------------------------------------------

    def _free_process(self) -> HookProcess | None:
        """Return the process with room and the fewest requests, or None.

        Of several, the oldest is taken, so that the newer ones become idle.
        """
        return min((one for one in self.processes if one.is_free), key=lambda one: len(one.running), default=None)

    def _needs_process(self) -> bool:
        """Return whether one more process is needed."""
        is_serving = any(not process.is_retired for process in self.processes)
        return self.has_waiting and (not is_serving or len(self.processes) < self._limits.processes)

    def _start_if_needed(self) -> None:
        # Until the first process has loaded, another is not started: `start` raises why it ended.
        is_due = self._has_started and asyncio.get_running_loop().time() >= self._retry_at
        if is_due and not self._is_closed and self._adding is None and self._needs_process():
            self._adding = asyncio.create_task(self._add())
            self._adding.add_done_callback(self._added)

    async def _add(self) -> None:
        await self._bound.slot()
        if not self._needs_process():  # the waiting requests have left meanwhile
            self._bound.release()
            return
        try:
            process, _ = await self._start_process()
        except GatewayError as error:
            loop = asyncio.get_running_loop()
            self._retry_at = loop.time() + _PAUSE_S
            loop.call_later(_PAUSE_S, self.dispatch_waiting)
            _log.warning("%s: its code cannot be started again: %s", self.name, error)
            self._broken = HookFailed(f"the endpoint's code cannot be started: {error.message}", hint=error.hint,
                                      retry_after=_PAUSE_S)  # fmt: skip
            while self._waiting and not self.processes:
                self._waiting.popleft().fail(self._broken)
            return
        self.processes.append(process)

    async def _start_process(self) -> tuple[HookProcess, Loaded]:
        """Start a process and return it once it has loaded; its slot must be taken. Raises ``HookFailed``."""
        process = HookProcess(self)
        self._started.add(process)
        limits = self._limits
        try:
            loaded = await process.start(
                self._program, threads=limits.threads, memory=limits.memory, timeout=limits.start,
            )  # fmt: skip
        except BaseException:
            process.kill("it could not be used")
            raise
        return process, loaded

    def _added(self, task: asyncio.Task[None]) -> None:
        self._adding = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s: starting a hook process failed", self.name, exc_info=task.exception())
        self.dispatch_waiting()


def _pending_call(body: object, deadline: float) -> PendingCall:
    try:
        sent = body if type(body) is bytes else to_json(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise HookFailed(f"the input of the endpoint's code cannot be sent to its process: {error}") from error
    if len(sent) > MAX_PAYLOAD:
        raise HookFailed(
            f"the input of the endpoint's code is {len(sent) >> 20} MiB: at most {MAX_PAYLOAD >> 20} can be sent"
        )
    return PendingCall(sent, type(body) is not bytes, deadline, asyncio.get_running_loop().create_future())


async def _have_ended(processes: Sequence[HookProcess], within: float) -> None:
    """Return when the processes have ended, after ``within`` seconds at the latest."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            for process in processes:
                await process.ended.wait()


def _machine_memory() -> int:
    """Return the memory of the machine or, if that is less, of the container, in bytes."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found = min(found, int(Path(file).read_text()))
    return found
