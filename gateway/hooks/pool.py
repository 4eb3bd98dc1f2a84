"""The hook processes of one endpoint version: started when asked, limited in time and memory, killed and replaced.

One process does one thing at a time (if the hook is async: many), so that whatever user code does to its process hurts
the request that made it do so. ``control.hooks`` makes a pool beside the running system, ``ProcessExecutor`` asks it.
What runs in the process is ``gateway.hooks.child``; the processes end with this one, however it ends (a kernel signal,
and the end of their socket). A pool may have no process for a while: see ``bound``.
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
from gateway.hooks.answers import HeldState, HookReply
from gateway.hooks.bound import ProcessBound
from gateway.hooks.process import (
    ASYNC_AT_ONCE,
    CLOSE_S,
    HookProcess,
    Loaded,
    PendingCall,
    Program,
    state_lost,
    too_late,
)
from gateway.hooks.values import Buffer, encode, encode_body, total
from gateway.hooks.wire import MAX_MEMORY

_log = logging.getLogger("triton_gateway.hooks")

_MAX_PAUSE_S: Final = 30.0

SendRequest = Callable[[str, "str | None", Any], Awaitable[Any]]
Item = tuple[Any, "bytes | HeldState | None"]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of one pool.

    ``processes``: the most, of which ``minimum`` stay when idle. ``threads``: requests at a time in one process, if the
    hook is not async. ``memory``: bytes per process, 0 for half of the available memory. ``timeout``: seconds for one
    request, 0 for the request's own. ``start``: seconds to load.
    """

    processes: int = 4
    threads: int = 1
    memory: int = 0
    timeout: float = 0.0
    start: float = 300.0
    minimum: int = 0


class HookPool:
    """The processes of one endpoint version, and the requests that wait for one.

    Starts with one, to learn from it; more, up to the limit, when requests wait. One that has ended by accident is
    replaced; those that idle, the bound ends. All methods belong to the event loop.
    """

    def __init__(
        self, program: Program, limits: PoolLimits, send_request: SendRequest, bound: ProcessBound | None = None
    ) -> None:
        self.name = program.name
        self.is_async = False
        self.loaded = Loaded(is_async=False, stages=[], batches=[], schemas={})
        """The description that the code gave when it was loaded."""
        self.minimum = min(limits.minimum, limits.processes)
        self.processes: list[HookProcess] = []
        self._program = program
        self._limits = limits if limits.memory else replace(limits, memory=_machine_memory() // 2)
        self._send_request = send_request
        self._bound = bound or ProcessBound()
        self._started: set[HookProcess] = set()
        self._adding: asyncio.Task[None] | None = None
        self._waits_for_slot = False
        self._waiting: deque[PendingCall] = deque()
        self._keeps_one = True
        self._failures = 0
        self._broken: GatewayError | None = None
        self._retry_at = 0.0
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes, oldest first."""
        return [p.pid for p in self.processes]

    @property
    def at_once(self) -> int:
        """The most requests that all processes take at once."""
        return self._limits.processes * (ASYNC_AT_ONCE if self.is_async else self._limits.threads)

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for a process."""
        while self._waiting and self._waiting[0].answer.done():  # given up
            self._waiting.popleft()
        return bool(self._waiting)

    async def start(self) -> None:
        """Start the first process and read its description. Raises ``HookFailed`` if the code cannot be loaded."""
        self._bound.add(self)
        try:
            try:
                async with asyncio.timeout(self._limits.start):
                    await self._bound.slot(self, is_start=True)
            except TimeoutError:
                raise HookFailed(
                    f"its code was not started within {self._limits.start:g} s: all {self._bound.limit} hook processes "
                    "of the worker are busy", hint="raise TRITON_GATEWAY_MAX_HOOK_PROCESSES",
                ) from None  # fmt: skip
            process, self.loaded = await self._started_process()
        except BaseException:
            self._is_closed = True  # a pool that has not started is not closed
            self._leave_if_over()
            raise
        self.is_async = self.loaded.is_async
        self.processes.append(process)
        self.changed()

    async def run(self, stages: Sequence[str], items: Sequence[Item], deadline: float, *, is_answer: bool) -> HookReply:
        """Run the stages on ``items`` (data and state) in one process.

        They have until loop time ``deadline``, or the pool's own time-out if that is sooner. All ``HeldState`` must be
        of the same process. Raises ``HookFailed`` if the process ends or cannot be started, and ``DeadlineExceeded``.
        """
        loop = asyncio.get_running_loop()
        now = time.perf_counter_ns()
        asked = self._ask(stages, items, deadline, is_answer=is_answer)
        holder = next((state.process for _, state in items if isinstance(state, HeldState)), None)
        if holder is not None and holder.ended.is_set():
            raise state_lost(holder.why or "it is gone")
        if self._broken is not None and not self.processes and loop.time() < self._retry_at:
            raise self._broken
        self._keeps_one = True
        free = self._with_room() if holder is None and not self._waiting else None
        if free is not None:
            self._dispatch(asked, free)
        else:
            (self._waiting if holder is None else holder.waiting).append(asked)
            self.changed()
        if asked.process is None:
            asked.timer = loop.call_at(deadline, self._not_reached, asked)
        try:
            outcomes, stage_ns = await asked.answer
        except asyncio.CancelledError:
            if asked.process is not None:
                asked.process.give_up(asked)
            raise
        finally:
            if asked.process is None and asked.timer is not None:
                asked.timer.cancel()
        return HookReply(outcomes, asked.sent_ns - now, stage_ns)

    def drop(self, state: object) -> None:
        """Release a state that ``run`` has returned."""
        if isinstance(state, HeldState):
            state.process.drop(state.number)

    async def close(self) -> None:
        """Unload the code in every process and end it; kill what has not ended after ten seconds."""
        self._is_closed = True
        tasks = [
            *(call for process in self._started for call in process.calls),
            *([self._adding] if self._adding else ()),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in self._waiting:
            waiting.fail(HookFailed("the endpoint is closed"))
        processes = list(self._started)  # also those that are just being started or ended
        try:
            for process in processes:
                process.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S + 1):
                    for process in processes:
                        await process.ended.wait()
        finally:
            for process in processes:
                process.kill("the endpoint is closed")
                process.look()
            self._leave_if_over()

    # --- called by the processes and the bound ------------------------------------------------------------------------

    def changed(self) -> None:
        """Dispatch waiting requests, the oldest first: a process may have room, or one more may be needed."""
        for process in self.processes:
            while process.waiting and process.has_slot:
                self._dispatch(process.waiting.popleft(), process)
        while self.has_waiting:
            free = self._with_room()
            if free is None:
                break
            self._dispatch(self._waiting.popleft(), free)
        self._grow()
        self._bound.settle()  # another pool may wait for a process that is idle now

    def process_ended(self, process: HookProcess, reason: str) -> None:
        """Remove a process that has ended, and cancel its calls of ``send_request``."""
        self._started.discard(process)
        for call in process.calls:
            call.cancel()
        if process in self.processes:
            self.processes.remove(process)
            if not self._is_closed and not process.was_asked_to_end:
                _log.warning("%s: a hook process ended: %s", self.name, reason)
        self._bound.give_back()
        self._leave_if_over()
        self.changed()

    def answer_call(self, process: HookProcess, head: Mapping[str, Any], payload: Buffer) -> None:
        """Answer a hook's call of ``send_request``."""
        task = asyncio.create_task(self._call(process, head, payload))
        process.calls.add(task)
        task.add_done_callback(process.calls.discard)

    def scale_to_zero(self) -> None:
        """See ``bound.Pool.scale_to_zero``."""
        self._keeps_one = False

    def tick(self, *, is_full: bool) -> None:
        """See ``bound.Pool.tick``."""
        limit = self._limits.memory
        for process in list(self._started):
            if not is_full and process.is_idle:
                continue
            # One that loads may need more for a moment than it holds later.
            if process in self.processes and (held := process.resident()) > limit:
                process.kill(f"it held {_mib(held)} of memory and may hold {_mib(limit)} (gateway.hook_memory)")
            process.look()

    async def _call(self, process: HookProcess, head: Mapping[str, Any], payload: Buffer) -> None:
        try:
            answer = await self._send_request(head["endpoint"], head["version"], orjson.loads(payload))
            reply = orjson.dumps(answer)
        except Exception:  # noqa: BLE001 - whatever it is: the hook gets None, as it would for any other refusal
            _log.exception("%s: send_request failed", self.name)
            reply = b""
        process.reply(head["id"], reply)

    def _leave_if_over(self) -> None:
        if self._is_closed and not self._started:  # until then the bound checks whether they have ended
            self._bound.remove(self)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _ask(self, stages: Sequence[str], items: Sequence[Item], deadline: float, *, is_answer: bool) -> PendingCall:
        pieces: list[Buffer] = []
        sizes: list[int] = []
        kinds: list[str] = []
        is_models = stages[0] == "postprocess"
        kept = [state.number if isinstance(state, HeldState) else None for _, state in items]
        for data, state in items:
            try:
                # Postprocess gets a model's output, the other stages a body.
                kind, value = ("value", encode(data, is_exact=True)) if is_models else encode_body(data)
            except TypeError as error:
                raise HookFailed(f"the input of the endpoint's code cannot be sent to its process: {error}") from error
            own = state if type(state) is bytes else b""
            kinds.append(kind)
            sizes += (total(value), len(own))
            pieces += value
            if own:
                pieces.append(own)
        if sum(sizes) > MAX_MEMORY:
            raise HookFailed(
                f"the input of the endpoint's code is {sum(sizes) >> 20} MiB: at most {MAX_MEMORY >> 20} can be sent"
            )
        head = {"stages": list(stages), "answer": is_answer, "are": kinds, "sizes": sizes, "kept": kept}
        numbers = [number for number in kept if number is not None]
        return PendingCall(head, pieces, len(items), deadline, asyncio.get_running_loop().create_future(), numbers)

    def _dispatch(self, asked: PendingCall, process: HookProcess) -> None:
        if asked.answer.done():  # given up
            return
        if asked.timer is not None:
            asked.timer.cancel()
        own = self._limits.timeout
        limit = min(asked.deadline, asyncio.get_running_loop().time() + own) if own else asked.deadline
        process.ask(asked, limit)

    def _not_reached(self, asked: PendingCall) -> None:
        if self._waits_for_slot and not self.processes:
            asked.fail(DeadlineExceeded(
                f"all {self._bound.limit} hook processes of the worker were busy with other endpoints",
                hint="raise TRITON_GATEWAY_MAX_HOOK_PROCESSES, or add gateways",
            ))  # fmt: skip
        elif not self.processes:
            asked.fail(DeadlineExceeded(
                "the endpoint's code was not started in time: its process had ended because it was idle",
                hint="gateway.hook_min_processes=1 keeps one",
            ))  # fmt: skip
        else:
            asked.fail(too_late())

    # --- the processes ------------------------------------------------------------------------------------------------

    def _with_room(self) -> HookProcess | None:
        """Return the process with room and the fewest requests; the oldest of these, so that others become idle."""
        found, fewest = None, ASYNC_AT_ONCE + self._limits.threads
        for process in self.processes:
            busy = len(process.asked)
            if busy < fewest and process.is_free:
                if not busy:
                    return process
                found, fewest = process, busy
        return found

    def _lacks(self) -> bool:
        """Return whether one more process is needed."""
        serving = [p.is_retired for p in self.processes].count(False)
        if serving < max(self.minimum, self._keeps_one):
            return True
        return self.has_waiting and (serving == 0 or len(self.processes) < self._limits.processes)

    def _grow(self) -> None:
        if not self._is_closed and self._adding is None and self._lacks():
            self._adding = asyncio.create_task(self._add())
            self._adding.add_done_callback(self._added)

    async def _add(self) -> None:
        wait = self._retry_at - asyncio.get_running_loop().time()
        if wait > 0:
            await asyncio.sleep(wait)
        self._waits_for_slot = True
        try:
            await self._bound.slot(self)
        finally:
            self._waits_for_slot = False
        if not self._lacks():  # given up meanwhile
            self._bound.give_back()
            return
        try:
            process, _ = await self._started_process()
        except GatewayError as error:
            self._failures += 1
            # The first retry is immediate: the machine may be short of memory for a moment.
            pause = min(_MAX_PAUSE_S, 0.5 * 2**self._failures) if self._failures > 1 else 0.0
            self._retry_at = asyncio.get_running_loop().time() + pause
            if self.processes:
                return
            _log.warning("%s: its code cannot be started again: %s", self.name, error)
            if self._failures > 1:
                self._broken = HookFailed(f"the endpoint's code cannot be started: {error.message}", hint=error.hint,
                                          retry_after=pause)  # fmt: skip
                while self._waiting:
                    self._waiting.popleft().fail(self._broken)
            return
        self._failures, self._broken = 0, None
        self.processes.append(process)

    async def _started_process(self) -> tuple[HookProcess, Loaded]:
        """Start a process in a slot that is taken already, and return it when it has loaded. Raises ``HookFailed``."""
        process = HookProcess(self)
        self._started.add(process)
        limits = self._limits
        try:
            loaded = await process.start(
                self._program, threads=limits.threads, memory=limits.memory, timeout=limits.start
            )
        except BaseException:
            process.kill("it could not be used")
            raise
        return process, loaded

    def _added(self, task: asyncio.Task[None]) -> None:
        self._adding = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s: starting a hook process failed", self.name, exc_info=task.exception())
        self.changed()


def _machine_memory() -> int:
    """Return the memory of the machine or, if that is less, of the container, in bytes."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found = min(found, int(Path(file).read_text()))
    return found


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
