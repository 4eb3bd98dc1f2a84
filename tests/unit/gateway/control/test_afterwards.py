"""What a change leaves to do: once, when it is over, and one thing after the other."""

from __future__ import annotations

import asyncio

import pytest

from gateway.control import afterwards
from gateway.control.afterwards import Afterwards


class Work:
    """Counts what is called; ``tidying`` is held until ``may_tidy``."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.may_tidy = asyncio.Event()
        self.of = Afterwards(self._save, self._tidy)

    async def _save(self) -> None:
        self.did.append("save")
        await asyncio.sleep(0)

    async def _tidy(self) -> None:
        self.did.append("tidy")
        await self.may_tidy.wait()

    async def until(self, *did: str) -> None:
        async with asyncio.timeout(20):
            while self.did != list(did):
                await asyncio.sleep(0.002)


async def test_changes_that_come_together_are_stored_once_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a thousand endpoints asks with each swap of the routes."""
    monkeypatch.setattr(afterwards, "CALM_S", 0.2)
    work = Work()
    for _ in range(20):
        work.of.save_soon()
        await asyncio.sleep(0.002)
        assert [] == work.did
    await work.until("save")
    await asyncio.sleep(0.25)
    assert ["save"] == work.did


async def test_changes_that_never_end_are_stored_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that fails again and again must not keep the others from being remembered."""
    monkeypatch.setattr(afterwards, "CALM_S", 60.0)
    monkeypatch.setattr(afterwards, "LATEST_S", 0.05)
    work = Work()
    async with asyncio.timeout(20):
        while len(work.did) < 2:
            work.of.save_soon()
            await asyncio.sleep(0.005)


async def test_tidying_waits_for_what_is_stored_and_holds_it_up_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tidying may wait for the registry."""
    monkeypatch.setattr(afterwards, "CALM_S", 0.02)
    work = Work()
    work.of.tidy_soon()
    work.of.save_soon()
    await work.until("save", "tidy")
    work.of.tidy_soon()
    work.of.save_soon()
    await work.until("save", "tidy", "save")
    await asyncio.sleep(0.05)
    assert ["save", "tidy", "save"] == work.did, "never two at a time"
    work.may_tidy.set()
    work.of.tidy_soon()
    await work.until("save", "tidy", "save", "tidy")


async def test_what_is_not_stored_yet_is_stored_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is told to stop has no moment of calm to wait for."""
    monkeypatch.setattr(afterwards, "CALM_S", 60.0)
    monkeypatch.setattr(afterwards, "LATEST_S", 60.0)
    work = Work()
    work.of.save_soon()
    await asyncio.sleep(0.01)
    assert [] == work.did
    await work.of.close()
    assert ["save"] == work.did
