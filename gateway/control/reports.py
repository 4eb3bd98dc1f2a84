"""What model syncs and the controller report: why Triton lacks a model, and what is found of drift and of labels.

Builds that wait for Triton ask here, and the status does.

Reports are read at most every fifteen seconds, in a thread, by one reader for all versions. Without them (the registry
is away, a Triton without model sync) there is no reason, and what Triton itself says is shown.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final

from gateway.control.threads import run_in
from gateway.errors import GatewayError
from gateway.registry import reports
from gateway.registry.ledger import Ledger, Records

_EVERY_S: Final = 15.0
_JUDGED_S: Final = 3600.0
"""What the controller has found counts for so long; it is written anew every five minutes."""
_FOUND: Final = (
    "version", "variable", "bins", "counts", "reference", "n", "days", "visible", "since", "state",
)  # fmt: skip
"""What is shown of a judged variable; its record also names the reference."""
_LOST_S: Final = 86400.0
"""How long a lost endpoint is shown: it may have been removed on purpose."""


class Reports:
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
        await self._look()
        return reports.why_missing(self._records, model, now=self._wall())

    async def judged(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return what the controller has found over all gateways, as ``deploy.controller.drift`` records it.

        ``drift``: variables that have a reference, with their bins in about the last hour and in the reference, and the
        evidence; ``compared``: canaries beside stable versions; ``accuracy``; ``lost``: endpoints that a stale write
        has taken out of the serving Task, with the command that restores each. Never raises.
        """
        await self._look()
        found: dict[str, list[Mapping[str, Any]]] = {"drift": [], "compared": [], "accuracy": [], "lost": []}
        for endpoint, value in self._records.get("leader", {}).get("lost", {}).items():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if abs(self._wall() - float(value["at"])) < _LOST_S:
                    found["lost"].append({"endpoint": endpoint, "restore": str(value["restore"])})
        for endpoint, value in self._records.get("judged", {}).items():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if abs(self._wall() - float(value["at"])) < _JUDGED_S:
                    of = {"endpoint": endpoint, "alarm_days": value["alarm_days"]}
                    found["drift"].extend({**of, **{name: one[name] for name in _FOUND}} for one in value["variables"])
                    for kind in ("compared", "accuracy"):
                        found[kind].extend({"endpoint": endpoint, **one} for one in value[kind])
        return found

    async def _look(self) -> None:
        now = self._clock()
        if now - self._asked_at >= _EVERY_S:
            self._asked_at = now  # whoever asks meanwhile takes the former answer
            try:
                self._records = await run_in(self._pool, self._ledger.read)
            except GatewayError:
                self._asked_at = now - _EVERY_S + 1  # Triton's own reason is shown meanwhile
