"""Work after a change: slow saves happen rarely, and saving and pruning never overlap."""

from __future__ import annotations

import asyncio

import pytest

from gateway.control import housekeeping
from gateway.control.housekeeping import Housekeeping
from tests.waiting import soon

pytestmark = pytest.mark.looptime


class Work:
    """Counts calls; a ``save`` takes ``seconds``, and pruning waits for ``may_tidy``."""

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
        await soon(lambda: self.did == list(did))


async def test_slow_saves_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a thousand endpoints requests a save with each swap; the first and the last state are saved."""
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


async def test_fast_saves_happen_at_once() -> None:
    """A restart without the registry finds what is served."""
    work = Work()
    for number in range(1, 5):
        work.of.save_soon()
        await work.until(*["save"] * number)


async def test_an_urgent_save_does_not_wait_for_the_pause() -> None:
    """The pause applies again to later saves."""
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


async def test_a_change_during_a_save_is_saved_by_the_next_one() -> None:
    """One more save, however many changes there were."""
    work = Work(0.01)
    work.of.save_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(5):
        work.of.save_soon()
    await work.until("save", "save")
    await asyncio.sleep(0.4)
    assert ["save", "save"] == work.did


async def test_pruning_waits_for_saves_and_never_delays_them() -> None:
    """Pruning may wait for the registry."""
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


async def test_a_pending_save_is_done_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopping skips the pause."""
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
