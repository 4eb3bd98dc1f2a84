"""The folder of one run: nobody else's, and gone with it."""

from __future__ import annotations

import pytest

from deploy.bundles.work_folder import work_folder


def test_each_run_has_an_empty_folder_of_its_own(tmp_path):
    """Also beside a run that is not finished, whose folder stays."""
    with work_folder(tmp_path / "out") as one:
        (one / "source").mkdir()
        with work_folder(tmp_path / "out") as two:
            assert [] == list(two.iterdir())
        assert (one / "source").is_dir()
    assert [] == list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_it_is_removed_however_the_run_ends(tmp_path, error):
    """After Ctrl-C and after an error."""

    def run():
        with work_folder(tmp_path / "out") as folder:
            (folder / "fp32.onnx").write_text("large")
            raise error

    with pytest.raises(error):
        run()
    assert [] == list((tmp_path / "out").iterdir())


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path):
    """Nobody holds its lock; a bundle beside it stays."""
    (tmp_path / ".work-killed" / "run").mkdir(parents=True)
    (tmp_path / "bundle").mkdir()
    with work_folder(tmp_path):
        assert not (tmp_path / ".work-killed").exists()
    assert ["bundle"] == [path.name for path in tmp_path.iterdir()]
