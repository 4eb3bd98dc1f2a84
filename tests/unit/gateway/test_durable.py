"""A file that is replaced is the old one or the new one, never half of either, and nothing is left beside it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway import durable


def test_the_new_text_replaces_the_old_one_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    """One step, and the folder is made."""
    path = tmp_path / "made" / "state.json"
    durable.replace(path, "one")
    durable.replace(path, "zwei ü", mode=0o644)
    assert path.read_text(encoding="utf-8") == "zwei ü"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in path.parent.iterdir()] == ["state.json"]


def test_only_the_owner_reads_it_unless_asked_otherwise(tmp_path: Path) -> None:
    """What is kept may be hashes of keys."""
    durable.replace(tmp_path / "keys", "secret")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


def test_a_full_disk_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing beside it."""
    path = tmp_path / "state.json"
    durable.replace(path, "old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        durable.replace(path, "new")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]
