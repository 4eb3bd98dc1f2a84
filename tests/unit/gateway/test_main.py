"""What a run of several workers prepares before they start."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from gateway.__main__ import _metrics_folder


def test_workers_count_in_the_state_folder_and_leave_nothing(tmp_path: Path) -> None:
    """Not in the temporary folder, which is cleaned by age."""
    with _metrics_folder(tmp_path) as one, _metrics_folder(tmp_path) as other:
        assert one != other
        assert one.is_dir()
        assert tmp_path in one.parents
    assert not list((tmp_path / "metrics").iterdir())


def test_what_a_killed_run_left_goes_and_a_living_one_stays(tmp_path: Path) -> None:
    """A folder belongs to whoever holds its lock."""
    root = tmp_path / "metrics"
    for name in ("run-dead", "run-alive"):
        (root / name).mkdir(parents=True)
        (root / name / "counter_1.db").touch()
    (root / "run-dead.lock").touch()
    with (root / "run-alive.lock").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        with _metrics_folder(tmp_path):
            assert not (root / "run-dead").exists()
            assert not (root / "run-dead.lock").exists()
            assert (root / "run-alive" / "counter_1.db").exists()


def test_a_state_folder_that_cannot_be_written_does_not_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers go to the temporary folder then."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "state").write_text("a file")
    with _metrics_folder(tmp_path / "state") as folder:
        assert folder.parent == tmp_path
