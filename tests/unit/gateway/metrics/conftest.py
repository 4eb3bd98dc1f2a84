"""What a worker and its parent wait for each other: so long that no stall of the machine reaches it."""

from __future__ import annotations

import pytest

from gateway.metrics import workers
from tests.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def _patient_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_GIVE_UP_S", LIMIT_S)
    monkeypatch.setattr(workers, "_LAST_S", LIMIT_S)
