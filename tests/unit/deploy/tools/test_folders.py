"""A folder appears complete or not at all."""

from __future__ import annotations

import pytest

from deploy.tools.folders import aside


def test_a_folder_filled_aside_replaces_what_has_its_name(tmp_path):
    """If filling it fails, the existing folder stays."""
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").touch()
    with pytest.raises(ValueError, match="no"), aside(tmp_path, tmp_path / "final"):
        raise ValueError("no")
    assert (tmp_path / "final" / "old").exists()
    with aside(tmp_path, tmp_path / "final") as folder:
        (folder / "new").touch()
    assert ["new"] == [path.name for path in (tmp_path / "final").iterdir()]
    assert ["final"] == [path.name for path in tmp_path.iterdir()]
