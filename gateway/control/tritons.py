"""The Tritons that are in use: one backend per address, made when it is first needed, closed when nothing needs it.

Which ones are needed is decided in ``reconcile``; requests reach them through the endpoints that were built on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from gateway.triton.port import Backend

Key = tuple[str, bool]
"""Address, and whether what is sent there is compressed."""


class Tritons:
    """Backends by address and compression; ``make`` makes one, without connecting to it."""

    def __init__(self, make: Callable[[str, bool], Backend]) -> None:
        self._make = make
        self._backends: dict[Key, Backend] = {}

    def get(self, address: str, compression: bool) -> Backend:
        """Return the backend that everybody who needs this Triton shares."""
        key = (address, compression)
        if key not in self._backends:
            self._backends[key] = self._make(address, compression)
        return self._backends[key]

    async def probe(self, needed: Collection[Key]) -> dict[str, bool]:
        """Return which of the Tritons that are needed answer, by address; all of them are asked at once."""
        asked = sorted(needed)
        found = await asyncio.gather(*(self.get(*key).is_live() for key in asked))
        live: dict[str, bool] = {}
        for (address, _), answers in zip(asked, found, strict=True):
            live[address] = live.get(address, False) or answers
        return live

    def waiting(self, needed: Collection[Key]) -> dict[str, int]:
        """Return how many calls wait at each address because nobody answers there."""
        found: dict[str, int] = {}
        for address, compression in needed:
            found[address] = found.get(address, 0) + self.get(address, compression).waiting
        return found

    async def forget(self, needed: Collection[Key]) -> None:
        """Close every backend but these. Nothing may be calling the others any more."""
        gone = [self._backends.pop(key) for key in [*self._backends] if key not in needed]
        for backend in gone:
            await backend.close()

    async def close(self) -> None:
        """Close all of them."""
        await self.forget(())
