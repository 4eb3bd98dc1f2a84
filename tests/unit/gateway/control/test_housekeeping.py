"""What a change leaves to do: seldom if it takes long, and one thing after the other."""

from __future__ import annotations

import asyncio

import pytest

from gateway.control import housekeeping
from gateway.control.housekeeping import Housekeeping

pytestmark = pytest.mark.looptime


class Work:
    """Counts what is called; a ``save`` takes ``seconds``, tidying is held until ``may_tidy``."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.did: list[str] = []
        self.seconds = seconds
        self.may_tidy = asyncio.Event()
        self.of = Housekeeping(self._save, self._prune)

    async def _save(self) -> None:
        await asyncio.sleep(self.seconds)
        self.did.append("save")

    async def _prune(self) -> None:
        self.did.append("tidy")
        await self.may_tidy.wait()

    async def until(self, *did: str) -> None:
        async with asyncio.timeout(20):
            while self.did != list(did):
                await asyncio.sleep(0.002)


async def test_what_takes_long_to_store_is_stored_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a thousand endpoints asks with each swap of the routes: the first one and the last are save_now."""
    monkeypatch.setattr(housekeeping, "MAX_REST_S", 1.0)
    work = Work(0.05)
    work.of.save_soon()
    await work.until("save")
    for _ in range(20):
        work.of.save_soon()
        await asyncio.sleep(0.002)
    assert ["save"] == work.did
    await work.until("save", "save")
    assert work.of.is_idle or not work.of._is_unsaved


async def test_what_takes_no_time_is_stored_at_once() -> None:
    """Who is asked next, a restart without the registry, finds what is served."""
    work = Work()
    for number in range(1, 5):
        work.of.save_soon()
        await work.until(*["save"] * number)


async def test_what_must_be_stored_now_waits_for_no_rest() -> None:
    """And rests again housekeeping."""
    work = Work(0.05)
    work.of.save_soon()
    await work.until("save")
    work.of.save_soon()
    await work.of.save_now()
    assert ["save", "save"] == work.did
    work.of.save_soon()
    await asyncio.sleep(0.1)
    assert ["save", "save"] == work.did
    await work.of.close()
    assert ["save", "save", "save"] == work.did


async def test_what_changes_while_it_is_stored_is_stored_again() -> None:
    """Once, however often it was asked for."""
    work = Work(0.01)
    work.of.save_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(5):
        work.of.save_soon()
    await work.until("save", "save")
    await asyncio.sleep(0.4)
    assert ["save", "save"] == work.did


async def test_tidying_waits_for_what_is_stored_and_holds_it_up_never() -> None:
    """Tidying may wait for the registry."""
    work = Work()
    work.of.prune_soon()
    work.of.save_soon()
    await work.until("save", "tidy")
    work.of.prune_soon()
    work.of.save_soon()
    await work.until("save", "tidy", "save")
    await asyncio.sleep(0.05)
    assert ["save", "tidy", "save"] == work.did, "never two at a time"
    work.may_tidy.set()
    work.of.prune_soon()
    await work.until("save", "tidy", "save", "tidy")


async def test_what_is_not_stored_yet_is_stored_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is told to stop does not rest."""
    monkeypatch.setattr(housekeeping, "MAX_REST_S", 60.0)
    monkeypatch.setattr(housekeeping, "REST", 10_000)
    work = Work(0.01)
    work.of.save_soon()
    await work.until("save")
    work.of.save_soon()
    await asyncio.sleep(0.01)
    assert ["save"] == work.did
    await work.of.close()
    assert ["save", "save"] == work.did
