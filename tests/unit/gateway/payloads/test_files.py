"""Files of the payload log: their permissions, rotation and deletion, and full disks."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.payloads.files import DISK_FULL, NOT_WRITABLE, WRITTEN, Folder

RECORD = {"url": "e/1", "request": {"text": "x" * 80}}


def folder(path: Path, **fields: Any) -> Folder:
    """A folder with free space."""
    return Folder(path / "kept", **{"max_bytes": 1 << 20, "keep": 86400.0, "free": lambda: 1 << 40, **fields})


def write(sink: Folder, records: int = 1) -> tuple[str, str]:
    """Write some records."""
    return sink.write(b"".join([json.dumps(RECORD).encode() + b"\n"] * records))


def files(path: Path, pattern: str = "*.jsonl") -> list[Path]:
    """Files by name."""
    return sorted((path / "kept").glob(pattern))


def test_records_are_json_lines_that_only_their_owner_can_read(tmp_path: Path) -> None:
    """One object per line. The folder belongs to the owner too."""
    sink = folder(tmp_path)
    assert (WRITTEN, "") == write(sink, 3)
    [file] = files(tmp_path)
    assert 0o600 == file.stat().st_mode & 0o777
    assert 0o700 == file.parent.stat().st_mode & 0o777
    assert [RECORD] * 3 == [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("writers", [1, 2])
def test_files_end_at_a_size_and_the_oldest_are_deleted_above_the_total_limit(tmp_path: Path, writers: int) -> None:
    """Those of all writers together, at an eighth of the limit each. No record is cut, and the newest stay."""
    sinks = [folder(tmp_path, max_bytes=8_000, writers=writers) for _ in range(writers)]
    for number in range(200):
        sinks[number % writers].write(json.dumps({"n": number, "fill": "x" * 90}).encode() + b"\n")
    assert max(path.stat().st_size for path in files(tmp_path)) <= 1_000 / writers
    assert 200 == sum(len(path.read_text().splitlines()) for path in files(tmp_path))
    sinks[0].sweep()
    kept = {json.loads(line)["n"] for path in files(tmp_path) for line in path.read_text().splitlines()}
    assert sum(path.stat().st_size for path in files(tmp_path, "*")) <= 8_000
    assert (True, False) == (kept >= {198, 199}, 0 in kept)


def test_a_file_ends_when_it_is_old_enough_and_is_deleted_when_it_is_too_old(tmp_path: Path) -> None:
    """Whatever their size. Other programs' files in the folder stay. One that somebody deletes is begun anew."""
    now = [time.time()]
    sink = folder(tmp_path, clock=lambda: now[0])
    for step, expected in ((0, 1), (3599, 1), (2, 2)):
        now[0] += step
        sink.sweep()
        write(sink)
        assert expected == len(files(tmp_path))
    (other := tmp_path / "kept" / "notes.txt").write_text("mine")
    now[0] = max(file.stat().st_mtime for file in files(tmp_path)) + 86401
    folder(tmp_path, clock=lambda: now[0]).sweep()
    assert [other] == files(tmp_path, "*")
    write(sink)
    assert 1 == len(files(tmp_path))


def test_nothing_is_written_to_a_nearly_full_disk_or_to_no_folder(tmp_path: Path) -> None:
    """Models are on it too. Writing continues when there is space again."""
    left = [10 << 20]
    sink = folder(tmp_path, free=lambda: left[0])
    assert DISK_FULL == write(sink)[0]
    left[0] = 1 << 30
    assert (WRITTEN, "") == write(sink)
    (tmp_path / "file").write_text("")
    outcome, reason = write(folder(tmp_path / "file"))
    assert (NOT_WRITABLE, True) == (outcome, "file/kept" in reason)


def test_a_disk_that_fills_up_leaves_no_half_line(tmp_path: Path) -> None:
    """The partial line is removed, and later records follow whole ones."""
    sink = folder(tmp_path)
    write(sink)
    [file] = files(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 40, limits[1]))
    try:
        assert DISK_FULL == write(sink)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    write(sink)
    assert [RECORD] * 2 == [json.loads(line) for line in file.read_text().splitlines()]
