"""A replaced file has the old or the new content, never a mixture, and no temporary file stays."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway import durable


def test_the_new_text_replaces_the_old_atomically(tmp_path: Path) -> None:
    """The folder is created, and no temporary file stays."""
    path = tmp_path / "made" / "state.json"
    durable.replace(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # it may contain hashes of keys
    durable.replace(path, "zwei ü", mode=0o644)
    assert path.read_text(encoding="utf-8") == "zwei ü"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in path.parent.iterdir()] == ["state.json"]


def test_a_full_disk_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no temporary file."""
    path = tmp_path / "state.json"
    durable.replace(path, "old")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        durable.replace(path, "new")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]
