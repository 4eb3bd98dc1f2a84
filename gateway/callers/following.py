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


class _Followed:
    """A source that is read again and again, and the result."""

    def __init__(self, access: Access, name: str, source: Source, report: Callable[[str, bool], None]) -> None:
        self._access, self._name, self.source, self._report = access, name, source, report
        self._problem = self._known = ""
        self._at = 0.0
        self._reading = asyncio.Lock()
        """Held during a read, so that an older result does not replace a newer one."""

    def status(self) -> dict[str, Any]:
        read = written(self._at) if self._at else None
        return {"known": self._known, "read": read, "problem": self._problem or None}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.source.period)
            await self.read()

    async def read(self) -> None:
        async with self._reading:
            problem, found = "", None
            try:
                found = await asyncio.to_thread(self.source.look)
            except Exception as error:  # noqa: BLE001 - one source must not stop the others
                problem = str(error) if isinstance(error, BadKeys) else f"{type(error).__name__}: {error}"
            if problem and problem != self._problem:
                kept = f"the state read at {written(self._at)} stays in use" if self._at else "nobody is known"
                _log.error("%s: %s; %s", self._name, problem, kept)
            if found is not None:
                self._access.put(self._name, found)
                self._known, self._at = found.summary(), time.time()
            if found is not None or (self._problem and not problem):
                _log.info("%s: %s", self._name, self._known)
            self._problem = problem
            self._report(self._name, not problem)


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
        self._all = {name: _Followed(access, name, source, report) for name, source in sources.items()}

    async def run(self) -> None:
        """Follow the sources until cancelled. A slow source delays no other."""
        await asyncio.gather(*(one.run() for one in self._all.values()))

    async def look(self) -> None:
        """Read every source once."""
        await asyncio.gather(*(one.read() for one in self._all.values()))

    async def learn(self, task: ServingTask) -> None:
        """Use the keys in the records of a serving Task that was just read."""
        for one in self._all.values():
            if isinstance(one.source, RegistryKeys):
                one.source.learn(task)
                await one.read()

    def status(self) -> dict[str, Any]:
        """Return for each source what it knows, when that was read, and the problem of its newest state."""
        return {name: one.status() for name, one in self._all.items()}
