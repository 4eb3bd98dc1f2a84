"""The folder of one run: nobody else's, and gone with it."""

from __future__ import annotations

from deploy.bundles.work_folder import work_folder


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path):
    """Nobody holds its lock; a bundle beside it stays."""
    (tmp_path / ".work-killed" / "run").mkdir(parents=True)
    (tmp_path / "bundle").mkdir()
    with work_folder(tmp_path):
        assert not (tmp_path / ".work-killed").exists()
    assert ["bundle"] == [path.name for path in tmp_path.iterdir()]
