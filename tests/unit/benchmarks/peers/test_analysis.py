"""From cells to verdicts: nothing is claimed that was not measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.analysis import Check, checklist, cores_needed, own, ratio, rows, scaling
from benchmarks.shared.statistics import Spread


def cell(system: str, round_: int = 0, **values: Any) -> dict[str, Any]:
    """One measured cell, with values a test does not care about."""
    return {
        "system": system, "backend": "instant", "texts": "short", "connections": 64, "rate": 0.0, "round": round_,
        "own_us": 100.0, "triton_us": 20.0, "rps": 1000.0, "p50_ms": 5.0, "p90_ms": 6.0, "p99_ms": 7.0, "batch": 8.0,
        "rss_mb": 90.0, "own_cores": 0.9, "errors": 0, **values,
    }  # fmt: skip


def a_run(*cells: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A run of these cells."""
    return {"cells": list(cells), "missing": {}, "direct": [], "facts": {}, **parts}


def test_ratios_are_formed_within_rounds() -> None:
    """A slow round is slow for both sides: its ratio stays right where a ratio of medians would not."""
    cells = [
        cell("gateway", 0, own_us=90), cell("floor", 0, own_us=100),
        cell("gateway", 1, own_us=270), cell("floor", 1, own_us=300),
        cell("gateway", 2, own_us=95), cell("floor", 2, own_us=100),
    ]  # fmt: skip
    assert Spread(0.9, 0.9, 0.95) == ratio(cells, "gateway", "floor", own)


def test_rounds_that_only_one_side_has_do_not_count() -> None:
    """A ratio needs both."""
    cells = [cell("gateway", 0), cell("gateway", 1, own_us=50), cell("floor", 1)]
    assert Spread(0.5, 0.5, 0.5) == ratio(cells, "gateway", "floor", own)
    assert ratio(cells, "gateway", "kserve", own) is None


def test_other_loads_do_not_count() -> None:
    """Long texts, other connections and open loops are other cells."""
    cells = [cell("gateway"), cell("floor", texts="long"), cell("floor", connections=16), cell("floor", rate=5.0)]
    assert ratio(cells, "gateway", "floor", own) is None


def test_verdicts_follow_from_the_median() -> None:
    """At most, and at least."""
    assert Check("a", "<=", 1.0, Spread(0.9, 0.8, 1.2)).holds
    assert not Check("a", "<=", 1.0, Spread(1.1, 0.8, 1.2)).holds
    assert Check("a", ">=", 7.0, Spread(7.0, 6.0, 8.0)).holds
    assert not Check("a", ">=", 7.0, Spread(6.9, 6.0, 8.0)).holds
    assert Check("a", ">=", 7.0, None).holds is None


def test_a_verdict_shows_value_range_and_target() -> None:
    """A reader sees how sure it is."""
    assert "[ ok ] a: 0.90 (0.80–1.20; target <= 1)" == Check("a", "<=", 1.0, Spread(0.9, 0.8, 1.2)).line()
    assert "[MISS] a: 6.90 ms (6.00–8.00; target >= 7 ms)" == Check("a", ">=", 7, Spread(6.9, 6, 8), unit=" ms").line()
    assert "[ ?? ] a: not measured (no disk; target <= 1)" == Check("a", "<=", 1, None, "no disk").line()


def test_nothing_is_claimed_without_cells() -> None:
    """An empty run promises nothing and says so."""
    checks = checklist(a_run())
    assert len(checks) > 15
    assert all(check.holds is None for check in checks)


def test_the_reason_of_a_missing_system_is_told() -> None:
    """Peers that could not run are reported, not dropped."""
    lines = [c.line() for c in checklist(a_run(cell("gateway"), missing={"instant/kserve": "no wheel"}))]
    assert any("KServe" in line and "no wheel" in line for line in lines)


def test_the_checklist_is_computed() -> None:
    """Totals of gateway and Triton against an ensemble's, peers against the gateway."""
    lines = [
        check.line()
        for check in checklist(a_run(
            cell("gateway"), cell("floor", own_us=80.0), cell("ensemble_lean", own_us=0.0, triton_us=240.0),
            cell("clearml_lean", own_us=650.0, p99_ms=70.0),
        ))
    ]  # fmt: skip
    assert "[MISS] gateway: CPU / floor, 64 connections, short texts: 1.25 (1.25–1.25; target <= 1)" in lines
    assert "[ ok ] gateway + Triton CPU / ensemble on tokenizers: 0.50 (0.50–0.50; target <= 0.55)" in lines
    assert "[ ok ] clearml-serving, leanest hook: CPU / gateway: 6.50 (6.50–6.50; target >= 6.5)" in lines
    assert "[ ok ] clearml-serving, leanest hook: p99 / gateway: 10.00 (10.00–10.00; target >= 1)" in lines


def test_added_latency_leaves_out_call_and_tokenization() -> None:
    """What the gateway adds is what is left of p50 at one connection."""
    direct = [{"backend": "instant", "round": 0, "call_p50_ms": 1.5, "tokenize_p50_ms": 0.25}]
    (found,) = (
        check for check in checklist(a_run(cell("gateway", connections=1, p50_ms=2.5), direct=direct))
        if "1 connection" in check.text
    )  # fmt: skip
    assert Spread(0.75, 0.75, 0.75) == found.value
    assert found.holds


def test_rows_join_rounds_and_add_up_errors() -> None:
    """One row per system and load."""
    (row,) = rows([cell("floor", 0, own_us=1, errors=2), cell("floor", 1, own_us=3), cell("floor", 2, own_us=2)])
    assert Spread(2, 1, 3) == row.figures["own_us"]
    assert (3, 2) == (row.rounds, row.errors)


def test_scaling_ends_at_the_models_own_limit() -> None:
    """More gateway cores help until the GPU is full."""
    where = {"backend": "gpu", "connections": 256}
    run = a_run(
        cell("gateway", own_us=500.0, **where), cell("ensemble_auto", rps=1000.0, **where),
        facts={"gpu_rows_per_second": 5000.0},
    )  # fmt: skip
    points = scaling(run, max_cores=4)
    assert [(1, 2.0), (2, 4.0), (3, 5.0), (4, 5.0)] == points
    assert 2 == cores_needed(points)
    assert cores_needed(points, gain=6.0) is None
    assert scaling(a_run()) is None


def test_two_workers_are_compared_with_one_under_half_the_rate() -> None:
    """Round by round: each worker has the same to do."""
    run = a_run(
        cell("gateway_w1", 0, own_us=100, connections=256, rate=1500.0),
        cell("gateway_w2", 0, own_us=105, connections=256, rate=3000.0), cell("gateway_w2", own_us=1),
    )  # fmt: skip
    (found,) = (check for check in checklist(run) if check.text.startswith("2 workers"))
    assert found.value is not None
    assert 1.05 == pytest.approx(found.value.median)
