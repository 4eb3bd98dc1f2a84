"""Thread pools of the control plane, one per kind of work. Requests never use them.

The registry may accept a connection and not answer, downloads may be slow: with a pool each, none of them
delays the others. Pools that compute have two threads, because computing threads share the
interpreter lock with the requests. asyncio's default pool is left to requests, which resolve host names there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class ControlThreads:
    """One pool per kind of work. ``close`` does not wait for running work."""

    def __init__(self) -> None:
        self.registry = ThreadPoolExecutor(2, thread_name_prefix="registry")
        """Reads the serving Task and model records."""
        self.local = ThreadPoolExecutor(2, thread_name_prefix="control")
        """Decodes, compiles and saves: CPU and local disk."""
        self.builds = ThreadPoolExecutor(2, thread_name_prefix="build")
        """Reads bundles and loads tokenizers: CPU and local disk."""
        self.downloads = ThreadPoolExecutor(32, thread_name_prefix="download")
        """Fetches models and code, or finds them on disk, and waits for other processes that fetch them."""
        self.lineage = ThreadPoolExecutor(2, thread_name_prefix="lineage")
        """Answers questions about lineage from the registry."""

    def close(self) -> None:
        """Start no more work. Running work ends by itself or with the process."""
        for pool in (self.registry, self.local, self.builds, self.downloads, self.lineage):
            pool.shutdown(wait=False, cancel_futures=True)


async def run_in(pool: Executor, call: Callable[..., Result], *args: Any) -> Result:
    """Return the result of ``call(*args)``, run in a thread of ``pool``."""
    return await asyncio.get_running_loop().run_in_executor(pool, call, *args)
