"""When demand exceeds capacity, and how much work two full calls are: pure."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gateway.batching.entries import BatchLimits
from gateway.batching.limit import WorkLimit
from gateway.batching.pressure import PRESSED_S, Pressure
from tests.simulated import learned

ROWS = 10


def limit_of(call: float, row: float, calls: int = 64, *, padding: int = 0) -> WorkLimit:
    """Return a limit whose prices were learned from ``calls`` calls, in seconds per call and row.

    A row has one token, and as many of ``padding``.
    """
    limit = WorkLimit(learned(call, row, lengths=(1 + padding,), calls=calls), BatchLimits(max_rows=ROWS))
    limit.learn(ROWS, ROWS * (1 + padding), ROWS)
    return limit


def rises(limit: WorkLimit, held: Iterable[float]) -> bool:
    """Return whether the work in hand rises too much, if it is looked at every 0.1 s; its limit is 1 s."""
    return any(limit.rises(100 + 0.1 * number, work, 1.0) for number, work in enumerate(held))


@pytest.mark.parametrize(
    ("held", "is_overload"),
    [
        ([0.2 * number for number in range(100)], True), ([0.6 * number for number in range(100)], True),
        ([5.0 * number for number in range(100)], True),
        *(([0.1] * start + [3.0] + [8.0] * 100, False) for start in (1, 2, 7)),  # callers that come at once and wait
        ([0.1, 0.1, 0.8, 0.8, 1.5, 1.5, 0.1, 0.1] * 20, False),  # random arrivals
        ([float(work) for work in range(10) for _ in range(80)], False),  # rises that are seconds apart
    ],
)  # fmt: skip
def test_work_that_grows_until_it_is_refused_or_answered_is_an_overload(held: list[float], is_overload: bool) -> None:
    """By any amount. Before prices are known, the work in hand would be a guess."""
    assert is_overload is rises(limit_of(20e-3, 1e-3), held)
    assert not rises(limit_of(20e-3, 1e-3, calls=8), held)


def test_a_full_call_is_one_whose_fixed_price_is_small() -> None:
    """More rows would only make it longer. With a high price of a call, all rows that fit are needed."""
    assert limit_of(20e-3, 1e-3).full == pytest.approx(20e-3 + ROWS * 1e-3, rel=0.05)
    assert limit_of(1e-3, 3e-3).full == pytest.approx(1e-3 + 3 * 3e-3, rel=0.2)


def test_some_milliseconds_of_work_are_always_admitted() -> None:
    """An event loop is late by milliseconds. Other limits are multiples of a full call, of rows padded as usual."""
    assert limit_of(10e-6, 1e-6).most(2) == 0.02
    for slow in (limit_of(20e-3, 1e-3, padding=padding) for padding in (0, 3)):
        assert slow.most(2) == 2 * slow.full == pytest.approx(slow.work(2 * ROWS, 2 * ROWS), rel=0.05)


@pytest.mark.parametrize(
    ("rule", "pressed", "later"), [("off", False, False), ("auto", True, False), ("always", True, True)]
)
def test_a_refusal_puts_limits_into_force_for_a_while(rule: str, pressed: bool, later: bool) -> None:
    """Those of its version and of the process, unless they are off; those of another version stay as they were."""
    process = Pressure(rule)
    version, other = process.below(), process.below()
    version.press(10.0)
    assert (pressed, pressed, rule == "always") == (process.is_on, version.look(9.9 + PRESSED_S), other.is_on)
    assert (later, later) == (process.look(10.1 + PRESSED_S), version.look(10.1 + PRESSED_S))
