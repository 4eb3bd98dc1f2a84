"""Local copies of models: verified, downloaded once, without weights for gateways, deleted when nobody needs them."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import locks
from gateway.errors import ArtifactCorrupt, ContentChanged, RegistryUnavailable, SpecFault
from gateway.registry import cache
from gateway.registry.cache import ArtifactCache, Saved, SpecStore
from gateway.registry.ledger import Record
from gateway.registry.port import Parts
from gateway.spec import ArtifactRef, Content, ModelRecord, ServingTask
from tests.fakes import FakeRegistry

MEGABYTE = 1 << 20
SMALL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}' * 20_000,
    "1_Pooling/config.json": b"{1}",
    "vocab.txt": b"a",
}
BUNDLE = {"model.onnx": os.urandom(3 * MEGABYTE), **SMALL, "model.onnx.data": os.urandom(2 * MEGABYTE)}


class World:
    """A registry, and the caches of several machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = FakeRegistry()

    def open(self, name: str = "cache") -> ArtifactCache:
        """Return the cache of a program that has just read the serving Task."""
        found = ArtifactCache(self.folder / name, self.registry)
        found.learn(self.registry.task())
        return found

    def put(self, content: bytes | dict[str, bytes], name: str = "m.onnx", model_id: str = "m") -> ModelRecord:
        """Upload a file, or a folder as a zip, as a model."""
        path = self.folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
                for member, text in content.items():
                    packed.writestr(member, text)
        self.registry.add_model(model_id, path, is_package=isinstance(content, dict))
        return self.registry.model(model_id)

    def note(self, record: ModelRecord) -> None:
        """Record the model's present content, as the controller does."""
        looks = self.open("controller")
        looks.model(record)
        content = Content(record.id, record.name, record.uri, **looks.hashes(record))
        self.registry.ledger.write([Record("content_hash", record.id, asdict(content))])

    def left(self, name: str = "cache") -> list[Path]:
        """Return the entries of a cache, complete or not."""
        return [path for path in (self.folder / name).glob("*/*") if path.suffix != ".lock"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty registry."""
    return World(tmp_path)


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_downloaded_once_and_again_if_its_copy_is_damaged(world: World) -> None:
    """Also if several threads ask at the same time."""
    record, held = world.put(b"abcdef"), world.open()
    with ThreadPoolExecutor(8) as pool:
        [folder] = set(pool.map(lambda _: held.model(record), range(16)))
    assert 1 == len(world.registry.downloads)
    (folder / "m.onnx").write_bytes(b"abc")
    assert {"m.onnx": b"abcdef"} == files(held.model(record))


def full(_uri: str, _folder: Path) -> Path:
    """Download to a disk without space."""
    raise OSError(28, "No space left on device")


def test_a_failed_download_leaves_nothing_and_can_be_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry is away, the disk is full, code changed after its upload, an upload is broken or failed. What is on
    disk is used meanwhile, also by the next program.
    """
    record, download, held = world.put({"says.txt": b"right"}, "m.zip"), world.registry.download, world.open()
    whole = (world.folder / "m.zip").read_bytes()
    (world.folder / "code.py").write_text("x = 1")
    code = ArtifactRef("k", (world.folder / "code.py").as_uri(), "0" * 64, is_archive=False)
    unfinished = ModelRecord("m", "n", "http://files/failed_uploading", "")
    for content, fetch, error, reason in (
        (whole, lambda: held.artifact(code), ArtifactCorrupt, "recorded hash"),
        (whole, lambda: held.model(unfinished), SpecFault, "upload did not finish"),
        (b"broken", lambda: held.model(record), ArtifactCorrupt, "not a zip"),
        (whole, lambda: held.model(record), RegistryUnavailable, "No space left on device"),
        (whole, lambda: held.model(record), RegistryUnavailable, "is down"),
    ):
        monkeypatch.setattr(world.registry, "download", full if "space" in reason else download)
        world.registry.is_up = reason != "is down"
        (world.folder / "m.zip").write_bytes(content)
        with pytest.raises(error, match=reason):
            fetch()
        assert ([], {}) == (world.left(), held.hashes(record))
    world.registry.is_up = True
    folder = held.model(record)
    assert ({"says.txt": b"right"}, {"sha256", "parts"}) == (files(folder), held.hashes(record).keys())
    world.registry.is_up = False
    again = ArtifactCache(world.folder / "cache", world.registry)
    assert folder == again.model(record) == again.without_weights(record)


@pytest.mark.parametrize(
    ("content", "name", "found"),
    [
        (BUNDLE, "m.zip", SMALL), (b"w" * 1000, "m.onnx", {}), (b"w" * 1000, "model.safetensors", {}),
        (b"1", "table.csv", {"table.csv": b"1"}),
    ],
)  # fmt: skip
def test_a_gateway_fetches_everything_but_the_weights(
    world: World, content: Any, name: str, found: dict[str, bytes]
) -> None:
    """In few bytes, and each file unchanged; a single file of unknown content is fetched."""
    record = world.put(content, name)
    folder = world.open().without_weights(record)
    assert found == files(folder)
    assert world.registry.fetched < MEGABYTE
    world.registry.is_up = False
    assert folder == ArtifactCache(world.folder / "cache", world.registry).without_weights(record)


def test_the_whole_model_is_used_instead(world: World) -> None:
    """If its store gives no parts, or if it is on this disk."""
    record = world.put(BUNDLE, "m.zip")
    world.registry.gives_parts = False
    assert BUNDLE == files(world.open("no parts").without_weights(record))
    world.registry.gives_parts = True
    assert world.open("here").model(record) == world.open("here").without_weights(record)


CHANGED = {
    "another tokenizer": {"tokenizer.json": b"other"}, "other weights": {"model.onnx": os.urandom(3 * MEGABYTE)},
    "a file more": {"added.json": b"{}"},
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("who", ["without_weights", "model"])
def test_another_upload_under_the_same_id_is_refused(world: World, change: str, who: str) -> None:
    """Also by whoever reads parts only: the recorded content covers both."""
    record = world.put(BUNDLE, "m.zip")
    world.note(record)
    first = (world.folder / "m.zip").read_bytes()
    world.put({**BUNDLE, **CHANGED[change]}, "m.zip")
    fetch = getattr(world.open(), who)
    with pytest.raises(ContentChanged):
        fetch(record)
    (world.folder / "m.zip").write_bytes(first)
    assert "tokenizer.json" in files(fetch(record))


def test_a_copy_from_before_the_content_was_recorded_is_fetched_again(world: World) -> None:
    """A model at a new address is a new model, and every replica follows."""
    record, late = world.put(b"second"), world.open("late")
    late.model(record)
    world.put(b"first")
    world.note(record)
    late.learn(world.registry.task())
    assert {"m.onnx": b"first"} == files(late.model(record))
    assert {"other.onnx": b"third"} == files(late.model(world.put(b"third", "other.onnx")))


@pytest.mark.parametrize("at", [0, 1])
def test_a_connection_that_is_cut_leaves_nothing_and_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """At any request of the download."""
    record, whole, asked = world.put(BUNDLE, "m.zip"), world.registry.parts, iter(range(100))

    def broken(uri: str) -> Parts | None:
        found = whole(uri)
        assert found is not None

        def read(start: int, count: int) -> Iterator[bytes]:
            for chunk in found.read(start, count):
                yield chunk[: len(chunk) // 2] if next(asked) == at else chunk

        return Parts(found.size, read)

    monkeypatch.setattr(world.registry, "parts", broken)
    with pytest.raises(RegistryUnavailable, match="stopped after"):
        world.open().without_weights(record)
    assert [] == world.left()
    monkeypatch.setattr(world.registry, "parts", whole)
    assert SMALL == files(world.open().without_weights(record))


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_zips_are_refused_or_read_in_full(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Changed bytes cause a refusal, a full download, or a correct read; no part is read again and again."""
    world = World(tmp_path_factory.mktemp("zips"))
    record = world.put({"config.json": b"{}", "model.onnx": b"x" * 500, "a/b.txt": b"y" * 300}, "m.zip")
    raw = bytearray((world.folder / "m.zip").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    (world.folder / "m.zip").write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(ArtifactCorrupt, RegistryUnavailable):
        world.open().without_weights(record)
    assert world.registry.fetched <= 10 * len(raw)


@pytest.mark.parametrize("can_mark", [True, False])
def test_what_is_not_needed_is_deleted_an_hour_after_its_last_use(
    world: World, monkeypatch: pytest.MonkeyPatch, can_mark: bool
) -> None:
    """What is needed stays, however old, also where its use cannot be marked; else for the next start, too. Any use
    counts, of another program and without the weights as well.
    """
    ages = {"old": cache.UNTOUCHED_S, "needed": 1e7, "recent": cache.UNTOUCHED_S - 60, "used": 1e7, "read": 1e7}
    records = {name: world.put(bytes(1000), f"{name}.onnx", name) for name in ages}
    for name, record in records.items():
        used = time.time() - ages[name]
        os.utime(world.open().model(record).with_name("manifest.json"), (used, used))
    world.open().model(records["used"])
    world.open().without_weights(records["read"])
    if not can_mark:
        monkeypatch.setattr(os, "utime", Mock(side_effect=PermissionError))
    for needed, left in (("needed", {"needed"}), ("", {*["needed"] * can_mark})):
        world.open().keep([records[needed]] if needed else [])
        there = {path.stem for path in (world.folder / "cache").glob("models/*/files/*.onnx")}
        assert {"recent", "used", "read", *left} == there


def test_what_a_killed_process_has_left_is_deleted(world: World) -> None:
    """Or by who makes it again; not what a process is making. A cache that cannot be read is left as it is."""
    record, held = world.put(b"x"), world.open()
    entry = held.model(record).parent
    part, lock = entry.with_suffix(".part"), entry.with_suffix(".lock")
    for act in (lambda: held.model(record), lambda: held.keep([])):
        (part / "files").mkdir(parents=True)
        (entry / "files" / "m.onnx").write_bytes(b"damaged")
        with locks.held(lock):
            held.keep([])
            assert part.exists()
        act()
        assert [entry] == world.left()
    world.open("none").keep([])


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
