"""Keeps what is known of callers current: looks at every source each second, in a thread; the last good state stays.

What is wrong with a source is told in the log (once), in a metric, and in ``/v1/status``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from gateway.callers.access import Access
from gateway.callers.keys import BadKeys, Keys, written

_log = logging.getLogger("triton_gateway.callers")

LOOK_S: Final = 1.0
"""Seconds between two looks."""


class Source(Protocol):
    """Where keys come from."""

    def look(self) -> tuple[Keys, bytes] | None:
        """Return keys and pepper; None if nothing has changed since they were last returned. Raises ``BadKeys``.

        Called in a thread, one call at a time; may block for a bounded time.
        """
        ...


class _State:
    """What became of a source's looks."""

    def __init__(self) -> None:
        self.problem = ""
        self.at = 0.0
        self.keys = 0

    def told(self) -> dict[str, Any]:
        read = written(self.at) if self.at else None
        return {"keys": self.keys, "read": read, "problem": self.problem or None}


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

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at every source once."""
        await asyncio.gather(*(self._look_at(name, source) for name, source in self._sources.items()))
        self.access.tick()

    def status(self) -> dict[str, Any]:
        """Return what is known of each source: how many keys, since when, and what is wrong with its newest state."""
        return {
            name: {
                "keys": state.keys,
                "read": written(state.at) if state.at else None,
                "problem": state.problem or None,
            }
            for name, state in self._states.items()
        }

    async def _look_at(self, name: str, source: Source) -> None:
        state = self._states[name]
        try:
            found = await asyncio.to_thread(source.look)
        except BadKeys as error:
            self._complain(name, state, str(error))
            return
        except Exception as error:  # noqa: BLE001 - a source that fails otherwise must not end the following of others
            self._complain(name, state, f"{type(error).__name__}: {error}")
            return
        if found is not None:
            keys, pepper = found
            self.access.put(name, keys, pepper)
            state.keys, state.at = len(keys), time.time()
            _log.info("%s: %d keys, %d of them revoked", name, len(keys), len(keys.revoked))
        elif state.problem:
            _log.info("%s: in order again", name)
        state.problem = ""
        self._tell(name, True)

    def _complain(self, name: str, state: _State, problem: str) -> None:
        self._tell(name, False)
        if problem != state.problem:
            kept = f"the {state.keys} keys of {written(state.at)} stay in use" if state.at else "nobody is known by it"
            _log.error("%s: %s; %s", name, problem, kept)
        state.problem = problem
