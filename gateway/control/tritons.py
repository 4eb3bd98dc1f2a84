"""The connections to Tritons: one backend per address, made at first use and closed when no version needs it.

``TritonProbe`` asks the needed ones whether they answer. Requests use them through the endpoints built on them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from gateway.control.version import Versions
from gateway.health import Health
from gateway.metrics import catalog
from gateway.metrics.observer import Observer
from gateway.triton.port import Backend

_log = logging.getLogger("triton_gateway.control")

_PROBE_S: Final = 1.0
"""Pause between two probes."""


class Tritons:
    """Backends by address; ``make`` creates one without connecting."""

    def __init__(self, make: Callable[[str], Backend]) -> None:
        self._make = make
        self._backends: dict[str, Backend] = {}

    def get(self, address: str) -> Backend:
        """Return the shared backend of this address."""
        if address not in self._backends:
            self._backends[address] = self._make(address)
        return self._backends[address]

    async def forget(self, needed: Collection[str]) -> None:
        """Close all backends but the ``needed`` ones. The others must have no calls in flight."""
        gone = [self._backends.pop(address) for address in [*self._backends] if address not in needed]
        for backend in gone:
            await backend.close()

    async def close(self) -> None:
        """Close all backends."""
        await self.forget(())


class TritonProbe:
    """Probes the Tritons that versions need, publishes the result, and closes connections to all others."""

    def __init__(self, tritons: Tritons, versions: Versions, health: Health, observer: Observer) -> None:
        self._tritons = tritons
        self._versions = versions
        self._health = health
        self._observer = observer

    async def run(self) -> None:
        """Probe once a second until cancelled."""
        while True:
            try:
                await self._probe()
            except Exception:  # noqa: BLE001 - if this loop ended, readiness would never change again
                _log.exception("unexpected error while asking the Tritons whether they answer")
            await asyncio.sleep(_PROBE_S)

    async def _probe(self) -> None:
        asked = self._needed()
        answered = await asyncio.gather(*(backend.is_live() for backend in asked.values()))
        live = dict(zip(asked, answered, strict=True))
        for address, answers in live.items():
            if self._health.backend_live.get(address) != answers:
                _log.log(
                    logging.INFO if answers else logging.WARNING,
                    "Triton at %s %s", address, "answers" if answers else "does not answer",
                )  # fmt: skip
        needed, pools = self._needed(), self.pools()
        found = {address: answers for address, answers in live.items() if address in needed}
        if found != self._health.backend_live or pools != self._health.pools:
            self._health.backend_live, self._health.pools = found, pools
            self._observer.show(
                catalog.BACKEND_UP, {(address, pools.get(address, "")): live for address, live in found.items()}
            )
        waiting: dict[str, int] = {}
        for address, backend in needed.items():
            for pool in pools.get(address, "").split(","):
                waiting[pool] = waiting.get(pool, 0) + backend.waiting
        self._observer.show(catalog.POOL_WAITING, {(pool,): count for pool, count in waiting.items()})
        self._health.note()  # a Triton may have come back, or the start-up wait may be over
        if not self._versions.retiring:  # a retiring version still needs the Triton of its last requests
            await self._tritons.forget(needed)

    def lacking(self) -> set[str]:
        """Return the urls whose version serves, but whose model no Triton has, for instance because it was restarted.

        A model that is unloaded while it is idle is not meant.
        """
        return {
            url for url, version in self._versions.served().items()
            if version.endpoint is not None and (plan := version.plan) is not None and plan.triton_address
            and not plan.spec.unload_after
            and self._tritons.get(plan.triton_address).lacks(version.endpoint.identity.triton_name)
        }  # fmt: skip

    def _needed(self) -> dict[str, Backend]:
        """Return the Tritons that versions are served or built on."""
        return {address: self._tritons.get(address) for address in sorted(self.pools())}

    def pools(self) -> dict[str, str]:
        """Return the pools of each needed address, separated by commas."""
        found: dict[str, set[str]] = {}
        for version in self._versions:
            if (plan := version.plan) is not None and plan.triton_address:
                found.setdefault(plan.triton_address, set()).add(plan.pool)
        return {address: ",".join(sorted(pools)) for address, pools in found.items()}
