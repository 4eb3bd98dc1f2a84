"""The cleaning of the download cache: what it deletes, and what it never deletes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RegistryUnavailable
from gateway.registry import cache
from gateway.registry.cache import ArtifactCache
from gateway.spec import ModelRecord
from tests.fakes import FakeRegistry

HOUR = 3600.0


class World:
    """A cache of models of 1000 bytes, and a clock."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.now = 1_000_000_000.0
        self.registry = FakeRegistry()
        self.cache = self.open(max_bytes)

    def open(self, max_bytes: int) -> ArtifactCache:
        return ArtifactCache(self.folder / "cache", self.registry, max_bytes=max_bytes, clock=lambda: self.now)

    def record(self, model_id: str) -> ModelRecord:
        return ModelRecord(model_id, model_id, (self.folder / f"{model_id}.onnx").as_uri(), "onnx")

    def fetch(self, *model_ids: str) -> None:
        """Download models, one an hour after the other."""
        for model_id in model_ids:
            (self.folder / f"{model_id}.onnx").write_bytes(bytes(1000))
            self.now += HOUR
            self.use(model_id)
        self.now += 2 * HOUR

    def use(self, model_id: str) -> None:
        """Ask for a model twice: the second time it is on disk, and marked as used."""
        for _ in range(2):
            self.cache.model(self.record(model_id))

    def there(self) -> set[str]:
        """Return the models whose files exist."""
        return {path.stem for path in (self.folder / "cache").glob("models/*/files/*.onnx")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A cache whose limit is two such models and what is written about them."""
    return World(tmp_path, 2_900)


def test_unneeded_models_are_deleted_the_longest_unused_first(world: World) -> None:
    """Only until the cache is small enough."""
    world.fetch("a", "b", "c", "d")
    world.cache.keep([world.record("d")])
    assert {"c", "d"} == world.there()


def test_needed_models_stay_whatever_their_size(world: World) -> None:
    """The limit applies only to unneeded ones."""
    for model_id in "abcd":
        world.cache.keep([world.record(m) for m in "abcd"])
        world.fetch(model_id)
    world.cache.keep([world.record(m) for m in "abcd"])
    assert set("abcd") == world.there()


def test_another_program_on_the_same_cache_is_respected(world: World) -> None:
    """Models that it needs stay while it runs; when it has ended, they go like others."""
    world.fetch("a", "b", "c", "d")
    world.open(0).keep([world.record("a"), world.record("b")])
    world.now += cache.UNTOUCHED_S - 1
    world.cache.keep([world.record("d")])
    assert {"a", "b", "d"} == world.there()
    world.now += 2
    world.cache.keep([world.record("d")])
    assert {"b", "d"} == world.there() or {"a", "d"} == world.there()


def test_recently_used_models_stay(world: World) -> None:
    """Their user may not have named them yet."""
    world.fetch("a", "b", "c")
    world.use("a")
    world.cache.keep([])
    assert {"a", "c"} == world.there()


def test_nothing_is_deleted_before_it_is_known_what_is_needed(world: World) -> None:
    """A process that starts after a long time finds what it served then."""
    world.fetch("a", "b", "c", "d")
    world.cache = world.open(1)
    world.fetch("e")
    assert set("abcde") == world.there()
    world.cache.keep([world.record("a")])
    assert {"a"} == world.there()


def test_without_a_limit_nothing_is_deleted(tmp_path: Path) -> None:
    """0 means no limit."""
    world = World(tmp_path, 0)
    world.fetch("a", "b", "c")
    world.cache.keep([])
    assert {"a", "b", "c"} == world.there()


def test_a_cache_uses_at_most_80_percent_of_its_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the limit is larger than that."""
    world = World(tmp_path, 1_000_000)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(total=3_600, free=3_600))
    world.fetch("a", "b", "c")
    world.cache.keep([world.record("c")])
    assert {"b", "c"} == world.there()


def test_a_full_disk_causes_one_cleaning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unneeded models are deleted and the download is repeated. If none can be, the reason is reported."""
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


def test_a_download_makes_room_first(world: World) -> None:
    """A volume with a limit is not exceeded for a moment."""
    world.fetch("a", "b")
    world.cache.keep([world.record("b")])
    download, there = world.registry.download, []

    def noting(uri: str, folder: Path) -> Path:
        there.append(world.there())
        return download(uri, folder)

    world.registry.download = noting  # type: ignore[method-assign]
    world.fetch("c")
    assert [{"b"}] == there


def test_partial_entries_are_deleted_after_a_day(world: World) -> None:
    """Of any process. Before that, it may still be writing."""
    models = world.folder / "cache" / "models"
    for name in ("key.part", "key.part-x7a_b2"):
        (models / name / "files").mkdir(parents=True)
    changed = max(part.stat().st_mtime for part in models.iterdir())
    for age, left in ((cache.LEFT_S - HOUR, 2), (cache.LEFT_S, 0)):
        world.now = changed + age
        world.cache.keep([])
        assert left == len(list(models.iterdir()))


def test_a_cache_that_cannot_be_read_is_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed cleaning has no other effect, and without a cache there is nothing to clean."""
    world.cache.keep([])
    assert "" == caplog.text
    world.fetch("a")

    def fails(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(cache.shutil, "disk_usage", fails)
    world.cache.keep([])
    assert "cannot be tidied: Input/output error" in caplog.text


@given(
    needed=st.sets(st.sampled_from("abcdef")),
    ages=st.lists(st.integers(0, 50), min_size=6, max_size=6),
    most=st.integers(1, 9_000),
)
def test_a_needed_entry_is_never_deleted(
    tmp_path_factory: pytest.TempPathFactory, needed: set[str], ages: list[int], most: int
) -> None:
    """For any sizes and ages. An entry that fits is not deleted either."""
    world = World(tmp_path_factory.mktemp("cache"), most)
    began = world.now
    for name, age in zip("abcdef", ages, strict=True):
        (world.folder / f"{name}.onnx").write_bytes(bytes(1000))
        world.now = began - age * HOUR
        world.use(name)
    world.now = began
    world.cache.keep([world.record(name) for name in needed])
    gone = set("abcdef") - world.there()
    assert not gone & needed
    assert gone <= {name for name, age in zip("abcdef", ages, strict=True) if age}
    if most >= 6 * 1_450:
        assert not gone
