"""When the window opens: found out from when the last calls were full."""

from __future__ import annotations

from math import inf

import pytest

from gateway.endpoints.admission_window import AdmissionWindow

CALL_S = 0.1


def run(window: AdmissionWindow, fills: float, calls: int) -> None:
    """Make so many calls after each other, each of which is filled so many seconds after the window has opened."""
    now = 0.0
    for _ in range(calls):
        needed = now + CALL_S
        filled = max(needed - window.lead, now) + fills
        if filled < needed:
            window.filled(filled)
        window.left(max(filled, now) if filled < needed else needed, needed, CALL_S, is_full=filled < needed)
        now = needed


def test_at_first_it_is_not_shut() -> None:
    """Nothing is known of how many come."""
    assert AdmissionWindow().lead == inf


@pytest.mark.parametrize("fills", [0.005, 0.02, 0.05])
def test_it_opens_as_early_as_calls_take_to_be_filled_and_a_little_earlier(fills: float) -> None:
    """Those who come last wait for the call in front and for their own, and for hardly anything else."""
    window = AdmissionWindow()
    run(window, fills, 30)
    assert fills + 0.01 < window.lead < fills + 0.3 * CALL_S


def test_it_is_not_shut_if_the_time_of_a_call_is_hardly_enough_to_fill_the_next_one() -> None:
    """Whoever would be refused would be missed."""
    window = AdmissionWindow()
    run(window, 0.9 * CALL_S, 30)
    assert window.lead == inf


def test_it_is_not_shut_soon_after_fewer_come() -> None:
    """A load that has fallen is not refused for what it was before: four calls that are not full are enough."""
    window = AdmissionWindow()
    run(window, 0.01, 30)
    assert window.lead < 0.3 * CALL_S
    run(window, inf, 4)
    assert window.lead == inf


def test_a_time_that_makes_no_sense_does_not_shut_it_for_ever() -> None:
    """Before prices are known, a call may be expected to be needed in an hour."""
    window = AdmissionWindow()
    window.filled(0.0)
    window.left(0.0, 3600.0, CALL_S, is_full=True)
    assert 0.0 < window.lead <= inf
    run(window, 0.02, 30)
    assert 0.03 < window.lead < 0.05
