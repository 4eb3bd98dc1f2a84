"""Requests to model sync for unloaded models: one record per model, and no delay of requests."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

from gateway.control.wishes import Wishes
from tests.fakes import FakeLedger


class Later(Executor):
    """Runs submitted functions when told to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class World:
    """Wishes over a ledger in memory, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ledger = FakeLedger()
        self.thread = Later()
        self.wishes = self.another()

    def another(self) -> Wishes:
        return Wishes(self.ledger, clock=lambda: self.now, wall=lambda: self.now, thread=self.thread)

    def stored(self) -> dict[str, float]:
        return {model: one["at"] for model, one in self.ledger.read().get("wish", {}).items()}


def test_many_requests_are_one_record_and_many_models_one_call() -> None:
    """Two gateways also write one record, under the same key."""
    world = World()
    other = world.another()
    for _ in range(100):
        world.wishes.make("a")
        world.wishes.make("b")
        other.make("a")
    world.thread.run()
    assert {"a": 1000.0, "b": 1000.0} == world.stored()
    assert 2 == world.ledger.writes
    world.now += 9
    world.wishes.make("a")
    world.thread.run()
    assert 2 == world.ledger.writes
    world.now += 2
    world.wishes.make("a")
    world.thread.run()
    assert {"a": 1011.0, "b": 1000.0} == world.stored()


def test_an_unreachable_registry_is_tried_again_with_the_next_request() -> None:
    """The caller gets no error, and nothing accumulates."""
    world = World()
    world.ledger.is_up = False
    for _ in range(50):
        world.wishes.make("a")
    assert 1 == len(world.thread.calls)
    world.thread.run()
    world.wishes.make("a")
    assert [] == world.thread.calls
    world.ledger.is_up = True
    world.now += 1.5
    world.wishes.make("a")
    world.thread.run()
    assert {"a": 1001.5} == world.stored()
