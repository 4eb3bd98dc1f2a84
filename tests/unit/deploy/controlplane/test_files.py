"""Rules of the content-addressed file store."""

# ruff: noqa: D103 - a test's name states its rule

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.controlplane import uris
from deploy.controlplane.clock import Clock
from deploy.controlplane.files import GRACE, Files
from deploy.controlplane.store import Store

HOST = "http://h:1/files"


class LateClock(Clock):
    """A clock that can be moved."""

    shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


@pytest.fixture
def clock() -> LateClock:
    return LateClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "db")
    yield opened
    opened.close()


@pytest.fixture
def files(store: Store, tmp_path: Path, clock: LateClock) -> Files:
    return Files(store=store, directory=tmp_path / "files", clock=clock)


def put(files: Files, path: str, content: bytes, session: str | None = None) -> str:
    upload = files.begin()
    upload.write(content)
    sha = files.commit(upload, path, session=session)
    upload.discard()
    return sha


def read(files: Files, path: str) -> bytes | None:
    found = files.find(path)
    return found.location.read_bytes() if found else None


def pin(files: Files, store: Store, uri: str, **evidence: str | None) -> str:
    with store.read() as tx:
        return files.pin(tx, uri, session=evidence.get("session"), sha=evidence.get("sha"))


def blobs(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "files" / "blobs").glob("*/*"))


def test_upload_comes_back_byte_for_byte_with_its_type(files: Files) -> None:
    sha = put(files, "/P/models/m.py", b"x = 1\n")
    found = files.find("P/models/m.py")
    assert found is not None
    assert (found.sha, found.size, found.name, found.content_type) == (sha, 6, "m.py", "text/x-python")
    assert sha == hashlib.sha256(b"x = 1\n").hexdigest()
    assert found.location.read_bytes() == b"x = 1\n"


def test_second_upload_under_a_path_leaves_pinned_bytes_alone(files: Files, store: Store) -> None:
    put(files, "P/m.onnx", b"one")
    first = pin(files, store, f"{HOST}/P/m.onnx")
    put(files, "P/m.onnx", b"two")
    second = pin(files, store, f"{HOST}/P/m.onnx")
    assert first != second
    assert first.endswith("/P/m.onnx")
    assert read(files, first.removeprefix(f"{HOST}/")) == b"one"
    assert read(files, second.removeprefix(f"{HOST}/")) == b"two"
    assert read(files, "P/m.onnx") == b"two"


def test_pin_means_the_callers_own_upload_when_others_write_the_same_path(files: Files, store: Store) -> None:
    put(files, "P/m.onnx", b"one", session="a")
    put(files, "P/m.onnx", b"two", session="b")
    pinned = pin(files, store, f"{HOST}/P/m.onnx", session="a")
    assert read(files, pinned.removeprefix(f"{HOST}/")) == b"one"


def test_recorded_hash_is_the_best_evidence_for_a_pin(files: Files, store: Store) -> None:
    sha = put(files, "P/a.zip", b"one", session="a")
    put(files, "P/a.zip", b"two", session="b")
    pinned = pin(files, store, f"{HOST}/P/a.zip", session="b", sha=sha)
    assert read(files, pinned.removeprefix(f"{HOST}/")) == b"one"


def test_pinning_is_idempotent_and_leaves_other_addresses_alone(files: Files, store: Store) -> None:
    put(files, "P/m.onnx", b"one")
    pinned = pin(files, store, f"{HOST}/P/m.onnx")
    put(files, "P/m.onnx", b"two")
    assert pin(files, store, pinned) == pinned
    for uri in ("s3://b/m.onnx", "http://elsewhere/m.onnx", f"{HOST}/uploading_file"):
        assert pin(files, store, uri) == uri


def test_raw_hash_and_question_mark_are_quoted(files: Files, store: Store) -> None:
    put(files, "P/м 1#a?.onnx", b"one")
    pinned = pin(files, store, f"{HOST}/P/%D0%BC%201#a?.onnx")
    assert pinned.endswith("/P/%D0%BC%201%23a%3F.onnx")
    assert pin(files, store, f"{HOST}/not/here#1?.onnx") == f"{HOST}/not/here%231%3F.onnx"


def test_equal_bytes_are_stored_once(files: Files, tmp_path: Path) -> None:
    put(files, "a", b"same")
    put(files, "b", b"same")
    assert len(blobs(tmp_path)) == 1
    assert files.delete("a")
    assert read(files, "b") == b"same"
    assert files.delete("b")
    assert blobs(tmp_path) == []


def test_deleting_a_path_keeps_bytes_that_a_model_refers_to(files: Files, store: Store) -> None:
    put(files, "P/m 1.onnx", b"one")
    pinned = pin(files, store, f"{HOST}/P/m%201.onnx")
    with store.write() as tx:
        tx.put("models", {"id": "x", "uri": pinned})
    assert files.delete("P/m 1.onnx")
    assert files.delete(f".v/{hashlib.sha256(b'one').hexdigest()[:12]}/P/m 1.onnx")
    assert read(files, "P/m 1.onnx") is None
    assert read(files, f".v/{hashlib.sha256(b'one').hexdigest()[:12]}/P/m 1.onnx") == b"one"


def test_deleting_what_is_not_there_is_told(files: Files) -> None:
    assert not files.delete("nothing")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "", ".v/0123456789ab/x"])
def test_paths_outside_the_store_are_refused(files: Files, path: str) -> None:
    with pytest.raises(uris.BadPath):
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


def test_superseded_uploads_go_after_a_day_unless_something_refers_to_them(
    files: Files, store: Store, clock: LateClock
) -> None:
    for path, content in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")):
        put(files, path, content)
    versions = {content: hashlib.sha256(content).hexdigest()[:12] for content in (b"1", b"2")}
    with store.write() as tx:
        tx.put("models", {"id": "x", "uri": f"{HOST}/.v/{versions[b'1']}/a"})
    files.clean()
    assert read(files, f".v/{versions[b'2']}/b") == b"2"
    clock.shift = GRACE + timedelta(minutes=1)
    files.clean()
    assert read(files, f".v/{versions[b'1']}/a") == b"1"
    assert read(files, f".v/{versions[b'2']}/b") is None
    assert read(files, "b") == b"4"


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
