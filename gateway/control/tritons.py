"""The connections to Tritons: one backend per address, made at first use and closed when no version needs it.

``reconcile`` decides which ones are needed. Requests use them through the endpoints that were built on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from gateway.triton.port import Backend

Key = tuple[str, bool]
"""The address, and whether requests to it are compressed."""


class Tritons:
    """Backends by address and compression; ``make`` creates one without connecting."""

    def __init__(self, make: Callable[[str, bool], Backend]) -> None:
        self._make = make
        self._backends: dict[Key, Backend] = {}

    def get(self, address: str, compression: bool) -> Backend:
        """Return the shared backend of this address."""
        key = (address, compression)
        if key not in self._backends:
            self._backends[key] = self._make(address, compression)
        return self._backends[key]

    async def probe(self, needed: Collection[Key]) -> dict[str, bool]:
        """Return which of the needed addresses answer. All are asked at the same time."""
        asked = sorted(needed)
        found = await asyncio.gather(*(self.get(*key).is_live() for key in asked))
        live: dict[str, bool] = {}
        for (address, _), answers in zip(asked, found, strict=True):
            live[address] = live.get(address, False) or answers
        return live

    def waiting(self, needed: Collection[Key]) -> dict[str, int]:
        """Return the number of calls that wait at each address because it does not answer."""
        found: dict[str, int] = {}
        for address, compression in needed:
            found[address] = found.get(address, 0) + self.get(address, compression).waiting
        return found

    async def forget(self, needed: Collection[Key]) -> None:
        """Close all backends but the ``needed`` ones. The others must have no calls in flight."""
        gone = [self._backends.pop(key) for key in [*self._backends] if key not in needed]
        for backend in gone:
            await backend.close()

    async def close(self) -> None:
        """Close all backends."""
        await self.forget(())
