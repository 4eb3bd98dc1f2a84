"""What is made of paired rounds, and of a folder that is no checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.systems import SYSTEMS
from benchmarks.questions.cost_beside_another_commit import CELLS, FIGURES, PAIRS, is_worse, main, shown
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


def test_a_page_shows_each_cell_and_which_commits_were_compared() -> None:
    """Ratios with their intervals, and both figures that the first is made of."""
    one = {"median": 0.99, "low": 0.95, "high": 1.02}
    row = {
        "cell": "gpu-short-c16", "rounds": 7, "now": {"own_us": 99.0}, "before": {"own_us": 100.0},
        "ratios": dict.fromkeys(FIGURES, one),
    }  # fmt: skip
    told = shown({"facts": {"now": "abc", "before": "def", "cores": 2}, "cells": [row]})
    ratios = " | ".join(["0.99 (0.95 to 1.02)"] * 3)
    assert f"| gpu-short-c16 | {ratios} | 99 | 100 |" in told
    assert "7 rounds; abc beside def, 2 cores." in told
