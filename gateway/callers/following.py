"""Keeps what is known of callers current: looks at every source each second, in a thread; the last good state stays.

What is wrong with a source is told in the log (once), in a metric, and in ``/v1/status``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from gateway.callers.access import Access, Known
from gateway.callers.keys import BadKeys, written

_log = logging.getLogger("triton_gateway.callers")

LOOK_S: Final = 1.0
"""Seconds between two looks."""
AGAIN_S: Final = 10.0
"""Seconds in which a source is not asked once more for what it did not know."""
TIMEOUT_S: Final = 6.0
"""Seconds that a request waits for a source at most."""


class Source(Protocol):
    """Where callers are known from."""

    def look(self) -> Known | None:
        """Return who is known; None if nothing has changed since that was last returned. Raises ``BadKeys``.

        Called in a thread; may block for a bounded time.
        """
        ...

    def at_first(self) -> Known | None:
        """Return what is known before the first look that found something; None for nothing."""
        ...

    def hurry(self) -> None:
        """Have the next look see what is new, whatever the time: somebody shows what is not known."""
        ...


class _State:
    """What became of a source's looks."""

    def __init__(self) -> None:
        self.problem = ""
        self.at = 0.0
        self.known = ""
        self.looking = asyncio.Lock()
        """Held during a look: what an older one has found must not come after what a newer one has."""

    def told(self) -> dict[str, Any]:
        read = written(self.at) if self.at else None
        return {"known": self.known, "read": read, "problem": self.problem or None}


class Following:
    """Takes what ``sources`` (by name) have into ``access``. ``tell`` gets each source's name and whether its newest
    state is in use.
    """

    def __init__(
        self,
        access: Access,
        sources: Mapping[str, Source],
        tell: Callable[[str, bool], None] = lambda _name, _good: None,
    ) -> None:
        self.access = access
        self._sources = sources
        self._tell = tell
        self._states = {name: _State() for name in sources}
        self._again: dict[str, float] = {}
        self._renewals: dict[str, asyncio.Future[None]] = {}
        access.renew = self.renewed
        for name, source in sources.items():
            known = source.at_first()
            if known is not None:
                access.put(name, known)

    async def run(self) -> None:
        """Look until cancelled; a source that takes its time keeps no other waiting, nor the end of anybody's time."""
        await asyncio.gather(self._tick(), *(self._follow(name, source) for name, source in self._sources.items()))

    async def _tick(self) -> None:
        while True:
            self.access.tick()
            await asyncio.sleep(LOOK_S)

    async def _follow(self, name: str, source: Source) -> None:
        while True:
            await self._look_at(name, source)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at every source once."""
        await asyncio.gather(*(self._look_at(name, source) for name, source in self._sources.items()))
        self.access.tick()

    async def renewed(self, name: str) -> bool:
        """Look at one source now, because somebody shows what it may know by now; return whether it was worth it.

        At most once in ``AGAIN_S``: whoever makes things up does not make this process ask for them.
        """
        now = asyncio.get_running_loop().time()
        if now < self._again.get(name, 0.0):
            return False
        pending = self._renewals.get(name)
        if pending is None:
            pending = self._renewals[name] = asyncio.ensure_future(self._renew(name))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(pending), TIMEOUT_S)
        return pending.done()

    async def _renew(self, name: str) -> None:
        source = self._sources[name]
        try:
            source.hurry()
            await self._look_at(name, source)
        finally:
            self._again[name] = asyncio.get_running_loop().time() + AGAIN_S
            self._renewals.pop(name, None)

    def status(self) -> dict[str, Any]:
        """Return what is known of each source: what it knows, since when, and what is wrong with its newest state."""
        return {name: state.told() for name, state in self._states.items()}

    async def _look_at(self, name: str, source: Source) -> None:
        state = self._states[name]
        async with state.looking:
            await self._looked(name, source, state)

    async def _looked(self, name: str, source: Source, state: _State) -> None:
        try:
            found = await asyncio.to_thread(source.look)
        except BadKeys as error:
            self._complain(name, state, str(error))
            return
        except Exception as error:  # noqa: BLE001 - a source that fails otherwise must not end the following of others
            self._complain(name, state, f"{type(error).__name__}: {error}")
            return
        if found is not None:
            self.access.put(name, found)
            state.known, state.at = found.told(), time.time()
            _log.info("%s: %s", name, state.known)
        elif state.problem:
            _log.info("%s: in order again", name)
        state.problem = ""
        self._tell(name, True)

    def _complain(self, name: str, state: _State, problem: str) -> None:
        self._tell(name, False)
        if problem != state.problem:
            kept = f"what was read {written(state.at)} stays in use" if state.at else "nobody is known by it"
            _log.error("%s: %s; %s", name, problem, kept)
        state.problem = problem
