"""Keeps the known callers current: reads every source again and again, in a thread, and keeps its last good state.

A problem with a source is reported in the log (once), in a metric, and in ``/v1/status``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.callers.access import Access, Known
from gateway.callers.keys import BadKeys, RegistryKeys, written
from gateway.spec import ServingTask

_log = logging.getLogger("triton_gateway.callers")


class Source(Protocol):
    """A source of callers."""

    @property
    def period(self) -> float:
        """Seconds between two reads."""
        ...

    def look(self) -> Known | None:
        """Return the known callers; None if nothing has changed since the last call. Raises ``BadKeys``.

        Called in a thread, never twice at a time; may block for a bounded time.
        """
        ...


class _State:
    """The result of a source's reads."""

    def __init__(self) -> None:
        self.problem = ""
        self.at = 0.0
        self.known = ""
        self.reading = asyncio.Lock()
        """Held during a read, so that an older result does not replace a newer one."""

    def status(self) -> dict[str, Any]:
        read = written(self.at) if self.at else None
        return {"known": self.known, "read": read, "problem": self.problem or None}


class Following:
    """Keeps ``access`` at the newest state of ``sources`` (by name).

    ``report(name, is_current)`` is called after each read.
    """

    def __init__(
        self,
        access: Access,
        sources: Mapping[str, Source],
        report: Callable[[str, bool], None] = lambda _name, _is_current: None,
    ) -> None:
        self.access = access
        self._sources = sources
        self._report = report
        self._states = {name: _State() for name in sources}

    async def run(self) -> None:
        """Follow the sources until cancelled. A slow source delays no other."""
        await asyncio.gather(*(self._follow(name, source) for name, source in self._sources.items()))

    async def _follow(self, name: str, source: Source) -> None:
        while True:
            await asyncio.sleep(source.period)
            await self._read(name)

    async def look(self) -> None:
        """Read every source once."""
        await asyncio.gather(*(self._read(name) for name in self._sources))

    async def learn(self, task: ServingTask) -> None:
        """Use the keys in the records of a serving Task that was just read."""
        for name, source in self._sources.items():
            if isinstance(source, RegistryKeys):
                source.learn(task)
                await self._read(name)

    def status(self) -> dict[str, Any]:
        """Return for each source what it knows, when that was read, and the problem of its newest state."""
        return {name: state.status() for name, state in self._states.items()}

    async def _read(self, name: str) -> None:
        state = self._states[name]
        async with state.reading:
            try:
                found = await asyncio.to_thread(self._sources[name].look)
            except Exception as error:  # noqa: BLE001 - one source must not stop the others
                self._complain(
                    name, state, str(error) if isinstance(error, BadKeys) else f"{type(error).__name__}: {error}"
                )
                return
            if found is not None:
                self.access.put(name, found)
                state.known, state.at = found.summary(), time.time()
                _log.info("%s: %s", name, state.known)
            elif state.problem:
                _log.info("%s: in order again", name)
            state.problem = ""
            self._report(name, True)

    def _complain(self, name: str, state: _State, problem: str) -> None:
        self._report(name, False)
        if problem != state.problem:
            kept = f"the state read at {written(state.at)} stays in use" if state.at else "no caller is known from it"
            _log.error("%s: %s; %s", name, problem, kept)
        state.problem = problem
