"""How `up` sees that model sync goes round: by the age of the file that it touches."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.laptop.stack import forget_rounds, goes_round


def test_model_sync_is_seen_to_go_round_by_the_file_it_touches(tmp_path: Path) -> None:
    """No file, or one that was touched long ago, is no sign of life."""
    status = tmp_path / "sync-status.json"
    assert not goes_round(status)
    status.write_text("{}")
    assert goes_round(status)
    os.utime(status, (1, 1))
    assert not goes_round(status)


def test_what_a_former_model_sync_said_is_forgotten_without_giving_up_its_place_on_the_disk(tmp_path: Path) -> None:
    """On a full disk no new file can be made; the old one can be touched, and its words are gone."""
    status = tmp_path / "sync-status.json"
    forget_rounds(status)
    assert not status.exists()
    status.write_text('{"models": []}')
    before = status.stat().st_ino
    forget_rounds(status)
    assert ("", False) == (status.read_text(), goes_round(status))
    os.utime(status)
    assert (True, before) == (goes_round(status), status.stat().st_ino)
