"""Model records: threads change them while others read them, and no change is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gateway.control.records import ModelRecords
from gateway.spec import ModelRecord
from tests.fakes import FakeRegistry


class Slow(FakeRegistry):
    """A registry that runs a function while it answers."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None
        for name in ("a", "b"):
            (folder / name).write_text(name)
            self.add_model(name, folder / name)

    def records(self, model_ids: Collection[str]) -> Mapping[str, ModelRecord]:
        found = super().records(model_ids)
        self.meanwhile()
        return found


def test_records_read_while_stored_ones_are_added_are_kept(tmp_path: Path) -> None:
    """A start from disk, because the registry is slow, must not discard the registry's later answer."""
    registry = Slow(tmp_path)
    records = ModelRecords(registry)
    registry.meanwhile = lambda: records.learn({i: ModelRecord(i, "old", "", "") for i in ("a", "stored")})
    records.refresh(["a", "b"])
    assert {"a", "b", "stored"} == set(records.known())
    assert "a" == records.known()["a"].name
