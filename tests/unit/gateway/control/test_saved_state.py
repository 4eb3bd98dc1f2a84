"""The state on disk: slow saves happen rarely, and saving never waits for the deletion of files."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.control import saved_state
from gateway.control.saved_state import SavedState
from gateway.control.version import Versions
from tests.waiting import soon

pytestmark = pytest.mark.looptime


class Pool(Executor):
    """Runs work at once and answers after ``seconds`` of the event loop's time, but not before ``may_end``."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.running: set[asyncio.Task[None]] = set()

    def submit(self, call: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()

        async def answer() -> None:
            await asyncio.sleep(self.seconds)
            result = call(*args)
            await self.may_end.wait()
            future.set_result(result)

        task = asyncio.create_task(answer())
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return future


class Work:
    """Notes what is done; a save takes ``seconds``, and deleting ends when ``pruning.may_end`` is set."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.did: list[str] = []
        self.saving, self.pruning, self.revision = Pool(seconds), Pool(), ""
        parts: Any = SimpleNamespace(
            save=lambda *_: self.did.append("save"), keep=lambda *_: self.did.append("tidy"), known=dict,
            local=self.saving, downloads=self.pruning,
        )  # fmt: skip
        versions = Versions(lambda: 0.0, lambda _: None)
        self.of = SavedState(
            parts, parts, parts, parts, versions, task=lambda: cast("Any", "task"),
            plan=lambda: cast("Any", SimpleNamespace(revision=self.revision, endpoints={}) if self.revision else None),
        )  # fmt: skip

    async def until(self, *did: str) -> None:
        await soon(lambda: self.did == list(did))


async def test_slow_saves_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a thousand endpoints requests a save with each swap; the first and the last state are saved."""
    monkeypatch.setattr(saved_state, "MAX_REST_S", 1.0)
    work = Work(0.05)
    work.of.save_soon()
    await work.until("save")
    for _ in range(20):
        work.of.save_soon()
        await asyncio.sleep(0.002)
    assert ["save"] == work.did
    await work.until("save", "save")


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
    work = Work(0.05)
    work.of.save_soon()
    await soon(lambda: work.saving.running)
    for _ in range(5):
        work.of.save_soon()
    await work.until("save", "save")
    await asyncio.sleep(4.0)
    assert ["save", "save"] == work.did


async def test_deleting_waits_for_saves_and_never_delays_them() -> None:
    """After each change of the configuration, one at a time."""
    work = Work(0.01)
    work.revision = "first"
    work.of.save_soon()
    work.of.prune_soon()
    await work.until("save", "tidy")
    work.pruning.may_end.clear()
    work.revision = "second"
    work.of.prune_soon()
    await work.until("save", "tidy", "tidy")
    work.revision = "third"
    work.of.save_soon()
    await work.until("save", "tidy", "tidy", "save")
    work.of.prune_soon()
    await asyncio.sleep(0.05)
    assert ["save", "tidy", "tidy", "save"] == work.did, "never two at a time"
    work.pruning.may_end.set()
    await soon(lambda: not work.pruning.running)
    await asyncio.sleep(0.05)
    work.of.prune_soon()
    await work.until("save", "tidy", "tidy", "save", "tidy")


async def test_unneeded_files_are_deleted_again_after_ten_minutes() -> None:
    """Not with every look at the registry."""
    work = Work()
    work.revision = "same"
    for _ in range(599):
        work.of.prune_soon()
        await asyncio.sleep(1.0)
    assert ["tidy"] == work.did
    await asyncio.sleep(2.0)
    work.of.prune_soon()
    await work.until("tidy", "tidy")


async def test_a_pending_save_is_done_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopping skips the pause."""
    monkeypatch.setattr(saved_state, "MAX_REST_S", 60.0)
    monkeypatch.setattr(saved_state, "REST", 10_000)
    work = Work(0.01)
    work.of.save_soon()
    await work.until("save")
    work.of.save_soon()
    await asyncio.sleep(0.01)
    assert ["save"] == work.did
    await work.of.close()
    assert ["save", "save"] == work.did
