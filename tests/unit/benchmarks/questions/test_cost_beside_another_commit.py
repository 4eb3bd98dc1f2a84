"""What is made of paired rounds, and of a folder that is no checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.systems import SYSTEMS
from benchmarks.questions.cost_beside_another_commit import CELLS, FIGURES, PAIRS, is_worse, main
from benchmarks.shared.statistics import Ratio


@pytest.mark.parametrize(
    ("cpu", "rate", "worse"),
    [
        (Ratio(0.9, 0.8, 1.0), Ratio(1.1, 1.0, 1.2), False),
        (Ratio(1.0, 0.9, 1.06), Ratio(1.0, 1.0, 1.0), True),
        (Ratio(1.0, 1.0, 1.0), Ratio(1.0, 0.9, 1.1), True),
    ],
)
def test_a_cell_is_judged_by_the_unfavourable_end_of_its_intervals(cpu: Ratio, rate: Ratio, worse: bool) -> None:
    """A ratio that could be too high by its interval is too high."""
    assert is_worse({"own_us": cpu, "rps": rate}, 1.05) is worse


def test_every_cell_has_a_system_and_its_counterpart() -> None:
    """Else a run would end in the middle."""
    for cell in CELLS:
        [name] = cell.systems
        assert name in SYSTEMS
        assert name in PAIRS
    assert set(FIGURES) >= {"own_us", "rps"}


def test_a_folder_that_is_no_checkout_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And told how one is made."""
    with pytest.raises(SystemExit) as ended:
        main(["--before", str(tmp_path)])
    assert ended.value.code == 2
    assert "git worktree add" in capsys.readouterr().err
