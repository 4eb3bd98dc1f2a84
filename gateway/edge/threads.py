"""The edge's own threads: what takes milliseconds of a large body, unpacking it and reading its tensors.

Code that runs here must let other threads run: zlib and loops in Python do. orjson does not, so that a JSON body is
read no better here than on the event loop (10 MB of texts stop every thread for 20 ms in either place).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_INLINE_BYTES: Final = 256 << 10
"""Work on no more bytes than this takes a few milliseconds at most, and is done on the event loop."""
_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="edge")


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what ``function`` returns. Who is cancelled does not wait for it; it runs to its end unless it has not
    begun.
    """
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: function(*arguments, **named))
