"""What a run of some scenarios leaves of the others' rows."""

from __future__ import annotations

from benchmarks.questions.signals_of_autoscaling import merged

ORDER = ("step", "burst", "stall")


def row(scenario: str, signal: str, success: float) -> dict[str, object]:
    """A run, as far as it matters here."""
    return {"scenario": scenario, "signal": signal, "success": success}


def test_a_run_of_one_scenario_leaves_the_rows_of_the_others() -> None:
    """They were overwritten, or nothing was kept; rows stay in the order of the scenarios, signals in theirs."""
    before = [row("step", "ours", 0.1), row("step", "cpu", 0.2), row("stall", "ours", 0.3), row("stall", "cpu", 0.4)]
    now = [row("step", "ours", 0.8), row("step", "cpu", 0.9)]
    assert [*now, *before[2:]] == merged(before, now, ORDER)
    assert [*before[:2], row("burst", "ours", 0.5), *before[2:]] == merged(before, [row("burst", "ours", 0.5)], ORDER)


def test_rows_of_scenarios_that_there_are_no_more_go() -> None:
    """A table shows what its command can tell again."""
    assert [row("stall", "ours", 0.3)] == merged([row("flood", "ours", 0.1)], [row("stall", "ours", 0.3)], ORDER)
