"""The process supervisor of ``triton-gateway up``: starts, watches, restarts and stops child processes in order.

``stack.py`` is its only caller; it decides what to start, and shows the events. Two pure values decide what happens to
a child next: ``Restarts`` (how long to wait) and ``Lifecycle`` (which phase follows). The rest of this file is I/O. It
never prints, and knows nothing about the work of its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deploy.tools import process_family, process_logs, processes
from deploy.tools.errors import ChildFailed

Probe = Callable[[], Awaitable[bool]]
"""Checks a child: True if it works. It must limit its own time; it is called often."""

_LOOK_AGAIN_S = 0.1
"""Seconds between two probes of a child that starts."""
_SWEEP_S = 3.0
"""Grace in seconds for the rest of a child's process family when it is stopped."""
_ORPHANS_S = 1.5
"""Grace in seconds for the processes of a child that died: workers with requests in flight."""
_HUNG_S = 0.5
"""Grace in seconds for a hung child, which seldom reacts to a signal."""
_ROTATE_BYTES = 10 << 20
"""Size at which a log file is rotated before a start."""


class Phase(enum.Enum):
    """The phases of a child."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting to restart"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Restarts:
    """Back-off before a restart, in seconds: doubles from ``first`` to ``ceiling``, and is reset after ``calm``."""

    first: float = 0.1
    ceiling: float = 30.0
    calm: float = 60.0

    def delay(self, deaths: int) -> float:
        """Return the seconds before the next start, after ``deaths`` in a row (1 is the first)."""
        return min(self.ceiling, self.first * 2.0 ** min(deaths - 1, 60))


@dataclass(frozen=True, slots=True)
class HangTimeouts:
    """Seconds without an answer after which a child that was ready is replaced.

    ``idle``: for a child that uses no CPU, so it is stopped or deadlocked. ``busy``: for a child that uses CPU: it may
    only be slow, or be in an endless loop. Both are generous, because a child under load answers late.
    """

    idle: float = 15.0
    busy: float = 60.0

    def are_over(self, silent: float, cpu: float) -> bool:
        """Return True if a child hangs that was ``silent`` (seconds) and used ``cpu`` seconds of CPU in that time."""
        return silent >= self.busy or (silent >= self.idle and cpu < silent / 100)


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The phase of one child, as a value. Each method returns the next lifecycle, or this one if nothing changes."""

    phase: Phase = Phase.STARTING
    since: float = 0.0
    deaths: int = 0
    has_been_ready: bool = False
    restart_in: float = 0.0

    def started(self, now: float) -> Lifecycle:
        """Return the lifecycle after a process was started."""
        if self.phase in (Phase.STOPPING, Phase.STOPPED, Phase.FAILED):
            return self
        return replace(self, phase=Phase.STARTING, since=now, restart_in=0.0)

    def answered(self, now: float) -> Lifecycle:
        """Return the lifecycle after the probe found the child working."""
        if self.phase is not Phase.STARTING:
            return self
        return replace(self, phase=Phase.READY, since=now, has_been_ready=True)

    def died(self, now: float, restarts: Restarts) -> Lifecycle:
        """Return the lifecycle after the process ended: failed if it was never ready, otherwise to be restarted."""
        if self.phase is Phase.STOPPING:
            return replace(self, phase=Phase.STOPPED, since=now)
        if self.phase in (Phase.STOPPED, Phase.FAILED):
            return self
        if not self.has_been_ready:
            return replace(self, phase=Phase.FAILED, since=now)
        was_calm = self.phase is Phase.READY and now - self.since >= restarts.calm
        deaths = 1 if was_calm else self.deaths + 1
        return replace(self, phase=Phase.WAITING, since=now, deaths=deaths, restart_in=restarts.delay(deaths))

    def told_to_stop(self, now: float) -> Lifecycle:
        """Return the lifecycle after the supervisor wants it stopped. A child without a process is stopped at once."""
        if self.phase in (Phase.STOPPED, Phase.FAILED):
            return self
        following = Phase.STOPPED if self.phase is Phase.WAITING else Phase.STOPPING
        return replace(self, phase=following, since=now)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The command of a child, and how to check that it works."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    probe: Probe
    ready_timeout: float = 60.0
    stop_grace: float = 15.0
    death_signal: signal.Signals = signal.SIGTERM
    log: str = ""
    """Name of its log file, if ``name`` is already used by a log of the program itself."""
    works: Probe | None = None
    """Checks that a restarted child does its work again: only then is it said to be back. None: once it is ready."""
    before_start: Callable[[], None] | None = None
    """Called before each start, for instance to reset the status file of the previous process."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a child: ``kind`` for programs, ``text`` for people."""

    kind: str
    child: str
    text: str


class _Child:
    """One spec with its current process; owned by the supervisor."""

    def __init__(self, spec: ChildSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.lifecycle = Lifecycle()
        self.process: asyncio.subprocess.Process | None = None
        self.log_offset = 0
        self.mark = ""
        self.keeper: asyncio.Task[None] | None = None
        self.restarted: float | None = None
        """When it was started again, until it is said to be back."""

    def reason(self, code: int) -> str:
        """Return the last error line of this process. For a killed one, a last line without an error is no reason."""
        return process_logs.last_error_line(process_logs.read_from(self.log, self.log_offset), otherwise_last=code > 0)


@dataclass(slots=True)
class Supervisor:
    """Owns the children of one ``up``. Use it from one event loop, in the main thread.

    ``report`` gets every event. ``record``: a file with the running processes, so that the next start can end those
    that a killed supervisor left running (``end_leftovers``).
    """

    logs: Path
    record: Path
    report: Callable[[Event], None]
    restarts: Restarts = Restarts()
    hang_timeouts: HangTimeouts = HangTimeouts()
    watch_every: float = 2.0
    misses_before_warning: int = 5
    _children: list[_Child] = field(default_factory=list)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, spec: ChildSpec, *, or_later: bool = False) -> float | None:
        """Start a child, wait until it works, and keep it running from then on. Returns the seconds it took.

        Children are stopped in the reverse order of these calls. Raises ``ChildFailed`` if the child cannot be started,
        dies, or does not work within its ``ready_timeout``; it is stopped then. With ``or_later``, such a child is
        restarted as if it had worked before, and None is returned.
        """
        child = _Child(spec, self.logs / f"{spec.log or spec.name}.log")
        self._children.append(child)
        _rotate(child.log)
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            await self._spawn(child)
        except OSError as error:
            child.lifecycle = child.lifecycle.died(clock(), self.restarts)
            raise ChildFailed(f"{spec.name} cannot be started: {error.strerror}: {spec.argv[0]}") from error
        is_ready = await self._wait_ready(child)
        if not is_ready and or_later:
            child.lifecycle = replace(child.lifecycle, has_been_ready=True)
        elif not is_ready:
            code = await self._end_rest(child)
            child.lifecycle = child.lifecycle.died(clock(), self.restarts)
            raise ChildFailed(self._why_not(child, code), hint=f"see its log {child.log}")
        child.keeper = asyncio.create_task(self._keep(child), name=f"keep {spec.name}")
        child.keeper.add_done_callback(lambda keeper: self._keeper_ended(child, keeper))
        return clock() - begun if is_ready else None

    async def stop(self) -> None:
        """Stop all children, the last started first, within their graces or ``hurry``. No process is left after it."""
        for child in reversed(self._children):
            await self._stop_child(child)
        self.record.unlink(missing_ok=True)

    def hurry(self) -> None:
        """End all graces from now on: kill instead of waiting."""
        self._hurry.set()

    def phases(self) -> dict[str, Phase]:
        """Return the phase of each child, in starting order."""
        return {child.spec.name: child.lifecycle.phase for child in self._children}

    def pids(self) -> dict[str, int]:
        """Return the process id of each running child."""
        return {c.spec.name: c.process.pid for c in self._children if c.process and c.process.returncode is None}

    async def _spawn(self, child: _Child) -> None:
        spec = child.spec
        if spec.before_start is not None:
            spec.before_start()
        child.log_offset = process_logs.log_end(child.log)
        child.mark = secrets.token_hex(8)
        child.process = await processes.spawn(
            spec.argv, env=spec.env, log=child.log, mark=child.mark, death_signal=spec.death_signal
        )
        child.lifecycle = child.lifecycle.started(asyncio.get_running_loop().time())
        self._write_record()

    async def _wait_ready(self, child: _Child) -> bool:
        """Wait until the probe succeeds. Return False if the process ended or the time is over."""
        process = _running(child)
        clock = asyncio.get_running_loop().time
        deadline = clock() + child.spec.ready_timeout
        while process.returncode is None and clock() < deadline:
            if await child.spec.probe() and process.returncode is None:
                child.lifecycle = child.lifecycle.answered(clock())
                return True
            await asyncio.sleep(_LOOK_AGAIN_S)
        return False

    async def _keep(self, child: _Child) -> None:
        """Restart the child whenever it dies, until it is stopped."""
        clock = asyncio.get_running_loop().time
        while True:
            silent = await self._watch(child)
            code = await self._end_rest(child, grace=_HUNG_S if silent else _ORPHANS_S)
            child.lifecycle = child.lifecycle.died(clock(), self.restarts)
            wait = child.lifecycle.restart_in
            why = f"gave no answer for {silent:.0f} s and was killed" if silent else self._why_died(child, code)
            self._report_event("died", child, f"{why}; restarting in {wait:.1f} s (log: {child.log})")
            await asyncio.sleep(wait)
            try:
                await self._spawn(child)
            except OSError as error:
                self._report_event("died", child, f"cannot be started: {error.strerror}")
                continue
            child.restarted = clock()
            if await self._wait_ready(child):
                await self._say_if_back(child)

    async def _say_if_back(self, child: _Child) -> None:
        works, since = child.spec.works, child.restarted
        if since is not None and (works is None or await works()):
            child.restarted = None
            self._report_event("ready", child, f"is back after {asyncio.get_running_loop().time() - since:.1f} s")

    async def _watch(self, child: _Child) -> float:
        """Return 0 if the process has ended, or the seconds without an answer after which it counts as hung.

        Reports when the child stops answering, and when it answers again.
        """
        process = _running(child)
        clock = asyncio.get_running_loop().time
        ended = asyncio.ensure_future(process.wait())
        misses, since, cpu, used = 0, 0.0, 0.0, 0.0
        try:
            while child.lifecycle.phase is Phase.READY:
                done, _ = await asyncio.wait({ended}, timeout=self.watch_every)
                if done:
                    return 0.0
                # Workers can answer although their leader is stopped and does not restart them any more.
                stopped = process_family.is_stopped(process.pid)
                if not stopped and await child.spec.probe():
                    if misses >= self.misses_before_warning:
                        self._report_event("answers", child, "answers again")
                    misses = 0
                    await self._say_if_back(child)
                elif process.returncode is None:
                    before, cpu = cpu, process_family.cpu_seconds(process.pid, child.mark)
                    if not misses:
                        since, used, before = clock(), 0.0, cpu
                    # A worker that ended takes its seconds out of the sum, so the sum may fall: count only growth.
                    used += max(0.0, cpu - before)
                    misses += 1
                    if misses == self.misses_before_warning:
                        self._report_event("silent", child, f"is running but does not answer (log: {child.log})")
                    silent = clock() - since
                    if self.hang_timeouts.are_over(silent, 0.0 if stopped else used):
                        return silent
        finally:
            ended.cancel()
        return 0.0

    async def _end_rest(self, child: _Child, *, grace: float = _SWEEP_S) -> int | None:
        """End the rest of the child's process family. Return the exit code if the child had ended by itself."""
        process = child.process
        if process is None:
            return None
        code = process.returncode
        await processes.end_family(process.pid, child.mark, grace=grace, hurry=self._hurry)
        await process.wait()
        return code

    async def _stop_child(self, child: _Child) -> None:
        if child.keeper is not None:
            child.keeper.cancel()
            await asyncio.wait({child.keeper})
        clock = asyncio.get_running_loop().time
        begun = clock()
        child.lifecycle = child.lifecycle.told_to_stop(begun)
        process = child.process
        if process is None:
            return
        is_worth_telling = process.returncode is None
        if is_worth_telling:
            # only the leader: it stops its own children in the right order
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await self._exited(process, within=child.spec.stop_grace)
            if process.returncode is None:
                process_family.signal_family(process.pid, child.mark, signal.SIGKILL)
                why = "" if self._hurry.is_set() else f"did not stop within {clock() - begun:.0f} s and "
                self._report_event("killed", child, f"{why}was killed")
                is_worth_telling = False
        await processes.end_family(process.pid, child.mark, grace=_SWEEP_S, hurry=self._hurry)
        await process.wait()
        child.lifecycle = child.lifecycle.died(clock(), self.restarts)
        self._write_record()
        if is_worth_telling:
            self._report_event("stopped", child, f"stopped ({clock() - begun:.1f} s)")

    async def _exited(self, process: asyncio.subprocess.Process, *, within: float) -> None:
        ended = asyncio.ensure_future(process.wait())
        hurried = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({ended, hurried}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        hurried.cancel()

    def _keeper_ended(self, child: _Child, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._report_event("unwatched", child, f"is no longer watched, please report this bug: {error!r}")

    def _why_died(self, child: _Child, code: int | None) -> str:
        if code is None:
            return f"did not work within {child.spec.ready_timeout:.0f} s of its start"
        reason = child.reason(code)
        return f"died ({process_logs.describe_exit(code)}){f': {reason}' if reason else ''}"

    def _why_not(self, child: _Child, code: int | None) -> str:
        return f"{child.spec.name} {self._why_died(child, code)}"

    def _report_event(self, kind: str, child: _Child, text: str) -> None:
        self.report(Event(kind, child.spec.name, text))

    def _write_record(self) -> None:
        running = {
            child.spec.name: {
                "pid": child.process.pid, "mark": child.mark,
            }
            for child in self._children if child.process is not None and child.process.returncode is None
        }  # fmt: skip
        aside = self.record.with_name(f"{self.record.name}.{os.getpid()}")
        try:
            aside.write_text(json.dumps(running))
            aside.rename(self.record)
        except OSError:
            # A full disk must not prevent a restart. Only the next start needs the record, and children end with this
            # process anyway.
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)


def read_record(record: Path) -> dict[str, dict[str, Any]]:
    """Return the children that a supervisor recorded as running; empty if there is no readable record."""
    try:
        listed: dict[str, dict[str, Any]] = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return listed


async def end_leftovers(record: Path) -> list[str]:
    """End the children that a killed supervisor left running, and return their names."""
    ended = []
    for name, known in read_record(record).items():
        # the process id may have been reused by another program; the mark is unique
        pid, mark = int(known.get("pid") or process_family.NOBODY), str(known.get("mark", ""))
        leader = pid if process_family.carries(pid, mark) else process_family.NOBODY
        if process_family.members(leader, mark):
            await processes.end_family(leader, mark, grace=10.0)
            ended.append(name)
    return ended


def _running(child: _Child) -> asyncio.subprocess.Process:
    if child.process is None:
        raise RuntimeError(f"{child.spec.name} has no process")
    return child.process


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > _ROTATE_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
