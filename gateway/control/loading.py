"""Loads and unloads ``Preprocess`` code in threads of their own, so that code that never finishes blocks nothing else.

Such a thread cannot be stopped: its version stays pending. The threads are daemons, so they do not keep the process
from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from gateway.errors import HookFailed
from gateway.own_thread import in_own_thread
from preprocessing.errors import UserCodeError
from preprocessing.user_code import UserCode


async def load(call: Callable[[], UserCode]) -> UserCode:
    """Return the result of ``call``. Raises ``HookFailed`` if it raises.

    If nobody waits for the code any more, it is unloaded as soon as it has loaded.
    """
    loading = in_own_thread(call, "load-code")
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        loading.add_done_callback(_unload_unused)
        raise
    except UserCodeError as error:
        raise HookFailed(error.message, hint=error.hint or "") from error


def _unload_unused(loading: asyncio.Future[UserCode]) -> None:
    if loading.cancelled() or loading.exception() is not None:
        return
    code = loading.result()

    def work() -> None:
        with contextlib.suppress(UserCodeError):
            code.unload()

    threading.Thread(target=work, name="unload-code", daemon=True).start()
