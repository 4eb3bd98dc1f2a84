"""What a page shows of measured cells: medians of their rounds, over what is computed and what was made straight."""

from __future__ import annotations

from benchmarks.questions.throughput_by_price import NAMES, PRICED, shown


def test_a_cell_is_the_median_of_its_rounds_over_both_bounds() -> None:
    """Two thirds of the rounds say so, and one that was disturbed changes nothing."""
    rounds = {"rps": [900.0, 950.0, 10.0], "p50_ms": [9.0, 8.0, 700.0], "batch": [8.0, 8.0, 1.0], "errors": [0, 0, 0]}
    cell = {
        "price": "gpu", "texts": "short", "connections": 16, "two_full_calls": 1000.0, "best_cut": 1000.0,
        "straight": [1000.0, 1000.0, 20.0], "gateway": rounds,
    }  # fmt: skip
    last = shown({"cells": [cell]}).splitlines()[-1]
    assert f"| {NAMES['gpu']} | short | 16 | 900 | 0.90 | 0.90 | 9.00 | 8.0 |" == last
    assert set(PRICED) == set(NAMES)
