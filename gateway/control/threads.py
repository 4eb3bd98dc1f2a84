"""The threads of control: pools apart by what their work may have to wait for. No request ever uses one of them.

The registry may take a connection and say nothing, eight downloads may be slow, pip may take a quarter of an hour: each
of them holds up its own kind only. What computes has few threads, since all of them share the interpreter's lock with
the requests. asyncio's default threads are left to requests (names of hosts are looked up there).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class ControlThreads:
    """One pool per kind of work. ``close`` waits for none of them."""

    def __init__(self) -> None:
        self.registry = ThreadPoolExecutor(2, thread_name_prefix="registry")
        """Looks at the serving Task."""
        self.local = ThreadPoolExecutor(2, thread_name_prefix="control")
        """Decodes, compiles and saves: the processor and this machine's disk."""
        self.builds = ThreadPoolExecutor(2, thread_name_prefix="build")
        """Reads bundles, loads tokenizers: the processor and this machine's disk."""
        self.downloads = ThreadPoolExecutor(8, thread_name_prefix="download")
        """Fetches models and code, and waits for other processes that do."""
        self.installs = ThreadPoolExecutor(2, thread_name_prefix="install")
        """Runs pip."""
        self.lineage = ThreadPoolExecutor(2, thread_name_prefix="lineage")
        """Asks the registry what people want to know."""

    def close(self) -> None:
        """Begin nothing any more; what runs ends by itself, or with the process."""
        for pool in (self.registry, self.local, self.builds, self.downloads, self.installs, self.lineage):
            pool.shutdown(wait=False, cancel_futures=True)


async def run_in(pool: Executor, call: Callable[..., Result], *args: Any) -> Result:
    """Return what ``call`` returns in a thread of ``pool``."""
    return await asyncio.get_running_loop().run_in_executor(pool, call, *args)
