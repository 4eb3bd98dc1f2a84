"""Hostile and broken archives are refused with a reason. Nothing is written outside the folder or left behind."""

from __future__ import annotations

import gzip
import io
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


def fetch(tmp_path: Path, archive: bytes) -> Path:
    """Download and unpack a model whose package is ``archive``."""
    registry = FakeRegistry()
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "m.archive").write_bytes(archive)
    registry.add_model("m", tmp_path / "m.archive", is_package=True)
    return ArtifactCache(tmp_path / "cache", registry).model(registry.model("m"))


def leftovers(tmp_path: Path) -> list[Path]:
    """Return the files in the cache, without locks."""
    return [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"]


def zipped(*names: str, content: bytes = b"1", mode: int = 0o644 << 16) -> bytes:
    """Return a zip with a member of each name."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as packed:
        warnings.simplefilter("ignore")  # duplicate names are what is tried
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode, zipfile.ZIP_DEFLATED
            packed.writestr(info, content)
    return file.getvalue()


def bomb(mebibytes: int) -> bytes:
    """Return a zip that is a thousand times smaller than its content."""
    return zipped("zeros", content=bytes(mebibytes << 20))


def encrypted() -> bytes:
    """Return a zip that says so in its flags."""
    raw = bytearray(zipped("a"))
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # general purpose flags: bit 0
        raw[raw.index(signature) + at] |= 1
    return bytes(raw)


BYTES = bytes(range(256)) * 40
BROKEN = {
    "a bomb": (lambda: bomb(300), "more than 100 times as much"),
    "less claimed than held": (
        lambda: zipped("a", content=bytes(5000)).replace(struct.pack("<L", 5000), struct.pack("<L", 10)),
        "cannot be unpacked",
    ),
    "encrypted": (encrypted, "encrypted"),
    "a link": (lambda: zipped("a", content=b"/etc/passwd", mode=0o120777 << 16), "link or a device"),
    "too many": (lambda: zipped(*(f"d/{number}" for number in range(11))), "more than 10 members"),
    **{f"out: {name}": (lambda name=name: zipped(name), "unsafe path")
       for name in ("../evil", "/evil", "a/../../evil", "..\\evil", "a\\..\\evil", "a/..")},
    **{f"twice: {names}": (lambda names=names: zipped(*names), "twice")
       for names in (("a", "a"), ("a/b", "a"), ("a", "a/b"), ("a", "./a"), ("a//b", "a/b"))},
    **{f"cut by {cut}": (lambda cut=cut: zipped("a", "b", content=BYTES)[:-cut], "cannot be unpacked")
       for cut in (3, 40, 200)},
    **{f"long: {name[:2]}": (lambda name=name: zipped(name), "name that is too long")
       for name in ("x" * 300, "d/" * 1500 + "f")},
    "empty": (lambda: b"", "not a zip file"), "only its head": (lambda: b"PK\x03\x04broken", "not a zip file"),
    "a tar": (lambda: gzip.compress(b"a tar of a folder", mtime=0), "not a zip file"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_hostile_or_broken_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """With what to do."""
    monkeypatch.setattr(unpack, "MAX_MEMBERS", 10)
    make, words = BROKEN[what]
    with pytest.raises(ArtifactCorrupt, match=words) as refusal:
        fetch(tmp_path, make())
    assert [] == leftovers(tmp_path)
    assert refusal.value.hint
    assert not (tmp_path / "evil").exists()


def test_a_disk_without_space_is_reported_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files of zeros are no bomb: with space they are unpacked. Names that differ in case are two files."""
    with monkeypatch.context() as patch:
        patch.setattr(unpack.shutil, "disk_usage", lambda _: SimpleNamespace(free=(20 << 20) - 1))
        with pytest.raises(RegistryUnavailable, match=r"no space for the 20\.0 MiB"):
            fetch(tmp_path, bomb(20))
    assert [] == leftovers(tmp_path)
    assert (fetch(tmp_path, bomb(20)) / "zeros").stat().st_size == 20 << 20
    assert {"a.txt", "A.txt"} == {path.name for path in fetch(tmp_path / "made", zipped("a.txt", "A.txt")).iterdir()}
