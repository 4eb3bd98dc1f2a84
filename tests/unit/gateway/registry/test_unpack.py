"""Hostile and broken archives are refused with a reason. Nothing is written outside the folder or left behind."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import gzip
import struct
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.errors import ArtifactCorrupt, RegistryUnavailable
from gateway.registry import unpack
from gateway.registry.cache import ArtifactCache
from tests.fakes import FakeRegistry

ZEROS = bytes(1 << 20)


def fetch(tmp_path: Path, archive: Path) -> Path:
    """Download and unpack a model whose package is ``archive``."""
    registry = FakeRegistry()
    registry.add_model("m", archive, is_package=True)
    return ArtifactCache(tmp_path / "cache", registry).model(registry.model("m"))


def leftovers(tmp_path: Path) -> list[Path]:
    """Return the files in the cache, without locks."""
    return [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"]


def refused(tmp_path: Path, archive: Path, words: str) -> ArtifactCorrupt:
    """Return the refusal, after a check that nothing is left."""
    with pytest.raises(ArtifactCorrupt, match=words) as refusal:
        fetch(tmp_path, archive)
    assert [] == leftovers(tmp_path)
    assert refusal.value.hint
    assert not (tmp_path / "evil").exists()
    return refusal.value


def zipped(path: Path, *members: tuple[str, bytes], mode: int = 0o644 << 16) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        warnings.simplefilter("ignore")  # duplicate names are what is tried
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, content)
    return path


def bomb_zip(path: Path, mebibytes: int = 300) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        with packed.open("zeros", "w") as out:
            for _ in range(mebibytes):
                out.write(ZEROS)
    return path


def test_archive_that_grows_a_thousandfold_is_refused(tmp_path: Path) -> None:
    archive = bomb_zip(tmp_path / "m.archive")
    assert archive.stat().st_size < 3 << 20
    assert "bomb" in (refused(tmp_path, archive, "more than 100 times as much").hint or "")


def test_archive_above_the_limit_is_refused_and_below_it_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = bomb_zip(tmp_path / "m.archive", 20)
    monkeypatch.setattr(unpack, "MAX_BYTES", 19 << 20)
    refusal = refused(tmp_path, archive, "more than 19.0 MiB")
    assert "one by one" in (refusal.hint or "")
    monkeypatch.setattr(unpack, "MAX_BYTES", 20 << 20)
    assert (fetch(tmp_path, archive) / "zeros").stat().st_size == 20 << 20


def test_zip_that_claims_less_than_it_holds_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "m.zip", ("a", bytes(5000)))
    raw = archive.read_bytes()
    archive.write_bytes(raw.replace(struct.pack("<L", 5000), struct.pack("<L", 10)))
    refused(tmp_path, archive, "cannot be unpacked")


def test_an_encrypted_zip_is_refused_with_a_hint(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "m.zip", ("a", b"secret"))
    raw = bytearray(archive.read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # general purpose flags: bit 0
        raw[raw.index(signature) + at] |= 1
    archive.write_bytes(raw)
    assert "without a password" in (refused(tmp_path, archive, "is encrypted").hint or "")


def test_a_disk_without_space_is_reported_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with pytest.raises(RegistryUnavailable, match=r"no space for the 20\.0 MiB"):
        fetch(tmp_path, bomb_zip(tmp_path / "m.archive", 20))
    assert [] == leftovers(tmp_path)


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "a\\..\\evil", "a/.."])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path, zipped(tmp_path / "m.zip", (name, b"1")), "unsafe path")


@pytest.mark.parametrize("members", [("a", "a"), ("a/b", "a"), ("a", "a/b"), ("a", "./a"), ("a//b", "a/b")])
def test_a_duplicate_name_is_refused(tmp_path: Path, members: tuple[str, str]) -> None:
    """It is unclear which of the two is the model."""
    refused(tmp_path, zipped(tmp_path / "m.zip", *((name, b"1") for name in members)), "twice")


def test_names_that_differ_in_case_are_two_files(tmp_path: Path) -> None:
    folder = fetch(tmp_path, zipped(tmp_path / "m.zip", ("a.txt", b"1"), ("A.txt", b"2")))
    assert {"a.txt": b"1", "A.txt": b"2"} == {p.name: p.read_bytes() for p in folder.iterdir()}


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    link = zipped(tmp_path / "m.zip", ("a", b"/etc/passwd"), mode=0o120777 << 16)
    assert "the files themselves" in (refused(tmp_path, link, "link or a device").hint or "")


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MAX_MEMBERS", 10)
    names = [f"d/{i}" for i in range(11)]
    refused(tmp_path, zipped(tmp_path / "m.zip", *((n, b"1") for n in names)), "more than 10 members")


@pytest.mark.parametrize("cut", [3, 40, 200])
def test_truncated_archives_are_refused(tmp_path: Path, cut: int) -> None:
    content = bytes(range(256)) * 40
    archive = zipped(tmp_path / "m.zip", ("a", content), ("b", content))
    archive.write_bytes(archive.read_bytes()[:-cut])
    refused(tmp_path, archive, "cannot be unpacked")


@pytest.mark.parametrize("name", ["x" * 300, "d/" * 1500 + "f"])
def test_names_that_no_file_system_takes_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path, zipped(tmp_path / "m.zip", (name, b"1")), "name that is too long")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04broken", gzip.compress(b"a tar of a folder", mtime=0)], ids=["empty", "cut", "tar.gz"]
)
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    """The clearml SDK packs folders as zips only."""
    (tmp_path / "m").write_bytes(content)
    refused(tmp_path, tmp_path / "m", "cannot be unpacked: File is not a zip file")
