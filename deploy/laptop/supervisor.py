"""Starts the parts of ``triton-gateway up`` in order, restarts one that dies, and stops them in the reverse order.

A part that dies again soon after its restart would not get well by another one: then ``failed`` ends everything with
its reason. ``stack.py`` decides what to start. Each part leads a process group; the kernel ends it with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.tools import process_logs, processes
from deploy.tools.errors import DeployError

Probe = Callable[[], Awaitable[bool]]
"""Checks a part: True if it works. It must limit its own time; it is called often."""

CALM_S = 60.0
"""Seconds after a restart in which another death ends everything."""
_LOOK_AGAIN_S = 0.1
_ROTATE_BYTES = 10 << 20
"""Size at which a log file is rotated before the first start."""


@dataclass(frozen=True, slots=True)
class Part:
    """The command of a part, and how to check that it works."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    probe: Probe
    ready_timeout: float = 60.0
    stop_grace: float = 15.0
    when_up: Callable[[int], None] = lambda _pid: None
    """Called with its process id at each start, once it works."""


@dataclass(slots=True)
class _Running:
    part: Part
    log: Path
    process: asyncio.subprocess.Process
    offset: int
    keeper: asyncio.Task[None] | None = None


class Supervisor:
    """Owns the processes of one ``up``. Use it from one event loop, in the main thread. ``say`` gets a line each."""

    def __init__(self, logs: Path, say: Callable[[str], None]) -> None:
        self._logs = logs
        self._say = say
        self._running: list[_Running] = []
        self._hurry = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None

    @property
    def failed(self) -> asyncio.Future[None]:
        """Raises ``DeployError`` once a part has died twice."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return self._failed

    async def start(self, part: Part) -> float:
        """Start a part, wait until it works, and restart it when it dies. Returns the seconds it took.

        Parts are stopped in the reverse order of these calls. Raises ``DeployError`` if it cannot be started, dies, or
        does not work within its ``ready_timeout``; it is stopped then.
        """
        log = self._logs / f"{part.name}.log"
        if log.exists() and log.stat().st_size > _ROTATE_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        begun = asyncio.get_running_loop().time()
        offset = process_logs.log_end(log)
        one = _Running(part, log, await _spawned(part, log), offset)
        self._running.append(one)
        if not await self._works(one):
            raise DeployError(f"{part.name} {await self._end(one)}", hint=f"see its log {log}")
        one.keeper = asyncio.create_task(self._keep(one), name=f"keep {part.name}")
        return asyncio.get_running_loop().time() - begun

    async def stop(self) -> None:
        """Stop all parts, the last started first, within their graces or ``hurry``. No process is left after it."""
        for one in reversed(self._running):
            if one.keeper is not None:
                one.keeper.cancel()
                await asyncio.wait({one.keeper})
        for one in reversed(self._running):
            if one.process.returncode is None:
                await self._stop(one)

    def hurry(self) -> None:
        """End all graces from now on: kill instead of waiting."""
        self._hurry.set()

    async def _works(self, one: _Running) -> bool:
        """Wait until the probe succeeds. Return False if the process ended or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(one.part.ready_timeout):
                while one.process.returncode is None:
                    if await one.part.probe() and one.process.returncode is None:
                        one.part.when_up(one.process.pid)
                        return True
                    await asyncio.sleep(_LOOK_AGAIN_S)
        return False

    async def _keep(self, one: _Running) -> None:
        clock = asyncio.get_running_loop().time
        restarted = -CALM_S
        try:
            while True:
                await one.process.wait()
                died = await self._end(one)
                if clock() - restarted < CALM_S:
                    raise DeployError(f"{one.part.name} {died}, again", hint=f"see its log {one.log}")
                self._say(f"{one.part.name} {died}; restarting (log: {one.log})")
                restarted = clock()
                one.offset = process_logs.log_end(one.log)
                one.process = await _spawned(one.part, one.log)
                if not await self._works(one):
                    raise DeployError(f"{one.part.name} {await self._end(one)}", hint=f"see its log {one.log}")
                self._say(f"{one.part.name} is back after {clock() - restarted:.1f} s")
        except Exception as error:  # noqa: BLE001 - whoever waits for `failed` shows it
            if not self.failed.done():
                self.failed.set_exception(error)

    async def _end(self, one: _Running) -> str:
        """End what is left of a part that died or does not work, and return what happened to it."""
        code = one.process.returncode
        processes.kill_group(one.process.pid)
        await one.process.wait()
        if code is None:
            return f"did not work within {one.part.ready_timeout:.0f} s of its start"
        # the last line of a killed process is no reason unless it is an error
        text = process_logs.read_from(one.log, one.offset)
        reason = process_logs.last_error_line(text, otherwise_last=code > 0)
        return f"died ({process_logs.describe_exit(code)}){f': {reason}' if reason else ''}"

    async def _stop(self, one: _Running) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        with contextlib.suppress(ProcessLookupError):
            one.process.terminate()  # only the leader: it stops its own children in the right order
        waits = [asyncio.ensure_future(one.process.wait()), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(waits, timeout=one.part.stop_grace, return_when=asyncio.FIRST_COMPLETED)
        for waiting in waits:
            waiting.cancel()
        was_killed = one.process.returncode is None
        processes.kill_group(one.process.pid)
        await one.process.wait()
        self._say(f"{one.part.name} {'was killed' if was_killed else 'stopped'} ({clock() - begun:.1f} s)")


async def _spawned(part: Part, log: Path) -> asyncio.subprocess.Process:
    try:
        return await processes.spawn(part.argv, env=part.env, log=log)
    except OSError as error:
        raise DeployError(f"{part.name} cannot be started: {error.strerror}: {part.argv[0]}") from error
