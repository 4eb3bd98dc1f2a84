"""Asks model sync, through the registry, to load models that were unloaded while idle and are called again.

A load request is a record beside the serving Task, keyed by the model's name in Triton. Gateways that want the same
model write the same record. The model sync beside each Triton of the pool reads it with its next look at the Task. The
controller removes old ones. Gateway and model sync need no connection to each other, and the gateway needs no right to
load models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

from gateway.errors import GatewayError
from gateway.registry.ledger import Ledger, Record

_log = logging.getLogger("triton_gateway.control")

KIND: Final = "load_request"
_AGAIN_S: Final = 10.0
"""A request is written again after this time if the model is still not loaded."""


class LoadRequests:
    """Writes load requests in a thread of its own, at most one in 10 s per model.

    ``clock`` returns monotonic seconds, ``wall`` Unix seconds.
    """

    def __init__(
        self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
        thread: Executor | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._clock = clock
        self._wall = wall
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="load-requests")
        self._due: dict[str, float] = {}
        """When a model may be asked for again."""

    def make(self, model: str) -> None:
        """Ask for ``model`` to be loaded into Triton. Returns at once; never raises."""
        if self._clock() >= self._due.get(model, 0.0):
            self._due[model] = self._clock() + _AGAIN_S
            self._thread.submit(self._write, model)

    def _write(self, model: str) -> None:
        try:
            self._ledger.write([Record(KIND, model, {"at": self._wall()})])
            _log.info("model sync is asked to load %s", model)
        except GatewayError as error:
            _log.warning("model sync cannot be told to load %s: %s", model, error)
