"""Asks model sync, through the registry, to load models that were unloaded while idle and are called again.

A wish is a record beside the serving Task, keyed by the model's name in Triton. Gateways that want the same model write
the same record. The model sync beside each Triton of the pool reads it with its next look at the Task. The controller
removes old ones. Gateway and model sync need no connection to each other, and the gateway needs no right to load
models.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

from gateway.errors import GatewayError
from gateway.registry.ledger import Ledger, Record

_log = logging.getLogger("triton_gateway.control")

KIND: Final = "wish"
_AGAIN_S: Final = 10.0
"""A wish is written again after this time if the model is still not loaded."""
_RETRY_S: Final = 1.0
"""Pause after a failed write."""


class Wishes:
    """Writes wishes in a thread of its own, at most one in 10 s per model; concurrent wishes share one write.

    ``clock`` returns monotonic seconds, ``wall`` Unix seconds.
    """

    def __init__(
        self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
        thread: Executor | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._clock = clock
        self._wall = wall
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="wishes")
        self._told: dict[str, float] = {}
        self._untold: set[str] = set()
        self._lock = threading.Lock()
        self._problem = ""

    def make(self, model: str) -> None:
        """Ask for ``model`` to be loaded into Triton. Returns at once; never raises."""
        now = self._clock()
        if now - self._told.get(model, -_AGAIN_S) < _AGAIN_S:
            return
        self._told[model] = now
        with self._lock:
            is_first = not self._untold
            self._untold.add(model)
        if is_first:
            self._thread.submit(self._tell)

    def _tell(self) -> None:
        with self._lock:
            models, self._untold = self._untold, set()
        at = self._wall()
        try:
            self._ledger.write([Record(KIND, model, {"at": at}) for model in sorted(models)])
        except GatewayError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log.warning("model sync cannot be told to load %s: %s", ", ".join(sorted(models)), error)
            again = self._clock() - _AGAIN_S + _RETRY_S
            self._told |= dict.fromkeys(models, again)
            return
        self._problem = ""
        _log.info("model sync is asked to load %s", ", ".join(sorted(models)))
