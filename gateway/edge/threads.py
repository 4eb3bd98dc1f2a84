"""Threads of the edge for work on large bodies that takes milliseconds: unpacking, and reading tensors.

Code that runs here must let other threads run, as zlib and Python loops do. orjson holds the interpreter's lock:
parsing 10 MB of texts stops every thread for 20 ms, here as well as on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_INLINE_BYTES: Final = 256 << 10
"""Work on at most this many bytes takes a few milliseconds and runs on the event loop."""
_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="edge")


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run ``function`` in a thread and return its result. If the caller is cancelled, a running function goes on."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: function(*arguments, **named))
