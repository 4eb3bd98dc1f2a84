"""A gateway downloads only the parts of a model that it reads, and verifies the same hashes as a full download."""

from __future__ import annotations

import contextlib
import os
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ArtifactCorrupt, ContentChanged, RegistryUnavailable
from gateway.registry.cache import ArtifactCache
from gateway.registry.ledger import Record
from gateway.registry.port import Parts
from gateway.spec import Content, ModelRecord
from tests.fakes import FakeRegistry

MEGABYTE = 1 << 20
FILES = {
    "config.json": b"{}", "model.onnx": os.urandom(3 * MEGABYTE), "tokenizer.json": b'{"a": 1}' * 20_000,
    "1_Pooling/config.json": b"{1}", "model.onnx.data": os.urandom(2 * MEGABYTE), "vocab.txt": b"a\nb\n",
}  # fmt: skip


def package(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """Return a zip of ``files``, as the SDK packs a folder."""
    with zipfile.ZipFile(path, "w", compression=compression, allowZip64=True) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


class World:
    """A registry with one model, and the caches of two machines."""

    def __init__(self, folder: Path, *, files: dict[str, bytes] | None = None) -> None:
        self.folder = folder
        self.registry = FakeRegistry()
        self.archive = package(folder / "m.zip", files or FILES)
        self.registry.add_model("m", self.archive, is_package=True)
        self.gateway, self.sync = self.open("gateway"), self.open("sync")

    def open(self, name: str) -> ArtifactCache:
        return ArtifactCache(self.folder / name, self.registry)

    def record(self, model_id: str = "m") -> ModelRecord:
        return self.registry.model(model_id)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A bundle with five megabytes of weights."""
    return World(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_gateway_fetches_everything_but_the_weights(world: World) -> None:
    """In few bytes, and each file unchanged."""
    found = contents(world.gateway.without_weights(world.record()))
    assert {name: text for name, text in FILES.items() if ".onnx" not in name} == found
    assert world.registry.fetched < MEGABYTE < 5 * MEGABYTE < world.archive.stat().st_size
    assert [] == world.registry.downloads


def test_downloaded_parts_survive_a_registry_outage(world: World) -> None:
    """For the next start."""
    folder = world.gateway.without_weights(world.record())
    record = world.record()
    world.registry.is_up = False
    assert folder == world.open("gateway").without_weights(record)


def test_a_full_copy_on_the_same_disk_is_reused(world: World) -> None:
    """Beside model sync, on one machine, there is one copy."""
    folder = world.sync.model(world.record())
    beside = world.open("sync")
    assert folder == beside.without_weights(world.record())


def test_a_store_without_ranges_gives_the_whole_file(world: World) -> None:
    """Nothing that can be downloaded is refused."""
    world.registry.gives_parts = False
    assert FILES == contents(world.gateway.without_weights(world.record()))


@pytest.mark.parametrize("name", ["weights.onnx", "model.safetensors"])
def test_a_single_file_of_weights_is_not_downloaded(world: World, name: str) -> None:
    """Model sync has it and reports its errors."""
    (world.folder / name).write_bytes(b"w" * 1000)
    world.registry.add_model("one", world.folder / name)
    assert {} == contents(world.gateway.without_weights(world.record("one")))
    assert 0 == world.registry.fetched


def test_any_other_single_file_is_fetched(world: World) -> None:
    """Its content is unknown."""
    (world.folder / "table.csv").write_bytes(b"1")
    world.registry.add_model("one", world.folder / "table.csv")
    assert {"table.csv": b"1"} == contents(world.gateway.without_weights(world.record("one")))


CHANGED = {
    "another tokenizer": {"tokenizer.json": b"other"},
    "other weights": {"model.onnx": os.urandom(3 * MEGABYTE)},
    "a file more": {"added.json": b"{}"},
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("who", ["gateway", "sync"])
def test_another_upload_under_the_same_id_is_refused(world: World, change: str, who: str) -> None:
    """Also by whoever reads parts only: the recorded content covers both."""
    world.sync.model(world.record())
    content = Content("m", "m", world.record().uri, **world.sync.hashes(world.record()))
    world.registry.ledger.write([Record("content_hash", "m", asdict(content))])
    package(world.archive, {**FILES, **CHANGED[change]})
    late = world.open("b")
    late.learn(world.registry.task())
    with pytest.raises(ContentChanged):
        (late.without_weights if who == "gateway" else late.model)(world.record())
    package(world.archive, FILES)
    assert "tokenizer.json" in contents(late.without_weights(world.record()))


def test_a_model_whose_metadata_carry_a_hash_is_fetched_whole(world: World) -> None:
    """The hash covers the whole file."""
    import hashlib

    sha256 = hashlib.sha256(world.archive.read_bytes()).hexdigest()
    world.registry.models["m"] = replace(world.registry.models["m"], sha256=sha256)
    assert FILES == contents(world.gateway.without_weights(world.record()))


def test_a_connection_that_is_cut_leaves_nothing_and_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any request of the download."""
    whole = world.registry.parts

    for cut in range(2):
        asked = iter(range(100))

        def broken(uri: str, at: int = cut, asked=asked) -> Parts | None:  # type: ignore[no-untyped-def]
            found = whole(uri)
            assert found is not None

            def read(start: int, count: int):  # type: ignore[no-untyped-def]
                for chunk in found.read(start, count):
                    yield chunk[: len(chunk) // 2] if next(asked) == at else chunk

            return Parts(found.size, read)

        monkeypatch.setattr(world.registry, "parts", broken)
        with pytest.raises(RegistryUnavailable, match="stopped after"):
            world.gateway.without_weights(world.record())
        assert [] == [p for p in (world.folder / "gateway" / "models").iterdir() if p.suffix != ".lock"]
    monkeypatch.setattr(world.registry, "parts", whole)
    assert "tokenizer.json" in contents(world.gateway.without_weights(world.record()))


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_zips_are_refused_or_read_in_full(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Changed bytes at the end cause a refusal, a full download, or a correct read."""
    folder = tmp_path_factory.mktemp("zips")
    world = World(folder, files={"config.json": b"{}", "model.onnx": b"x" * 500, "a/b.txt": b"y" * 300})
    raw = bytearray(world.archive.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    world.archive.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(ArtifactCorrupt, RegistryUnavailable):
        world.gateway.without_weights(world.record())
    assert world.registry.fetched <= 3 * len(raw) + 1
