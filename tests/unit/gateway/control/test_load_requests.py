"""Requests to model sync for unloaded models: one record per model, and no delay of requests."""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor, Future
from typing import Any

from gateway.control.load_requests import LoadRequests
from gateway.errors import RegistryUnavailable
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


def test_many_requests_are_one_record_per_model_and_ten_seconds() -> None:
    """However many callers ask for it. An unreachable registry is tried again; callers get no error."""
    now, ledger, thread = [1000.0], FakeLedger(), Later()
    requests = LoadRequests(ledger, clock=lambda: now[0], wall=lambda: now[0], thread=thread)

    def written(after: float, *models: str) -> tuple[int, dict[str, float]]:
        now[0] += after
        for model in models * 50:
            requests.make(model)
        count = thread.run()
        with contextlib.suppress(RegistryUnavailable):
            return count, {model: one["at"] for model, one in ledger.read()["load_request"].items()}
        return count, {}

    assert (2, {"a": 1000.0, "b": 1000.0}) == written(0, "a", "b")
    assert (0, {"a": 1000.0, "b": 1000.0}) == written(9, "a")
    assert (1, {"a": 1011.0, "b": 1000.0}) == written(2, "a")
    ledger.is_up = False
    assert (1, 0) == (written(10, "a")[0], written(0, "a")[0])
    ledger.is_up = True
    assert (1, {"a": 1031.0, "b": 1000.0}) == written(10, "a")
