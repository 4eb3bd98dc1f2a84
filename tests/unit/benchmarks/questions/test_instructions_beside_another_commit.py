"""Instructions per request: what cachegrind prints is read, and the program that it watches answers requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.questions.instructions_beside_another_commit import _PROGRAM, counts, line, prepare, shown
from benchmarks.shared.command import ROOT

SUMMARY = """
==8834== I   refs:      6,910,253,681
==8834== I1  misses:       27,000,000
==8834== D   refs:      3,000,000,000  (2,000,000,000 rd   + 1,000,000,000 wr)
==8834== D1  misses:       18,600,123  (   16,000,000 rd   +     2,600,123 wr)
==8834== LL refs:          45,600,123  (   43,000,000 rd   +     2,600,123 wr)
==8834== LL misses:         1,570,456  (    1,300,000 rd   +       270,456 wr)
"""


def test_counts_are_read_from_the_summary() -> None:
    """And a summary without one is an error that shows it."""
    assert {"instructions": 6_910_253_681, "first": 18_600_123, "second": 1_570_456} == counts(SUMMARY)
    with pytest.raises(ValueError, match="did not count"):
        counts("valgrind: cannot execute binary file")


def test_both_checkouts_are_shown_side_by_side() -> None:
    """Per request, with the ratio of their instructions."""
    now = {"instructions": 211_000.4, "first": 3600.0, "second": 290.0, "rows": 60.0}
    before = {"instructions": 200_000.0, "first": 3300.0, "second": 261.0, "rows": 64.0}
    row = {"connections": 64, "now": now, "before": before}
    assert "64 connections  instructions 211,000 / 200,000 = 1.055" in line(row)
    text = shown({"facts": {"now": "a", "before": "b"}, "rows": [row]})
    assert "| 64 | 211,000 | 200,000 | 1.06 | 3,600 | 3,300 | 290 | 261 |" in text


def test_requests_are_answered_without_sockets(tmp_path: Path) -> None:
    """By this checkout's gateway, until there are enough answers."""
    prepare(tmp_path)
    command = [sys.executable, "-P", str(_PROGRAM), "--folder", str(tmp_path), "--connections", "4", "--answers", "300"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    answers, calls = map(int, done.stdout.split())
    assert 300 <= answers
    assert 75 <= calls <= answers
