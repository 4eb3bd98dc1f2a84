"""How early the admission window opens, learned from when the last calls were full."""

from __future__ import annotations

from math import inf

import pytest

from gateway.endpoints.admission_window import AdmissionWindow

CALL_S = 0.1


def run(window: AdmissionWindow, fills: float, calls: int) -> None:
    """Make ``calls`` calls one after the other; each is full ``fills`` seconds after the window has opened."""
    now = 0.0
    for _ in range(calls):
        needed = now + CALL_S
        filled = max(needed - window.lead, now) + fills
        if filled < needed:
            window.filled(filled)
        window.left(max(filled, now) if filled < needed else needed, needed, CALL_S, is_full=filled < needed)
        now = needed


def test_at_first_the_window_is_always_open() -> None:
    """Nothing is known yet of how fast requests arrive."""
    assert AdmissionWindow().lead == inf


@pytest.mark.parametrize("fills", [0.005, 0.02, 0.05])
def test_the_window_opens_a_little_earlier_than_a_call_takes_to_fill(fills: float) -> None:
    """Requests that are admitted last wait for the call in front and their own, and for little else."""
    window = AdmissionWindow()
    run(window, fills, 30)
    assert fills + 0.01 < window.lead < fills + 0.3 * CALL_S


def test_the_window_stays_open_if_a_call_takes_nearly_as_long_to_fill_as_to_run() -> None:
    """A closed window would refuse requests that the next call needs."""
    window = AdmissionWindow()
    run(window, 0.9 * CALL_S, 30)
    assert window.lead == inf


def test_the_window_is_always_open_again_after_four_calls_that_are_not_full() -> None:
    """The load has fallen, so no request needs to be refused."""
    window = AdmissionWindow()
    run(window, 0.01, 30)
    assert window.lead < 0.3 * CALL_S
    run(window, inf, 4)
    assert window.lead == inf


def test_a_wrong_expected_time_does_not_close_the_window_for_ever() -> None:
    """Before prices are known, the next call may seem to be needed only in an hour."""
    window = AdmissionWindow()
    window.filled(0.0)
    window.left(0.0, 3600.0, CALL_S, is_full=True)
    assert 0.0 < window.lead <= inf
    run(window, 0.02, 30)
    assert 0.03 < window.lead < 0.05
