"""An executor without threads: what is submitted is done when ``submit`` returns, the same way every time."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any


class Inline(Executor):
    """Does it in the calling thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it; the future is done."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done
