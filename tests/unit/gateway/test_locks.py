"""Locks of files between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import locks


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    """A caller that does not wait gets an error."""
    path = tmp_path / "lock"
    with path.open("a") as first:
        locks.lock(first)
        with path.open("a") as second, pytest.raises(BlockingIOError):
            locks.lock(second, waits=False)
    with path.open("a") as third:
        locks.lock(third, waits=False)
