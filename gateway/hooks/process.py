"""The gateway's side of one hook process: starts it, sends it requests over a socket, watches it and kills it.

Nothing that the process sends is trusted: ``wire`` checks its frames and ``answers`` its answers. A process that sends
anything else is killed.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import preprocessing
from gateway.errors import DeadlineExceeded, HookFailed
from gateway.hooks.answers import Outcome, hook_failed, read_outcome, text, whole
from gateway.hooks.wire import Buffer, FrameReader, pack
from preprocessing.user_code import STAGES

if TYPE_CHECKING:
    from gateway.hooks.pool import HookPool

_log = logging.getLogger("triton_gateway.hooks")

CLOSE_S: Final = 10.0
ASYNC_CONCURRENCY: Final = 64
_CANCEL_S: Final = 1.0
_LATE_AGAIN_S: Final = 0.1
_REAP_S: Final = 0.02
_REAPS: Final = 5
_MAX_CALLS: Final = 4096

_BOOT: Final = (
    "import sys; home = sys.argv[3]; home in sys.path or sys.path.append(home)\n"
    "from gateway.hooks.child import main; main(*map(int, sys.argv[1:3]))"
)


@dataclass(frozen=True, slots=True)
class Program:
    """What a hook process loads."""

    name: str
    engine: str
    code: Path | None
    model: Path | None
    endpoint: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The code's description of itself after it has loaded."""

    is_async: bool
    stages: frozenset[str]


@dataclass(slots=True, eq=False)
class PendingCall:
    """One request that waits for a process or runs in one. If it is cancelled, it runs on until its process answers.

    ``deadline`` is in the event loop's time.
    """

    body: bytes
    is_json: bool
    deadline: float
    answer: asyncio.Future[Outcome]
    timer: asyncio.TimerHandle | None = None
    process: HookProcess | None = None
    number: int = 0
    sent_ns: int = 0
    is_cancelled: bool = False

    def fail(self, error: Exception) -> None:
        """End the call with an error, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(error)


class HookProcess(asyncio.Protocol):
    """One process and the socket to it. All methods must be called on the event loop."""

    def __init__(self, pool: HookPool) -> None:
        self._pool = pool
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._number = 0
        self.is_closing = False
        """Whether ``close`` has been called."""
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[Loaded] = self._loop.create_future()
        self._loaded.add_done_callback(_read_exception)  # otherwise asyncio warns if the start is cancelled
        self.running: dict[int, PendingCall] = {}
        self.send_requests: set[asyncio.Task[None]] = set()
        """Running calls of ``send_request`` by its code."""
        self.ended = asyncio.Event()
        self.slots = 0
        self.is_retired = False
        self.idle_since = time.monotonic()
        self.kill_reason = ""
        """Why the gateway killed it; ``""`` if it did not."""

    @property
    def pid(self) -> int:
        """Its process id; 0 before it is started."""
        return self._child.pid if self._child is not None else 0

    @property
    def is_free(self) -> bool:
        """Whether it accepts one more call."""
        return not self.is_retired and not self.is_closing and len(self.running) < self.slots

    @property
    def is_idle(self) -> bool:
        """Whether it runs no request."""
        return self.is_free and not self.running

    async def start(self, program: Program, *, threads: int, memory: int, timeout: float) -> Loaded:
        """Start it, wait until it has loaded and return its description of the code. Raises ``HookFailed``.

        ``memory``: bytes it may hold. ``timeout``: seconds to load.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        home = str(Path(preprocessing.__file__).parents[1])
        try:
            with theirs:
                # Several processes with several threads for each native library would compete for the cores. Values of
                # the environment take precedence.
                environ = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
                arguments = [theirs.fileno(), os.getpid(), home]
                self._child = subprocess.Popen(  # noqa: ASYNC220 - two milliseconds, and seldom
                    [sys.executable, "-P", "-c", _BOOT, *map(str, arguments)], stdin=subprocess.DEVNULL, env=environ,
                    pass_fds=(theirs.fileno(),), start_new_session=True,
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
                f"its code did not finish loading within {timeout:g} s", hint="check whether load() waits for something"
            ) from None
        except BaseException:
            self.kill("it is not needed any more")
            raise
        self.slots = ASYNC_CONCURRENCY if loaded.is_async else threads
        self.idle_since = time.monotonic()
        return loaded

    def send(self, pending: PendingCall, limit: float) -> None:
        """Send one call, which must be answered before ``limit`` (the event loop's time)."""
        self._number += 1
        pending.process, pending.number, pending.sent_ns = self, self._number, time.perf_counter_ns()
        self.running[self._number] = pending
        pending.timer = self._loop.call_at(limit, self._too_late, pending)
        self._write({"k": "run", "id": self._number, "json": pending.is_json}, pending.body)

    def cancel(self, pending: PendingCall) -> None:
        """Cancel a call that nobody waits for any more; a hook that is not async runs on until its limit."""
        if self._pool.is_async and not pending.is_cancelled and pending.number in self.running:
            pending.is_cancelled = True
            self._write({"k": "cancel", "id": pending.number})

    def _too_late(self, pending: PendingCall) -> None:
        if pending.number not in self.running:
            return
        pending.fail(too_late())
        loop = asyncio.get_running_loop()
        if self._pool.is_async and not pending.is_cancelled:
            self.cancel(pending)
            pending.timer = loop.call_later(_CANCEL_S, self._too_late, pending)
            return
        self.is_retired = True
        if all(one.answer.done() for one in self.running.values()):
            self.kill("it did not answer in time")
        else:  # the other calls may finish first: the late one blocks only this process
            pending.timer = loop.call_later(_LATE_AGAIN_S, self._too_late, pending)
        self._pool.dispatch_waiting()

    def retire(self) -> None:
        """Accept no more requests, and end once its calls are answered."""
        self.is_retired = True
        self._end_if_done()

    def close(self) -> None:
        """Ask it to unload and end; it is killed if that takes too long."""
        if self.is_closing:
            return
        self.is_retired = self.is_closing = True
        self._write({"k": "close", "id": 0})
        if not self.ended.is_set():
            asyncio.get_running_loop().call_later(CLOSE_S, self._close_late)

    def _close_late(self) -> None:
        if not self.ended.is_set():
            _log.warning("%s: a hook process did not end within %g s and is killed", self._pool.name, CLOSE_S)
            self.kill("it did not end when it was asked to")

    def _end_if_done(self) -> None:
        if self.is_retired and not self.running:
            self.close()

    def kill(self, reason: str) -> None:
        """Kill it and the processes that it has started, at once."""
        self.is_retired = True
        self.kill_reason = self.kill_reason or reason
        if self._child is not None and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._reap(_REAPS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = transport  # type: ignore[assignment] # it has write and abort

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        try:
            for head, payload in self._frames.feed(data):
                self._received(head, payload)
        except Exception as error:  # noqa: BLE001 - user code can write anything to the socket
            self.kill(f"it sent something that is not a frame: {error}")

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``."""
        # A process that ends closes its socket a moment before. If it lives on, its code has closed the socket, and its
        # calls run until their time-outs. The gateway's end stays open, because closing it would end the process.
        self.is_retired = True
        self._reap(_REAPS)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio defines the signature
        """See ``asyncio.Protocol``."""
        self.eof_received()

    def _reap(self, tries: int) -> None:
        if self.ended.is_set() or self._child is None or self._child.poll() is not None:
            self._end()
        elif tries:
            self._loop.call_later(_REAP_S, self._reap, tries - 1)
        elif all(pending.answer.done() for pending in self.running.values()):
            self.kill("it closed its connection")

    def _received(self, head: dict[str, Any], payload: Buffer) -> None:
        kind = head["k"]
        if kind == "done":
            pending = self.running.get(whole(head["id"]))
            if pending is None:
                raise ValueError("it answered a call that does not run")
            self._take_answer(pending, head, payload)
            del self.running[pending.number]
            if pending.timer is not None:
                pending.timer.cancel()
            if head.get("is_spent") and not self.is_retired:
                _log.warning("%s: a hook process is replaced: it reached its memory limit", self._pool.name)
                self.is_retired = True
            self.idle_since = time.monotonic()
            self._pool.dispatch_waiting()
            self._end_if_done()
        elif kind == "call":
            if len(self.send_requests) >= _MAX_CALLS:
                raise ValueError(f"more than {_MAX_CALLS} calls of send_request at a time")
            self._pool.answer_call(self, {
                "id": whole(head["id"]), "endpoint": text(head["endpoint"]),
                "version": None if head["version"] is None else text(head["version"]),
            }, payload)  # fmt: skip
        elif kind == "loaded" and not self._loaded.done():
            self._loaded.set_result(_loaded(head))
        elif kind == "unloadable" and not self._loaded.done():
            self._loaded.set_exception(hook_failed(head))

    def _take_answer(self, pending: PendingCall, head: Mapping[str, Any], payload: Buffer) -> None:
        if "broken" in head:
            pending.fail(HookFailed(f"the process of the endpoint's code could not answer: {text(head['broken'])}"))
            return
        outcome = read_outcome(head, payload)
        if not pending.answer.done():
            pending.answer.set_result(outcome)

    def reply(self, number: int, payload: bytes) -> None:
        """Send the hook the answer to its call of ``send_request``; empty for None."""
        self._write({"k": "reply", "id": number}, payload)

    def _write(self, head: Mapping[str, Any], payload: bytes = b"") -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(pack(head, payload))

    def _end(self) -> None:
        if self.ended.is_set():
            return
        self.is_retired = True
        child = self._child
        if child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # processes that it started
        self.ended.set()
        reason = self.kill_reason or _describe(child.returncode if child is not None else 0)
        error = HookFailed(
            f"the process of the endpoint's code ended: {reason}", hint="the request that did this was not answered"
        )
        for pending in self.running.values():
            if pending.timer is not None:
                pending.timer.cancel()
            pending.fail(error)
        self.running.clear()
        if not self._loaded.done():
            self._loaded.set_exception(HookFailed(f"its process ended while it loaded: {reason}"))
        if self._transport is not None:
            self._transport.abort()
        self._pool.process_ended(self, reason)


def too_late() -> DeadlineExceeded:
    """Return the error of a request whose hook still runs after its time."""
    return DeadlineExceeded(
        "the endpoint's code did not answer in time",
        hint="raise gateway.hook_timeout, or find out what the code waits for",
    )


def _loaded(head: Mapping[str, Any]) -> Loaded:
    is_async, stages = head["is_async"], frozenset(text(name) for name in head["stages"])
    if type(is_async) is not bool or not stages <= {*STAGES}:
        raise ValueError("its description of the code is malformed")
    return Loaded(is_async, stages)


def _read_exception(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _describe(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"it exited with code {code}"
