"""Callers who come back together are awaited; others are not. In simulated time."""

from __future__ import annotations

import pytest

from tests.simulated import MIXES, PRICES, bound, load, open_load

GPU = PRICES[0]


@pytest.mark.parametrize("callers", [2, 4, 8])
def test_callers_who_come_back_at_once_share_one_call(callers: int) -> None:
    """Not two calls that take turns, each with half of them."""
    cell = load(GPU, MIXES["short"], callers)
    assert cell.rows > 0.9 * callers
    assert cell.answers > 1.4 * bound(GPU, MIXES["short"], callers)


@pytest.mark.parametrize("pause", [1e-3, 20e-3])
def test_callers_who_think_for_a_moment_are_not_awaited(pause: float) -> None:
    """Their answers take two calls at most, and no wait is added."""
    cell = load(GPU, MIXES["short"], 8, pause=pause)
    assert cell.p50 < 2.2 * GPU.seconds(8, 16)


def test_independent_requests_are_not_delayed() -> None:
    """At a tenth of the capacity, half of them have a call of their own."""
    found = open_load(GPU, MIXES["short"], 50.0, rule="off", seconds=20.0)
    assert found.percentile(50) < 1.15 * GPU.seconds(1, 16) + 1e-3
