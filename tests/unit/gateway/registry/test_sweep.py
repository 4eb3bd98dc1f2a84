"""The cleaning of the download cache: what it deletes, and what it never deletes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gateway.registry import cache
from gateway.registry.cache import ArtifactCache
from gateway.spec import ModelRecord
from tests.fakes import FakeRegistry


class World:
    """A cache of models, each with the seconds since its last use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = self.open()

    def open(self) -> ArtifactCache:
        return ArtifactCache(self.folder / "cache", FakeRegistry())

    def record(self, model_id: str) -> ModelRecord:
        return ModelRecord(model_id, model_id, (self.folder / f"{model_id}.onnx").as_uri(), "onnx")

    def fetch(self, **ages: float) -> None:
        for model_id, age in ages.items():
            (self.folder / f"{model_id}.onnx").write_bytes(bytes(1000))
            used = time.time() - age
            os.utime(self.cache.model(self.record(model_id)).with_name("manifest.json"), (used, used))

    def there(self) -> set[str]:
        """Return the models whose files exist."""
        return {path.stem for path in (self.folder / "cache").glob("models/*/files/*.onnx")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A cache with three models, of which two were not used for an hour."""
    found = World(tmp_path)
    found.fetch(old=cache.UNTOUCHED_S, needed=1e7, recent=cache.UNTOUCHED_S - 60)
    return found


def test_what_is_not_needed_is_deleted_an_hour_after_its_last_use(world: World) -> None:
    """What is needed stays, however old: the next start finds it."""
    world.cache.keep([world.record("needed")])
    assert {"needed", "recent"} == world.there()
    world.open().keep([])
    assert {"needed", "recent"} == world.there()  # used by the one that needs it, a moment ago


def test_what_is_needed_stays_also_where_its_use_cannot_be_marked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a volume whose clock is behind, or of another owner."""

    def fails(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", fails)
    world.cache.keep([world.record("needed")])
    assert {"needed", "recent"} == world.there()


def test_a_use_counts(world: World) -> None:
    """Also of another program on the same cache, and also of what is needed without its weights."""
    world.open().model(world.record("old"))
    world.open().without_weights(world.record("needed"))
    world.cache.keep([])
    assert {"old", "needed", "recent"} == world.there()


def test_partial_entries_are_deleted_after_a_day(world: World) -> None:
    """Of any process. Before that, it may still be writing."""
    models = world.folder / "cache" / "models"
    parts = [models / "key.part", models / "key.part-x7a_b2"]
    for age, is_left in ((cache.LEFT_S - 60, True), (cache.LEFT_S, False)):
        for part in parts:
            (part / "files").mkdir(parents=True, exist_ok=True)
            os.utime(part, (time.time() - age, time.time() - age))
        world.cache.keep([])
        assert [is_left] * 2 == [part.exists() for part in parts]


def test_a_cache_that_cannot_be_read_is_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed cleaning has no other effect, and without a cache there is nothing to clean."""
    ArtifactCache(world.folder / "none", FakeRegistry()).keep([])
    assert "" == caplog.text

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "glob", fails)
    world.cache.keep([])
    assert "cannot be tidied: Input/output error" in caplog.text
