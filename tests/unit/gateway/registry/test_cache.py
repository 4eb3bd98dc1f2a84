"""The artifact cache never serves half-written or unverified files, and downloads each only once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.errors import ArtifactCorrupt, RegistryUnavailable, SpecFault
from gateway.registry.cache import ArtifactCache, Saved, SpecStore
from gateway.spec import ArtifactRef, ModelRecord, ServingTask
from tests.fakes import FakeRegistry


@pytest.fixture
def registry() -> FakeRegistry:
    """An empty registry."""
    return FakeRegistry()


@pytest.fixture
def cache(tmp_path: Path, registry: FakeRegistry) -> ArtifactCache:
    """A cache over that registry."""
    return ArtifactCache(tmp_path / "cache", registry)


def record(registry: FakeRegistry, model_id: str) -> ModelRecord:
    """Return the decoded record of a registered model."""
    return registry.model(model_id)


def test_model_is_downloaded_once(cache: ArtifactCache, registry: FakeRegistry, tmp_path: Path) -> None:
    """Also if several threads ask at the same time."""
    (tmp_path / "m.onnx").write_bytes(b"abc")
    registry.add_model("m", tmp_path / "m.onnx")
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: cache.model(record(registry, "m")), range(16)))
    assert (1, 1) == (len(folders), len(registry.downloads))


def test_damaged_entry_is_fetched_again(cache: ArtifactCache, registry: FakeRegistry, tmp_path: Path) -> None:
    """A file that is truncated on disk is not served."""
    (tmp_path / "m.onnx").write_bytes(b"abcdef")
    registry.add_model("m", tmp_path / "m.onnx")
    folder = cache.model(record(registry, "m"))
    (folder / "m.onnx").write_bytes(b"abc")
    assert b"abcdef" == (cache.model(record(registry, "m")) / "m.onnx").read_bytes()


def test_wrong_hash_is_refused_and_leaves_nothing(cache: ArtifactCache, tmp_path: Path) -> None:
    """Bytes that changed after the upload are never used, and no partial file stays."""
    code = tmp_path / "code.py"
    code.write_text("x = 1")
    with pytest.raises(ArtifactCorrupt, match="recorded hash"):
        cache.artifact(ArtifactRef("k", code.as_uri(), "0" * 64, is_archive=False))
    assert [] == [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"]


def test_model_without_data_is_refused_before_any_download(cache: ArtifactCache, registry: FakeRegistry) -> None:
    """A failed upload is never deployed, even if the model is registered and published."""
    registry.models["m"] = ModelRecord("m", "n", "http://files/failed_uploading", "")
    with pytest.raises(SpecFault, match="upload did not finish"):
        cache.model(record(registry, "m"))
    assert [] == registry.downloads


def test_failed_download_leaves_nothing_and_can_be_repeated(
    cache: ArtifactCache, registry: FakeRegistry, tmp_path: Path
) -> None:
    """The next attempt starts anew."""
    (tmp_path / "m.onnx").write_bytes(b"abc")
    registry.add_model("m", tmp_path / "m.onnx")
    known = record(registry, "m")
    registry.is_up = False
    with pytest.raises(RegistryUnavailable):
        cache.model(known)
    registry.is_up = True
    assert (cache.model(known) / "m.onnx").is_file()


def test_full_disk_is_a_clear_error(registry: FakeRegistry, tmp_path: Path) -> None:
    """Also a folder that cannot be written."""
    (tmp_path / "m.onnx").write_bytes(b"abc")
    registry.add_model("m", tmp_path / "m.onnx")

    class FullDisk(FakeRegistry):
        def download(self, uri: str, folder: Path) -> Path:
            raise OSError(28, "No space left on device")

    full = FullDisk()
    full.models = registry.models
    with pytest.raises(RegistryUnavailable, match="No space left on device"):
        ArtifactCache(tmp_path / "cache", full).model(record(registry, "m"))


def test_the_last_good_state_is_loaded_unless_damaged(tmp_path: Path) -> None:
    """A damaged file counts as no state."""
    store = SpecStore(tmp_path)
    assert store.load() is None
    saved = Saved(ServingTask("t"), {"m": ModelRecord("m", "n", "u", "onnx", tags=("x",))}, {}, frozenset({"e/1"}))
    store.save(saved)
    assert saved == store.load()
    for damaged in (json.dumps({"task": 1})[:-2], json.dumps({"task": 1, "models": {}}), "[]"):
        (tmp_path / "last-good.json").write_text(damaged)
        assert store.load() is None
