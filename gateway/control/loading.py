"""Loads ``Preprocess`` code in threads of their own, so that code which never ends loading harms nobody else.

Such a thread cannot be stopped: it is left alone, and the next attempt to build the same version waits for the same
thread instead of starting another. Threads are daemons: they keep no process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from gateway.errors import HookFailed
from gateway.pace import in_own_thread
from gateway.spec import EndpointSpec
from preprocessing.errors import UserCodeError
from preprocessing.user_code import UserCode


class CodeLoader:
    """Runs one load per version at a time; ``timeout`` in seconds is how long one attempt waits for it."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._loads: dict[tuple[EndpointSpec, Path], asyncio.Future[UserCode]] = {}

    async def load(self, spec: EndpointSpec, path: Path, load: Callable[[], UserCode]) -> UserCode:
        """Return what ``load`` makes. Raises ``HookFailed`` if it raises, or takes longer than the timeout."""
        key = spec, path
        loading = self._loads.get(key)
        if loading is None:
            loading = self._loads[key] = in_own_thread(load, "load-code")
        try:
            async with asyncio.timeout(self._timeout):
                code = await asyncio.shield(loading)
        except TimeoutError:
            raise HookFailed(
                f"its code did not finish loading within {self._timeout:g} s",
                hint="it may wait for something for ever; it is served as soon as it ends",
            ) from None
        except asyncio.CancelledError:
            self.give_up(spec)
            raise
        except UserCodeError as error:
            self._loads.pop(key, None)
            raise HookFailed(error.message, hint=error.hint or "") from error
        self._loads.pop(key, None)
        return code

    def give_up(self, spec: EndpointSpec) -> None:
        """Nobody wants this version any more: its code is unloaded when it ends loading."""
        for key in [key for key in self._loads if key[0] == spec]:
            self._loads.pop(key).add_done_callback(_unload_unused)


def _unload_unused(loading: asyncio.Future[UserCode]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        unload(loading.result())


def unload(code: UserCode) -> None:
    """Begin to unload code that nobody is served by: in a thread of its own, for this may never end either."""

    def work() -> None:
        with contextlib.suppress(UserCodeError):
            code.unload()

    threading.Thread(target=work, name="unload-code", daemon=True).start()
