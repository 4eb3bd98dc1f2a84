"""Hook processes of one endpoint version: started, asked, limited in time and memory, killed and replaced.

One process does one thing at a time (where the hook is async: many), so that whatever user code does to its process
hurts the request that made it do so. ``control.assemble`` starts a pool beside the running system, ``hook_handlers``
asks it, ``Handler.close`` ends it. What runs in the process is ``gateway.hooks.child``; the processes end with
this one, however it ends (a kernel signal, and the end of their socket).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

import preprocessing
from gateway.errors import DeadlineExceeded, GatewayError, HookFailed, InputRefused
from gateway.hooks.wire import (
    LARGE,
    Buffer,
    FrameReader,
    dump,
    from_memory,
    load_plain,
    pack,
    to_memory,
    total,
)  # fmt: skip

_log = logging.getLogger("triton_gateway.hooks")

_TICK_S: Final = 0.1
_CANCEL_S: Final = 1.0
_CLOSE_S: Final = 10.0
_IDLE_S: Final = 60.0
_ASYNC_AT_ONCE: Final = 64
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_BOOT: Final = (
    "import sys; home, extra = sys.argv[4:6]; sys.path[:0] = [extra] if extra else []\n"
    "if home not in sys.path: sys.path.append(home)\n"
    "from gateway.hooks.child import main; main(*map(int, sys.argv[1:4]))"
)

SendRequest = Callable[[str, "str | None", Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Program:
    """What a hook process loads. ``packages``: a folder that its imports look in first."""

    name: str
    engine: str
    code: Path | None
    model: Path | None
    endpoint: Mapping[str, object]
    packages: Path | None = None


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """``processes`` at most; ``threads`` requests at a time in one, where the hook is not async; ``memory`` bytes each,
    0 for half of what there is; ``timeout`` seconds for one request, 0 for the request's own; ``start`` seconds to
    load.
    """

    processes: int = 4
    threads: int = 1
    memory: int = 0
    timeout: float = 0.0
    start: float = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request in the process. ``state`` is opaque and goes back with the next stage."""

    answer: object
    error: GatewayError | None
    state: bytes | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HookReply:
    """The outcomes of what was asked together, and how long it took: waiting, then each stage (nanoseconds)."""

    outcomes: list[Outcome]
    queue_ns: int
    stage_ns: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class HookResponse:
    """A response with status and headers that a hook made itself."""

    body: bytes
    status_code: int
    raw_headers: list[tuple[bytes, bytes]]


@dataclass(slots=True, eq=False)
class _Asked:
    """One frame, waiting for a process or in one. Its answer may be given up; the process is busy until it has it."""

    head: Mapping[str, Any]
    payload: Sequence[Buffer]
    deadline: float
    answer: asyncio.Future[tuple[dict[str, Any], Buffer]]
    timer: asyncio.TimerHandle | None = None
    process: _Process | None = None
    number: int = 0
    sent_ns: int = 0
    is_cancelled: bool = False

    def fail(self, error: Exception) -> None:
        """Give whoever still waits an error."""
        if not self.answer.done():
            self.answer.set_exception(error)


class _Process(asyncio.Protocol):
    """One hook process and the socket to it."""

    def __init__(self, pool: HookPool) -> None:
        self._pool = pool
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._side: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._number = 0
        self.asked: dict[int, _Asked] = {}
        self.loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.loaded.add_done_callback(_look)  # a start that is given up leaves nobody who asks
        self.ended = asyncio.Event()
        self.slots = 0
        self.is_retired = False
        self._is_closing = False
        self.idle_since = 0.0
        self.why = ""
        """Why it was killed, where we did it."""

    @property
    def was_asked_to_end(self) -> bool:
        """Whether it was closed in order."""
        return self._is_closing

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else 0

    @property
    def is_free(self) -> bool:
        return not self.is_retired and len(self.asked) < self.slots

    async def start(self, program: Program, limits: PoolLimits, token: str) -> dict[str, Any]:
        """Start it and wait until it has loaded; returns what it says about the code. Raises ``HookFailed``."""
        ours, theirs = socket.socketpair()
        self._side, side = socket.socketpair()
        self._side.setblocking(False)
        home = str(Path(preprocessing.__file__).parents[1])
        try:
            with theirs, side:
                # Threads of native libraries in several processes would only contend; the caller's wish stands.
                environ = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
                arguments = [theirs.fileno(), side.fileno(), os.getpid(), home, program.packages or ""]
                self._child = subprocess.Popen(  # noqa: ASYNC220 - two milliseconds, and seldom
                    [sys.executable, "-P", "-c", _BOOT, *map(str, arguments)], stdin=subprocess.DEVNULL, env=environ,
                    pass_fds=(theirs.fileno(), side.fileno()), start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            ours.close()
            self._end()
            raise HookFailed(f"its hook process cannot be started: {error}") from error
        loop = asyncio.get_running_loop()
        ours.setblocking(False)
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        self._write({
            "k": "load", "name": program.name, "engine": program.engine, "token": token, "threads": limits.threads,
            "code": str(program.code) if program.code else None, "endpoint": dict(program.endpoint),
            "model_path": str(program.model) if program.model else None, "memory": limits.memory,
        })  # fmt: skip
        try:
            async with asyncio.timeout(limits.start):
                loaded = await asyncio.shield(self.loaded)
        except TimeoutError:
            self.kill(f"it did not load within {limits.start:g} s")
            raise HookFailed(
                f"its code did not finish loading within {limits.start:g} s", hint="does load() wait for something?"
            ) from None
        except asyncio.CancelledError:
            self.kill("it is not needed any more")
            raise
        self.slots = _ASYNC_AT_ONCE if loaded["is_async"] else limits.threads
        self.idle_since = time.monotonic()
        return loaded

    def ask(self, asked: _Asked, limit: float) -> None:
        """Send one request; at loop time ``limit`` its time is over."""
        self._number += 1
        asked.process, asked.number, asked.sent_ns = self, self._number, time.perf_counter_ns()
        self.asked[self._number] = asked
        asked.timer = asyncio.get_running_loop().call_at(limit, self._too_late, asked)
        self._write({"k": "run", "id": self._number, **asked.head}, asked.payload)

    def give_up(self, asked: _Asked) -> None:
        """Nobody waits for this any more; a hook that is async is cancelled, another one runs on until its limit."""
        if self._pool.is_async and not asked.is_cancelled and asked.number in self.asked:
            asked.is_cancelled = True
            self._write({"k": "cancel", "id": asked.number})

    def _too_late(self, asked: _Asked) -> None:
        if asked.number not in self.asked:
            return
        asked.fail(_too_late())
        loop = asyncio.get_running_loop()
        if self._pool.is_async and not asked.is_cancelled:
            self.give_up(asked)
            asked.timer = loop.call_later(_CANCEL_S, self._too_late, asked)
            return
        self.is_retired = True
        if all(a.answer.done() for a in self.asked.values()):
            self.kill("it did not answer in time")
        else:  # the others get their time; the one that hangs holds nothing but this process
            asked.timer = loop.call_later(_TICK_S, self._too_late, asked)
        self._pool.changed()

    def retire(self) -> None:
        """Take no more requests; end when those in it are answered."""
        self.is_retired = True
        if not self.asked:
            self.close()

    def close(self) -> None:
        """Ask it to unload and end."""
        self.is_retired = self._is_closing = True
        self._write({"k": "close", "id": 0})

    def kill(self, why: str) -> None:
        """End it and everything it has started, now."""
        self.is_retired = True
        self.why = self.why or why
        if self._child is not None and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def resident(self) -> int:
        """Bytes of memory it holds; 0 when it is gone."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:  # noqa: PTH123 - ten times a second
                return int(file.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def look(self) -> None:
        """Notice its end where the socket has not told: something it started may hold the other end."""
        if self._child is not None and not self.ended.is_set() and self._child.poll() is not None:
            self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")  # noqa: S101 - uvloop's is its own
        self._transport = transport  # type: ignore[assignment] # it has write and abort

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        try:
            for head, payload in self._frames.feed(data):
                self._received(head, self._received_memory(head["shared"]) if "shared" in head else payload)
        except (ValueError, KeyError, TypeError, OSError) as error:  # user code wrote to our socket
            self.kill(f"it sent what is no frame: {error}")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature of every protocol
        """See ``asyncio.Protocol``."""
        if self.ended.is_set():
            return
        if self._child is not None and self._child.poll() is None:
            # It closes its end when it dies, and dies a moment after.
            asyncio.get_running_loop().call_later(0.02, self._reap)
        else:
            self._end()

    def _reap(self) -> None:
        if self.ended.is_set() or self._child is None:
            return
        if self._child.poll() is None:
            self.kill("it closed its connection")
            asyncio.get_running_loop().call_later(0.02, self._reap)
            return
        self._end()

    def _received_memory(self, size: int) -> memoryview:
        assert self._side is not None  # noqa: S101 - made before the process
        _, descriptors, _, _ = socket.recv_fds(self._side, 1, 1)
        if len(descriptors) != 1:
            raise ValueError("no memory came with it")
        return from_memory(descriptors[0], size)

    def _received(self, head: dict[str, Any], payload: Buffer) -> None:
        kind = head["k"]
        if kind == "done":
            asked = self.asked.pop(head["id"], None)
            if asked is not None:
                if asked.timer is not None:
                    asked.timer.cancel()
                if not asked.answer.done():
                    asked.answer.set_result((head, payload))
            if head.get("spoiled") and not self.is_retired:
                _log.warning("%s: a hook process is replaced: %s", self._pool.name, head["spoiled"])
                self.is_retired = True
            self.idle_since = time.monotonic()
            if self.is_retired and not self.asked:
                self.close()
            self._pool.changed()
        elif kind == "call":
            self._pool.answer_call(self, head, payload)
        elif kind == "loaded":
            if not self.loaded.done():
                self.loaded.set_result(head)
        elif kind == "unloadable" and not self.loaded.done():
            self.loaded.set_exception(HookFailed(head["message"], hint=head["hint"]))

    def reply(self, number: int, payload: bytes) -> None:
        """Answer what the hook asked with ``send_request``."""
        self._write({"k": "reply", "id": number}, [payload])

    def _write(self, head: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if (size := total(payload)) > LARGE and self._gave_memory(payload):
            head, payload = {**head, "shared": size}, ()
        self._transport.write(pack(head, b"".join(payload)))

    def _gave_memory(self, payload: Sequence[Buffer]) -> bool:
        assert self._side is not None  # noqa: S101 - made before the process
        try:
            descriptor = to_memory(payload)
        except OSError:  # no descriptors or no memory left: it goes through the socket
            return False
        try:
            socket.send_fds(self._side, [b"m"], [descriptor])
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _end(self) -> None:
        if self.ended.is_set():
            return
        self.is_retired = True
        child = self._child
        code = child.poll() if child is not None else 0
        if child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # what it forked and left
        self.ended.set()
        reason = self.why or _describe(code)
        error = HookFailed(
            f"the process of the endpoint's code ended: {reason}", hint="the request that did this was not answered"
        )
        for asked in self.asked.values():
            if asked.timer is not None:
                asked.timer.cancel()
            asked.fail(error)
        self.asked.clear()
        if not self.loaded.done():
            self.loaded.set_exception(HookFailed(f"its process ended while it loaded: {reason}"))
        if self._transport is not None:
            self._transport.abort()
        if self._side is not None:
            self._side.close()
        self._pool.gone(self, reason)


class HookPool:
    """The processes of one endpoint version, and the requests that wait for one.

    Starts with one; more, up to the limit, when requests wait; those that have idled for a minute end. All methods
    belong to the event loop.
    """

    def __init__(self, program: Program, limits: PoolLimits, send_request: SendRequest) -> None:
        self.name = program.name
        self.is_async = False
        self.details: dict[str, Any] = {}
        """What the code says about itself: ``stages``, ``batches``, ``schemas``."""
        self._program = program
        self._limits = limits if limits.memory else _with_memory(limits)
        self._send_request = send_request
        self._token = uuid.uuid4().hex
        self._processes: list[_Process] = []
        self._started: set[_Process] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._waiting: deque[_Asked] = deque()
        self._failures = 0
        self._broken: GatewayError | None = None
        self._retry_at = 0.0
        self._ticker: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def pids(self) -> list[int]:
        """The processes that are up, oldest first."""
        return [p.pid for p in self._processes]

    @property
    def at_once(self) -> int:
        """How many requests can be in the processes together, at most."""
        return self._limits.processes * (_ASYNC_AT_ONCE if self.is_async else self._limits.threads)

    async def start(self) -> None:
        """Start the first process and learn from it. Raises ``HookFailed`` where the code cannot be loaded."""
        process = self._new()
        try:
            loaded = await process.start(self._program, self._limits, self._token)
        except BaseException:
            self._is_closed = True  # nobody closes a pool that has not started
            process.kill("its pool has not started")
            raise
        self.is_async = loaded["is_async"]
        self.details = {name: loaded[name] for name in ("stages", "batches", "schemas")}
        self._processes.append(process)
        self._ticker = asyncio.create_task(self._watch(), name=f"hooks {self.name}")

    async def run(
        self, stages: Sequence[str], items: Sequence[tuple[Any, bytes | None]], deadline: float, *, is_answer: bool
    ) -> HookReply:
        """Put ``items`` (data, and state where there is one) through the stages in one process; until loop time
        ``deadline``, or the pool's own timeout where that comes first.

        Raises ``HookFailed`` where the process ends or cannot be started, ``DeadlineExceeded``.
        """
        loop = asyncio.get_running_loop()
        now = time.perf_counter_ns()
        head = {"stages": list(stages), "answer": is_answer}
        asked = _Asked(head, dump(list(items)), deadline, loop.create_future())
        if self._broken is not None and not self._processes and loop.time() < self._retry_at:
            raise self._broken
        process = self._with_room() if not self._waiting else None
        if process is not None:
            process.ask(asked, self._limit(deadline))
        else:
            self._waiting.append(asked)
            asked.timer = loop.call_at(deadline, asked.fail, _too_late())
            self.changed()
        try:
            done, parts = await asked.answer
        except asyncio.CancelledError:
            if asked.process is not None:
                asked.process.give_up(asked)
            raise
        finally:
            if asked.process is None and asked.timer is not None:
                asked.timer.cancel()
        if "broken" in done:
            raise HookFailed(f"the process of the endpoint's code could not answer: {done['broken']}")
        return HookReply(list(_outcomes(done, parts)), asked.sent_ns - now, tuple(done["ns"]))

    async def close(self) -> None:
        """Unload in every process and end them; what does not end in ten seconds is killed."""
        self._is_closed = True
        tasks = [*self._starting, *self._calls, *([self._ticker] if self._ticker else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in self._waiting:
            waiting.fail(HookFailed("the endpoint is closed"))
        processes = list(self._started)  # also those that are just being started or ended
        for process in processes:
            process.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                for process in processes:
                    await process.ended.wait()
        except TimeoutError:
            _log.warning("%s: its hook processes did not end within %g s and are killed", self.name, _CLOSE_S)
        finally:
            for process in processes:
                process.kill("the endpoint is closed")
                process.look()

    # --- called by the processes --------------------------------------------------------------------------------------

    def changed(self) -> None:
        """A process may have room, or more may be needed: who waits longest is first."""
        while self._waiting:
            if self._waiting[0].answer.done():  # given up
                self._waiting.popleft()
                continue
            process = self._with_room()
            if process is None:
                break
            asked = self._waiting.popleft()
            if asked.timer is not None:
                asked.timer.cancel()
            process.ask(asked, self._limit(asked.deadline))
        self._grow()

    def gone(self, process: _Process, reason: str) -> None:
        """A process has ended."""
        self._started.discard(process)
        if process in self._processes:
            self._processes.remove(process)
            if not self._is_closed and not process.was_asked_to_end:
                _log.warning("%s: a hook process ended: %s", self.name, reason)
        self.changed()

    def answer_call(self, process: _Process, head: Mapping[str, Any], payload: Buffer) -> None:
        """A hook called ``send_request``."""
        task = asyncio.create_task(self._call(process, head, payload))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, process: _Process, head: Mapping[str, Any], payload: Buffer) -> None:
        try:
            answer = await self._send_request(str(head["endpoint"]), head["version"], orjson.loads(payload))
            reply = orjson.dumps(answer)
        except Exception:  # noqa: BLE001 - whatever it is: the hook gets None, as it would for any other refusal
            _log.exception("%s: send_request failed", self.name)
            reply = b""
        process.reply(head["id"], reply)

    # --- the processes ------------------------------------------------------------------------------------------------

    def _with_room(self) -> _Process | None:
        """The process with the fewest requests that takes one more; the oldest of them, so that the others idle."""
        return min((p for p in self._processes if p.is_free), key=lambda p: len(p.asked), default=None)

    def _new(self) -> _Process:
        process = _Process(self)
        self._started.add(process)
        return process

    def _limit(self, deadline: float) -> float:
        own = self._limits.timeout
        return min(deadline, asyncio.get_running_loop().time() + own) if own else deadline

    def _grow(self) -> None:
        """Start a process where none is left, or where requests wait and there may be one more."""
        if self._is_closed or self._starting:
            return
        serving = sum(not p.is_retired for p in self._processes)
        if serving == 0 or (self._waiting and len(self._processes) < self._limits.processes):
            task = asyncio.create_task(self._add())
            self._starting.add(task)
            task.add_done_callback(self._added)

    async def _add(self) -> None:
        wait = self._retry_at - asyncio.get_running_loop().time()
        if wait > 0:
            await asyncio.sleep(wait)
        process = self._new()
        try:
            await process.start(self._program, self._limits, self._token)
        except GatewayError as error:
            self._failures += 1
            # The first try again is at once: a machine may be short of memory for a moment.
            pause = min(30.0, 0.5 * 2**self._failures) if self._failures > 1 else 0.0
            self._retry_at = asyncio.get_running_loop().time() + pause
            process.kill("it could not be used")
            if self._processes:
                return
            _log.warning("%s: its code cannot be started again: %s", self.name, error)
            if self._failures > 1:
                self._broken = HookFailed(f"the endpoint's code cannot be started: {error.message}", hint=error.hint,
                                          retry_after=pause)  # fmt: skip
                while self._waiting:
                    self._waiting.popleft().fail(self._broken)
            return
        self._failures, self._broken = 0, None
        self._processes.append(process)

    def _added(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s: starting a hook process failed", self.name, exc_info=task.exception())
        self.changed()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            for process in list(self._processes):
                held = process.resident()
                if held > self._limits.memory:
                    process.kill(f"it held {_size(held)} of memory and may hold {_size(self._limits.memory)} "
                                 "(gateway.hook_memory)")  # fmt: skip
                process.look()
            idle = [p for p in self._processes if p.is_free and not p.asked and now - p.idle_since > _IDLE_S]
            if idle and sum(not p.is_retired for p in self._processes) > 1:
                idle[-1].retire()


def _outcomes(head: Mapping[str, Any], payload: Buffer) -> Iterator[Outcome]:
    parts = memoryview(payload)
    sizes = iter(head["sizes"])
    place = 0

    def part() -> memoryview:
        nonlocal place
        size = next(sizes)
        place += size
        return parts[place - size : place]

    for job in head["jobs"]:
        kind = job["is"]
        state = None
        error: GatewayError | None = None
        answer: object = None
        if kind == "json":
            answer = orjson.loads(part())
        elif kind == "stage":
            try:
                answer = load_plain(part())
            except Exception as unfit:  # noqa: BLE001 - what user code sent
                error = HookFailed(f"the result of the endpoint's code cannot be read: {unfit}")
            state = bytes(part())
        elif kind == "bytes":
            answer = bytes(part())
        elif kind == "response":
            headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in job["headers"]]
            answer = HookResponse(bytes(part()), job["status"], headers)
        elif kind == "refused":
            error = InputRefused(job["message"], hint=job["hint"])
        else:
            error = HookFailed(job["message"], hint=job["hint"])
        yield Outcome(answer, error, state, job["statistics"])


def _look(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the endpoint's code did not answer in time", hint="raise gateway.hook_timeout, or look what it waits for"
    )


def _describe(code: int | None) -> str:
    if code is None:
        return "it closed its connection"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"it exited with code {code}"


def _with_memory(limits: PoolLimits) -> PoolLimits:
    return replace(limits, memory=_machine_memory() // 2)


def _machine_memory() -> int:
    """Bytes this process and its children may use: the machine's, or the container's where that is less."""
    found = os.sysconf("SC_PHYS_PAGES") * _PAGE
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found = min(found, int(Path(file).read_text()))
    return found


def _size(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
