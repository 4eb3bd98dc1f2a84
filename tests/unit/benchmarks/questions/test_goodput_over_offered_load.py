"""How what became of a crowd is shown."""

from __future__ import annotations

from typing import Any

from benchmarks.questions.goodput_over_offered_load import rows_of, shown


def cell(times: float, *, answers: int, sent: int = 1000, late: float = 1.0, recovered: float | None = 0.0) -> Any:
    """What one load gave in ten seconds, to 100 answers/s."""
    load = {
        "seconds": 10.0, "offered": 1000, "sent": sent, "late": {"p50_ms": 0.1, "p99_ms": late}, "answers": answers,
        "answered": {"p50_ms": 100.0, "p99_ms": 250.0}, "refusals": 1000 - answers - 5, "gave_up": 3, "lost": 2,
        "refused": {"p50_ms": 1.0, "p99_ms": 8.0}, "critical": {"due": 50, "answered": 49},
    }  # fmt: skip
    return {
        "times": times, "capacity": 80.0, "load": load, "more_mb": 12.3, "afterwards": {"recovered_s": recovered},
        "refused_within": {"0.002": 0.997, "+Inf": 1.0},
    }  # fmt: skip


def test_goodput_is_a_share_of_the_most_a_system_gave() -> None:
    """At any load, or to connections that wait."""
    easy, hard = rows_of("gateway", [cell(0.8, answers=500, recovered=None), cell(10.0, answers=900)])
    assert ["gateway", "0.8 ×", "100", "50", "0.56", "100", "250", "98.0%", "8", "99.7%", "0.5%", "12", "–"] == easy
    assert ["10 ×", "1.00", "0.0"] == [hard[1], hard[4], hard[-1]]
    assert "1.00" == rows_of("gateway", [cell(0.8, answers=800)])[0][4]


def test_loads_that_were_not_sent_in_time_are_marked() -> None:
    """The sender was the limit: nothing is said of the server."""
    short, late = rows_of("kserve", [cell(5, answers=1, sent=980), cell(10, answers=1, late=30.0, recovered=6.0)])
    assert ["5 × (not all sent)", "10 × (not all sent)"] == [short[1], late[1]]
    assert "not in 6" == late[-1]


def test_a_page_without_a_run_says_so() -> None:
    """And one with a run has a line for each load of each system."""
    assert "No run" in shown({"flood": {}})
    found = {"open": {"systems": {"gateway": [cell(1.0, answers=1)], "ensemble_lean": [cell(1.0, answers=1)]}}}
    assert 4 == len(shown(found).splitlines())
