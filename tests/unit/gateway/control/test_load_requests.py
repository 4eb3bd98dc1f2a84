"""Requests to model sync for unloaded models: one record per model, and no delay of requests."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

from gateway.control.load_requests import LoadRequests
from tests.fakes import FakeLedger


class Later(Executor):
    """Runs submitted functions when told to."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> int:
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        return len(calls)


class World:
    """Load requests over a ledger in memory, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ledger = FakeLedger()
        self.thread = Later()
        self.requests = LoadRequests(self.ledger, clock=lambda: self.now, wall=lambda: self.now, thread=self.thread)

    def written(self, *models: str) -> int:
        """Ask for these models fifty times; return how many writes that makes."""
        for _ in range(50):
            for model in models:
                self.requests.make(model)
        return self.thread.run()

    def stored(self) -> dict[str, float]:
        return {model: one["at"] for model, one in self.ledger.read().get("load_request", {}).items()}


def test_many_requests_are_one_record_per_model_and_ten_seconds() -> None:
    """However many callers ask for it."""
    world = World()
    assert 2 == world.written("a", "b")
    assert {"a": 1000.0, "b": 1000.0} == world.stored()
    world.now += 9
    assert 0 == world.written("a")
    world.now += 2
    assert 1 == world.written("a")
    assert {"a": 1011.0, "b": 1000.0} == world.stored()


def test_an_unreachable_registry_is_tried_again() -> None:
    """The caller gets no error, and nothing accumulates."""
    world = World()
    world.ledger.is_up = False
    assert (1, 0) == (world.written("a"), world.written("a"))
    world.ledger.is_up = True
    world.now += 10
    assert 1 == world.written("a")
    assert {"a": 1010.0} == world.stored()
