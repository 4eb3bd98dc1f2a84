"""Rules of the content-addressed file store."""

# ruff: noqa: D103 - a test's name states its rule

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.controlplane.clock import Clock
from deploy.controlplane.files import BadPath, Files
from deploy.controlplane.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "db")
    yield opened
    opened.close()


@pytest.fixture
def files(store: Store, tmp_path: Path) -> Files:
    return Files(store=store, directory=tmp_path / "files")


def put(files: Files, path: str, content: bytes) -> str:
    upload = files.begin()
    upload.write(content)
    sha = files.commit(upload, path)
    upload.discard()
    return sha


def read(files: Files, path: str) -> bytes | None:
    found = files.find(path)
    return found.location.read_bytes() if found else None


def blobs(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "files" / "blobs").glob("*/*"))


def test_upload_comes_back_byte_for_byte_with_its_type(files: Files) -> None:
    sha = put(files, "/P/models/m.py", b"x = 1\n")
    found = files.find("P/models/m.py")
    assert found is not None
    assert (found.sha, found.size, found.name, found.content_type) == (sha, 6, "m.py", "text/x-python")
    assert sha == hashlib.sha256(b"x = 1\n").hexdigest()
    assert found.location.read_bytes() == b"x = 1\n"


def test_a_second_upload_to_a_path_replaces_the_first(files: Files, tmp_path: Path) -> None:
    put(files, "P/m.onnx", b"one")
    put(files, "P/m.onnx", b"two")
    assert read(files, "P/m.onnx") == b"two"
    assert len(blobs(tmp_path)) == 1


def test_equal_bytes_are_stored_once(files: Files, tmp_path: Path) -> None:
    put(files, "a", b"same")
    put(files, "b", b"same")
    assert len(blobs(tmp_path)) == 1
    assert files.delete("a")
    assert read(files, "b") == b"same"
    assert files.delete("b")
    assert blobs(tmp_path) == []


def test_deleting_what_is_not_there_is_told(files: Files) -> None:
    assert not files.delete("nothing")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "", "a\0b"])
def test_paths_outside_the_store_are_refused(files: Files, path: str) -> None:
    with pytest.raises(BadPath):
        put(files, path, b"x")


def test_cleaning_removes_what_a_crash_left_and_nothing_else(files: Files, tmp_path: Path) -> None:
    put(files, "a", b"kept")
    files.begin().write(b"half")
    orphan = tmp_path / "files" / "blobs" / "ff" / ("f" * 64)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"no row")
    files.clean()
    assert list((tmp_path / "files" / "tmp").iterdir()) == []
    assert not orphan.exists()
    assert read(files, "a") == b"kept"


def test_upload_that_is_not_committed_is_invisible(files: Files, tmp_path: Path) -> None:
    upload = files.begin()
    upload.write(b"half")
    assert blobs(tmp_path) == []
    upload.discard()
    assert list((tmp_path / "files" / "tmp").iterdir()) == []


def test_clock_never_repeats() -> None:
    clock = Clock()
    stamps = [clock.stamp() for _ in range(1000)]
    assert stamps == sorted(set(stamps))
    assert datetime.fromisoformat(stamps[0]).tzinfo == UTC
