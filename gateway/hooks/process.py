"""The gateway's side of one hook process: starts it, sends it requests over a socket, watches it and kills it.

Nothing that it sends is trusted: ``wire`` reads its frames and ``answers`` checks its answers. Anything else ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import preprocessing
from gateway.errors import DeadlineExceeded, HookFailed
from gateway.hooks.answers import HeldState, Outcome, hook_failed, read_outcomes, read_times, text, whole
from gateway.hooks.values import Buffer, total
from gateway.hooks.wire import CAN_SEND_MEMORY, LARGE, MAX_INLINE, FrameReader, from_memory, pack, to_memory
from preprocessing.user_code import STAGES

_log = logging.getLogger("triton_gateway.hooks")

TICK_S: Final = 0.1
CLOSE_S: Final = 10.0
ASYNC_AT_ONCE: Final = 64
_CANCEL_S: Final = 1.0
_REAP_S: Final = 0.02
_REAPS: Final = 5
_MAX_CALLS: Final = 4096
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_BOOT: Final = (
    "import sys; home, extra = sys.argv[4:6]; sys.path[:0] = [extra] if extra else []\n"
    "if home not in sys.path: sys.path.append(home)\n"
    "from gateway.hooks.child import main; main(*map(int, sys.argv[1:4]))"
)


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
class Loaded:
    """The code's description of itself after it has loaded."""

    is_async: bool
    stages: list[str]
    batches: list[str]
    schemas: dict[str, Any]


Done = tuple[list[Outcome], tuple[int, int, int]]
"""The outcomes of a call, and the nanoseconds of each stage."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call (frame), waiting for a process or in one. If it is cancelled, its process stays busy until it answers.

    ``kept``: numbers of the states that its process holds for it; only this process can then take the call.
    """

    head: Mapping[str, Any]
    payload: Sequence[Buffer]
    count: int
    deadline: float
    answer: asyncio.Future[Done]
    kept: list[int]
    timer: asyncio.TimerHandle | None = None
    process: HookProcess | None = None
    number: int = 0
    sent_ns: int = 0
    is_cancelled: bool = False

    def fail(self, error: Exception) -> None:
        """End the call with an error, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Owner(Protocol):
    """The pool of a process, as the process uses it."""

    name: str
    is_async: bool

    def changed(self) -> None:
        """Note that a process may have room."""
        ...

    def process_ended(self, process: HookProcess, reason: str) -> None:
        """A process has ended."""
        ...

    def answer_call(self, process: HookProcess, head: Mapping[str, Any], payload: Buffer) -> None:
        """A hook called ``send_request``."""
        ...


class HookProcess(asyncio.Protocol):
    """One process and the socket to it. All methods belong to the event loop."""

    def __init__(self, pool: Owner) -> None:
        self._pool = pool
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._side: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[Loaded] = self._loop.create_future()
        self._loaded.add_done_callback(_look)  # if the start is cancelled, no one else reads its exception
        self.asked: dict[int, PendingCall] = {}
        self.waiting: deque[PendingCall] = deque()
        """Requests whose state is here: no other process can take them."""
        self.kept: set[int] = set()
        """States that it holds between two stages of their requests."""
        self.calls: set[asyncio.Task[None]] = set()
        """What its code asks other endpoints with ``send_request``."""
        self.ended = asyncio.Event()
        self.slots = 0
        self.is_retired = False
        self.serving_since = self.idle_since = time.monotonic()
        self.why = ""
        """Why it was killed, if we did it."""

    @property
    def was_asked_to_end(self) -> bool:
        """Whether it was closed in order."""
        return self._is_closing

    @property
    def pid(self) -> int:
        """Its process id; 0 before it is started."""
        return self._child.pid if self._child is not None else 0

    @property
    def has_slot(self) -> bool:
        """Whether it can take one more request, for whose state it has been waiting or not."""
        return not self._is_closing and len(self.asked) < self.slots

    @property
    def is_free(self) -> bool:
        """Whether it takes one more request."""
        return not self.is_retired and not self._is_closing and len(self.asked) < self.slots

    @property
    def is_idle(self) -> bool:
        """Whether it runs no request and holds no state that a request still needs."""
        return self.is_free and not self.asked and not self.kept and not self.waiting

    async def start(self, program: Program, *, threads: int, memory: int, timeout: float) -> Loaded:
        """Start it and wait until it has loaded; returns what it says about the code. Raises ``HookFailed``."""
        if not CAN_SEND_MEMORY:
            raise HookFailed(
                f"its Python code cannot be run: processes of hooks need Linux, this is {platform.system()}",
                hint="run the gateway in a container",
            )
        ours, theirs = socket.socketpair()
        self._side, side = socket.socketpair()
        self._side.setblocking(False)
        ours.setblocking(False)
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
        try:
            self._transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
            self._write({
                "k": "load", "name": program.name, "engine": program.engine, "threads": threads,
                "code": str(program.code) if program.code else None, "endpoint": dict(program.endpoint),
                "model_path": str(program.model) if program.model else None, "memory": memory,
            })  # fmt: skip
            async with asyncio.timeout(timeout):
                loaded = await asyncio.shield(self._loaded)
        except TimeoutError:
            self.kill(f"it did not load within {timeout:g} s")
            raise HookFailed(
                f"its code did not finish loading within {timeout:g} s", hint="does load() wait for something?"
            ) from None
        except BaseException:
            self.kill("it is not needed any more")
            raise
        self.slots = ASYNC_AT_ONCE if loaded.is_async else threads
        self.serving_since = self.idle_since = time.monotonic()  # loading is no part of its turn
        return loaded

    def ask(self, asked: PendingCall, limit: float) -> None:
        """Send one request; at loop time ``limit`` its time is over."""
        self._number += 1
        asked.process, asked.number, asked.sent_ns = self, self._number, time.perf_counter_ns()
        self.asked[self._number] = asked
        self.kept.difference_update(asked.kept)
        asked.timer = self._loop.call_at(limit, self._too_late, asked)
        self._write({"k": "run", "id": self._number, **asked.head}, asked.payload)

    def give_up(self, asked: PendingCall) -> None:
        """Nobody waits for this any more; a hook that is async is cancelled, another one runs on until its limit."""
        if self._pool.is_async and not asked.is_cancelled and asked.number in self.asked:
            asked.is_cancelled = True
            self._write({"k": "cancel", "id": asked.number})

    def drop(self, number: int) -> None:
        """Nobody will come for a state that it holds."""
        if number in self.kept:
            self.kept.discard(number)
            self._write({"k": "drop", "id": number})
            self._end_if_done()

    def _too_late(self, asked: PendingCall) -> None:
        if asked.number not in self.asked:
            return
        asked.fail(too_late())
        loop = asyncio.get_running_loop()
        if self._pool.is_async and not asked.is_cancelled:
            self.give_up(asked)
            asked.timer = loop.call_later(_CANCEL_S, self._too_late, asked)
            return
        self.is_retired = True
        if all(a.answer.done() for a in self.asked.values()):
            self.kill("it did not answer in time")
        else:  # the others get their time; the one that hangs holds nothing but this process
            asked.timer = loop.call_later(TICK_S, self._too_late, asked)
        self._pool.changed()

    def retire(self) -> None:
        """Accept no more requests. End once its requests are answered and no request needs a state in it."""
        self.is_retired = True
        self._end_if_done()

    def close(self) -> None:
        """Ask it to unload and end; it is killed if that takes too long."""
        if self._is_closing:
            return
        self.is_retired = self._is_closing = True
        self._write({"k": "close", "id": 0})
        if not self.ended.is_set():
            asyncio.get_running_loop().call_later(CLOSE_S, self._close_late)

    def _close_late(self) -> None:
        if not self.ended.is_set():
            _log.warning("%s: a hook process did not end within %g s and is killed", self._pool.name, CLOSE_S)
            self.kill("it did not end when it was told to")

    def _end_if_done(self) -> None:
        if self.is_retired and not self.asked and not self.kept and not self.waiting:
            self.close()

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
        """Notice its end even if the socket does not tell: something it started may hold the other end."""
        if self._child is not None and not self.ended.is_set() and self._child.poll() is not None:
            self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = transport  # type: ignore[assignment] # it has write and abort

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        try:
            for head, payload in self._frames.feed(data):
                self._received(head, self._received_memory(head["shared"]) if "shared" in head else payload)
        except Exception as error:  # noqa: BLE001 - user code may have written to our socket what it liked
            self.kill(f"it sent what is no frame: {error}")

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``."""
        # It closes its end when it dies, and dies a moment after. If it lives on, code has closed the connection: what
        # it was asked ends in its own time, as if it had not told. Our end stays open: it would end by itself sooner.
        self.is_retired = True
        self._reap(_REAPS)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature of every protocol
        """See ``asyncio.Protocol``."""
        self.eof_received()

    def _reap(self, tries: int) -> None:
        self.look()
        if self.ended.is_set():
            return
        if tries:
            asyncio.get_running_loop().call_later(_REAP_S, self._reap, tries - 1)
        elif not any(not asked.answer.done() for asked in self.asked.values()):
            self.kill("it closed its connection")

    def _received_memory(self, size: object) -> memoryview:
        assert self._side is not None  # noqa: S101 - made before the process
        _, descriptors, _, _ = socket.recv_fds(self._side, 1, 1)
        if len(descriptors) != 1:
            raise ValueError("no memory came with it")
        return from_memory(descriptors[0], size)

    def _received(self, head: dict[str, Any], payload: Buffer) -> None:
        kind = head["k"]
        if kind == "done":
            asked = self.asked.get(whole(head["id"]))
            if asked is None:
                raise ValueError("an answer to what was not asked")
            self._take_answer(asked, head, payload)
            del self.asked[asked.number]
            if asked.timer is not None:
                asked.timer.cancel()
            if head.get("spoiled") and not self.is_retired:
                _log.warning("%s: a hook process is replaced: %s", self._pool.name, text(head["spoiled"]))
                self.is_retired = True
            self.idle_since = time.monotonic()
            self._pool.changed()
            self._end_if_done()
        elif kind == "call":
            if len(self.calls) >= _MAX_CALLS:
                raise ValueError(f"more than {_MAX_CALLS} calls of send_request at a time")
            self._pool.answer_call(self, {
                "id": whole(head["id"]), "endpoint": text(head["endpoint"]),
                "version": None if head["version"] is None else text(head["version"]),
            }, payload)  # fmt: skip
        elif kind == "loaded" and not self._loaded.done():
            self._loaded.set_result(_loaded(head))
        elif kind == "unloadable" and not self._loaded.done():
            self._loaded.set_exception(hook_failed(head))

    def _take_answer(self, asked: PendingCall, head: Mapping[str, Any], payload: Buffer) -> None:
        if "broken" in head:
            asked.fail(HookFailed(f"the process of the endpoint's code could not answer: {text(head['broken'])}"))
            return
        outcomes = read_outcomes(head, payload, asked.count, self)
        for outcome in outcomes:
            if isinstance(outcome.state, HeldState):
                self.kept.add(outcome.state.number)
        if not asked.answer.done():
            asked.answer.set_result((outcomes, read_times(head)))
            return
        for outcome in outcomes:  # no request will fetch it
            if isinstance(outcome.state, HeldState):
                self.drop(outcome.state.number)

    def reply(self, number: int, payload: bytes) -> None:
        """Answer what the hook asked with ``send_request``."""
        self._write({"k": "reply", "id": number}, [payload])

    def _write(self, head: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if (size := total(payload)) > LARGE:
            if self._gave_memory(payload):
                head, payload = {**head, "shared": size}, ()
            elif size > MAX_INLINE:
                self.kill(f"there was no shared memory for {size >> 20} MiB")
                return
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
        if child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # what it forked and left
            self._take_away(_REAPS)
        self.ended.set()
        reason = self.why or _describe(child.returncode if child is not None else 0)
        error = HookFailed(
            f"the process of the endpoint's code ended: {reason}", hint="the request that did this was not answered"
        )
        for asked in self.asked.values():
            if asked.timer is not None:
                asked.timer.cancel()
            asked.fail(error)
        self.asked.clear()
        for asked in self.waiting:
            asked.fail(state_lost(reason))
        self.waiting.clear()
        self.kept.clear()
        if not self._loaded.done():
            self._loaded.set_exception(HookFailed(f"its process ended while it loaded: {reason}"))
        if self._transport is not None:
            self._transport.abort()
        if self._side is not None:
            self._side.close()
        self._pool.process_ended(self, reason)

    def _take_away(self, tries: int) -> None:
        """Take what it forked out of the table of processes: that is up to us in a container without an init."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
            if tries:  # killed, but not gone yet
                asyncio.get_running_loop().call_later(_REAP_S * 5, self._take_away, tries - 1)


def too_late() -> DeadlineExceeded:
    """The error of a request whose hook is still running."""
    return DeadlineExceeded(
        "the endpoint's code did not answer in time", hint="raise gateway.hook_timeout, or look what it waits for"
    )


def state_lost(reason: str) -> HookFailed:
    """The error of a request whose state went with its process."""
    return HookFailed(
        f"the process that held the request's state ended: {reason}",
        hint="state of plain values (numbers, text, lists, arrays) does not depend on its process",
    )


def _loaded(head: Mapping[str, Any]) -> Loaded:
    is_async, schemas = head["is_async"], head["schemas"]
    stages, batches = ([text(name) for name in head[key]] for key in ("stages", "batches"))
    if type(is_async) is not bool or type(schemas) is not dict or not {*stages, *batches} <= {*STAGES}:
        raise ValueError("what it says about its code cannot be read")
    return Loaded(is_async, stages, batches, schemas)


def _look(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _describe(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"it exited with code {code}"
