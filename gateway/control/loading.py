"""Loads ``Preprocess`` code in threads of their own, so that code that never finishes loading blocks nothing else.

Such a thread cannot be stopped. It continues, and the next attempt to build the same version waits for it instead of
starting another. The threads are daemons, so they do not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from gateway.errors import HookFailed
from gateway.own_thread import in_own_thread
from gateway.spec import EndpointSpec
from preprocessing.errors import UserCodeError
from preprocessing.user_code import UserCode


class CodeLoader:
    """Runs at most one load per version at a time; one attempt waits at most ``timeout`` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._loads: dict[tuple[EndpointSpec, Path], asyncio.Future[UserCode]] = {}

    async def load(self, spec: EndpointSpec, path: Path, load: Callable[[], UserCode]) -> UserCode:
        """Return the result of ``load``. Raises ``HookFailed`` if it raises or exceeds the timeout."""
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
                hint="it may be waiting for something; it is served as soon as it has loaded",
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
        """Unload the code of a version that is no longer wanted, as soon as it has loaded."""
        for key in [key for key in self._loads if key[0] == spec]:
            self._loads.pop(key).add_done_callback(_unload_unused)


def _unload_unused(loading: asyncio.Future[UserCode]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        unload(loading.result())


def unload(code: UserCode) -> None:
    """Start to unload code that is no longer used, in a thread of its own, since it may never finish."""

    def work() -> None:
        with contextlib.suppress(UserCodeError):
            code.unload()

    threading.Thread(target=work, name="unload-code", daemon=True).start()
