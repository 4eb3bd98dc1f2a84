"""Why Triton lacks a model, as the model syncs report it. Builds that wait for Triton ask here.

Reports are read at most every fifteen seconds, in a thread, by one reader for all versions. Without them (the registry
is away, a Triton without model sync) there is no reason, and what Triton itself says is shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from gateway.control.threads import run_in
from gateway.errors import GatewayError
from gateway.registry import reports
from gateway.registry.ledger import Ledger, Records

_EVERY_S: Final = 15.0


class SyncReports:
    """The reports in ``ledger``; ``pool`` reads them. ``clock``: seconds; ``wall``: Unix seconds. One event loop."""

    def __init__(
        self, ledger: Ledger, pool: Executor, *, clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._pool = pool
        self._clock = clock
        self._wall = wall
        self._asked_at = -math.inf
        self._records: Records = {}

    async def why_missing(self, model: str) -> reports.Missing:
        """Return why no Triton, or not every one, has ``model`` (its name in Triton). Never raises."""
        now = self._clock()
        if now - self._asked_at >= _EVERY_S:
            self._asked_at = now  # whoever asks meanwhile takes the former answer
            try:
                self._records = await run_in(self._pool, self._ledger.read)
            except GatewayError:
                self._asked_at = now - _EVERY_S + 1  # Triton's own reason is shown meanwhile
        return reports.why_missing(self._records, model, now=self._wall())
