"""How waits on real gateways are shown, and how the stand-ins pause."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.questions.waits_on_real_gateways import rows_of, shown
from benchmarks.shared.simulated import after_pauses


def seen(p50: float, p99: float, *, late: float = 1.0, settled: float = 0.0) -> Any:
    """What the callers of one load saw."""
    return {
        "seconds": 1.0, "offered": 100, "sent": 100, "late": {"p99_ms": late}, "answers": 80,
        "answered": {"p50_ms": p50, "p99_ms": p99}, "settled_s": settled,
    }  # fmt: skip


def test_gateways_are_compared_with_one_gateway_under_the_same_conditions() -> None:
    """A load that was sent late is marked."""
    found = [
        {"gateways": count, "merges": merges, "load": 0.1, "seen": seen(p50, 100.0, late=late)}
        for count, merges, p50, late in ((1, True, 50.0, 1.0), (1, False, 10.0, 1.0), (4, True, 60.0, 30.0))
    ]
    one, _, four = rows_of({"gateways": found})
    assert ["1 gateway", "50", "100", "–", "–", "–", "80.0%"] == one[1:]
    assert ["4 gateways (not all sent)", "60", "100", "1.20", "1.00", "p50 1.10", "80.0%"] == four[1:]


def test_ratios_are_formed_within_rounds() -> None:
    """Two rounds, of which the second was slower for everybody."""
    found = [
        {"kind": kind, "round": round_, "seen": seen(p50, 2 * p50)}
        for round_, both in enumerate([(10.0, 12.0), (20.0, 24.0)])
        for kind, p50 in zip(("four equal Tritons", "one pauses"), both, strict=True)
    ]
    assert ["1.20", "1.20", "p99 1.3"] == rows_of({"slow": found})[1][4:7]


def test_a_step_says_when_answers_were_as_quick_as_before() -> None:
    """Median and slowest step."""
    found = [
        {"limit": "auto", "before": seen(10.0, 20.0), "seen": seen(12.0, 22.0, settled=after), "share": 0.97}
        for after in (0.1, 0.2, 0.9)
    ]
    [row] = rows_of({"step": found})
    assert "`auto`; as quick as before after 0.2 s, at most 0.9 s; 0.97 of the capacity answered" == row[1]


def test_a_page_without_a_run_says_so() -> None:
    """And one with a run has a line for each condition."""
    assert "No run" in shown({})
    assert 2 == len(shown({"real": {"parts": {}}}).splitlines())


@pytest.mark.parametrize(
    ("begin", "seconds", "end"), [(1.0, 0.5, 1.5), (0.2, 0.1, 0.6), (2.9, 0.2, 3.6), (2.0, 1.0, 3.0)]
)
def test_a_server_that_pauses_works_on_afterwards(begin: float, seconds: float, end: float) -> None:
    """It stands still for the first half of a second of every three."""
    assert end == pytest.approx(after_pauses(begin, seconds, (3.0, 0.5)))
    assert begin + seconds == after_pauses(begin, seconds, (0.0, 0.0))
