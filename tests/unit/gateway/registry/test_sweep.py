"""What leaves the download cache, and what never does."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RegistryUnavailable
from gateway.registry import cache, sweep
from gateway.registry.cache import ArtifactCache
from gateway.spec import ModelRecord
from gateway.testing import FakeRegistry

HOUR = 3600.0


class World:
    """A cache of models of 1000 bytes, and a clock."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.now = 1_000_000_000.0
        self.registry = FakeRegistry()
        self.cache = self.open("gateway", max_bytes)

    def open(self, name: str, max_bytes: int) -> ArtifactCache:
        return ArtifactCache(
            self.folder / "cache", self.registry, max_bytes=max_bytes, name=name, clock=lambda: self.now
        )

    def record(self, model_id: str) -> ModelRecord:
        return ModelRecord(model_id, model_id, (self.folder / f"{model_id}.onnx").as_uri(), "onnx")

    def fetch(self, *model_ids: str) -> None:
        """Download models, one an hour after the other."""
        for model_id in model_ids:
            (self.folder / f"{model_id}.onnx").write_bytes(bytes(1000))
            path = self.cache.model(self.record(model_id))
            self.now += HOUR
            os.utime(path.parent / sweep.MARK, (self.now, self.now))
        self.now += 2 * HOUR

    def there(self) -> set[str]:
        """The models whose files are there."""
        return {path.stem for path in (self.folder / "cache").glob("models/*/files/*.onnx")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A cache that may hold two such models and their lists."""
    return World(tmp_path, 2_900)


def test_what_nobody_needs_leaves_the_longest_unused_first(world: World) -> None:
    """Until the cache is small enough, and no further."""
    world.fetch("a", "b", "c", "d")
    world.cache.keep([world.record("d")])
    assert {"c", "d"} == world.there()


def test_what_is_needed_stays_however_large(world: World) -> None:
    """The limit is for what is not."""
    for model_id in "abcd":
        world.cache.keep([world.record(m) for m in "abcd"])
        world.fetch(model_id)
    world.cache.keep([world.record(m) for m in "abcd"])
    assert set("abcd") == world.there()


def test_another_program_on_the_same_cache_is_respected(world: World) -> None:
    """What it has written down stays, also while it is not running; until it has been gone for a month."""
    world.open("sync", 0).keep([world.record("a"), world.record("b")])
    world.fetch("a", "b", "c", "d")
    world.now += 5 * HOUR
    world.cache.keep([world.record("d")])
    assert {"a", "b", "d"} == world.there()
    world.now += sweep.FORGOTTEN_S
    world.cache.keep([world.record("d")])
    assert {"b", "d"} == world.there() or {"a", "d"} == world.there()


def test_what_was_used_lately_stays(world: World) -> None:
    """Its user may not have written it down yet."""
    world.fetch("a", "b", "c")
    world.now -= 2 * HOUR
    (world.folder / "d.onnx").write_bytes(bytes(1000))
    mark = world.cache.model(world.record("d")).parent / sweep.MARK
    os.utime(mark, (world.now, world.now))
    world.cache.keep([])
    assert {"c", "d"} == world.there()


def test_without_a_limit_nothing_leaves(tmp_path: Path) -> None:
    """0 means never."""
    world = World(tmp_path, 0)
    world.fetch("a", "b", "c")
    world.cache.keep([])
    assert {"a", "b", "c"} == world.there()


def test_a_cache_keeps_below_its_volume_whatever_its_limit_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """80 % of a volume that is smaller than the limit, which is said."""
    world = World(tmp_path, 1_000_000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(total=3_600, free=3_600))
    with caplog.at_level(logging.INFO):
        world.fetch("a", "b", "c")
        world.cache.keep([world.record("c")])
    assert {"b", "c"} == world.there()
    assert 1 == caplog.text.count("80 % of its volume")


def test_a_full_disk_makes_room_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody needs goes, and the download is tried again; where nothing can go, the reason is told."""
    world.fetch("a", "b")
    world.cache.keep([world.record("a")])
    download = world.registry.download

    def full(uri: str, folder: Path) -> Path:
        if "b" in world.there():
            raise OSError(28, "No space left on device")
        return download(uri, folder)

    world.registry.download = full  # type: ignore[method-assign]
    world.fetch("c")
    assert {"a", "c"} == world.there()

    def still_full(uri: str, folder: Path) -> Path:
        raise OSError(28, "No space left on device")

    world.registry.download = still_full  # type: ignore[method-assign]
    world.cache.keep([world.record("a"), world.record("c")])
    with pytest.raises(RegistryUnavailable, match="No space left on device"):
        world.fetch("d")


def test_what_a_killed_process_left_goes_a_day_later(world: World) -> None:
    """Half an entry, of whichever process; not while somebody may still be at it."""
    for name in ("key.part", "key.part-x7a_b2"):
        (world.folder / "cache" / "models" / name / "files").mkdir(parents=True)
    models = world.folder / "cache" / "models"
    now = max(part.stat().st_mtime for part in models.iterdir())
    sweep.sweep(world.folder / "cache", 0, now + sweep.LEFT_S - HOUR)
    assert 2 == len(list(models.iterdir()))
    sweep.sweep(world.folder / "cache", 0, now + sweep.LEFT_S)
    assert not list(models.iterdir())


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: Any) -> None:
    """Tidying up never costs more than tidiness."""
    (tmp_path / "cache").write_text("in the way")
    ArtifactCache(tmp_path / "cache", FakeRegistry(), max_bytes=1).keep([])
    assert "cannot be tidied" in caplog.text


@given(
    needs=st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=3),
    ages=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    most=st.integers(0, 7_000),
)
def test_a_needed_entry_never_leaves(
    tmp_path_factory: pytest.TempPathFactory, needs: list[set[str]], ages: list[int], most: int
) -> None:
    """Whatever the sizes, the ages and the number of programs; and nothing leaves that fits."""
    root = tmp_path_factory.mktemp("cache")
    now = 1_000_000_000.0
    for name, age in zip("abcdef", ages, strict=True):
        (root / "models" / name).mkdir(parents=True)
        (root / "models" / name / sweep.MARK).write_bytes(bytes(1000))
        os.utime(root / "models" / name / sweep.MARK, (now - age * HOUR, now - age * HOUR))
    for number, wanted in enumerate(needs):
        sweep.need(root, f"p{number}", [f"models/{name}" for name in wanted], now)
    gone = {name.partition("/")[2] for name in sweep.sweep(root, most, now)}
    assert not gone & set().union(*needs)
    assert gone == set("abcdef") - {path.name for path in (root / "models").iterdir()}
    if most >= 6_000:
        assert not gone
