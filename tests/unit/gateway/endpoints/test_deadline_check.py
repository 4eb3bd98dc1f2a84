"""Which entries cannot be answered before their deadline: a call takes 10 ms plus 1 ms for each of up to 10 rows."""

from __future__ import annotations

import pytest

from gateway.trace import BATCH, CRITICAL, DEFAULT
from tests.unit.gateway.endpoints.units import FULL_CALL_S, Units


def is_too_late(units: Units, within: float, rank: int = DEFAULT) -> bool:
    """Whether a new entry of one row is too late for a deadline in ``within`` seconds."""
    return units.deadlines.is_too_late(units.entry(rank, within=within), units.now)


def busy(queued: int = 0) -> Units:
    """Units with a full call that has just left (20 ms), and ``queued`` rows."""
    units = Units()
    units.send(10)
    units.enqueue(queued)
    return units


def test_an_entry_is_too_late_if_80_per_cent_of_the_expected_time_exceeds_its_deadline() -> None:
    """20 ms for the running call, and 40 ms for two full calls of 19 queued rows and the new one."""
    units = busy(queued=19)
    expected = FULL_CALL_S + 2 * FULL_CALL_S
    assert is_too_late(units, 0.79 * expected)
    assert not is_too_late(units, 0.81 * expected)


def test_the_time_that_the_running_call_has_had_does_not_count() -> None:
    """Half of it is over: 10 ms are left, and 11 ms for the new entry's own call."""
    units = busy()
    units.now += FULL_CALL_S / 2
    expected = FULL_CALL_S / 2 + 11e-3
    assert is_too_late(units, 0.79 * expected)
    assert not is_too_late(units, 0.81 * expected)


def test_if_no_call_runs_no_entry_is_too_late() -> None:
    """Otherwise a wrong price would refuse every request, and no call would correct it."""
    units = Units()
    units.enqueue(100)
    assert not is_too_late(units, 1e-6)


@pytest.mark.parametrize(("calls", "expected"), [(15, False), (16, True)])
def test_no_entry_is_too_late_before_16_calls_have_shown_the_prices(calls: int, expected: bool) -> None:
    """Prices that were not measured refuse nothing."""
    units = Units(calls=calls)
    units.send(10)
    assert is_too_late(units, 1e-6) == expected


def test_queued_entries_of_less_important_classes_delay_no_entry() -> None:
    """They leave after it."""
    units = busy()
    units.enqueue(50, BATCH)
    assert not is_too_late(units, 0.09, DEFAULT)
    assert is_too_late(units, 0.09, BATCH)
    units.enqueue(50, DEFAULT)
    assert not is_too_late(units, 0.09, CRITICAL)
    assert is_too_late(units, 0.09, DEFAULT)


def test_queued_entries_that_are_too_late_are_found_and_leave_their_place_to_those_behind() -> None:
    """Ten rows have 1 ms left. Without them, the next ten rows are in the next call, which is early enough."""
    units = busy()
    late = units.enqueue(10, within=1e-3)
    units.enqueue(10, within=0.8 * 2 * FULL_CALL_S + 1e-3)
    assert units.deadlines.too_late(units.now) == late


def test_queued_entries_are_checked_in_the_order_of_their_classes() -> None:
    """A critical entry that arrived last has only other critical entries in front of it."""
    units = busy()
    units.enqueue(50)
    units.enqueue(1, CRITICAL, within=0.05)
    last = units.enqueue(1, within=0.05)
    assert units.deadlines.too_late(units.now) == last


def test_a_deadline_far_beyond_the_time_for_the_queue_needs_no_check() -> None:
    """From four times the time for the whole queue plus 0.1 s on. Before ``update``, none is checked."""
    units = busy(queued=20)
    assert units.deadlines.near < units.now
    units.deadlines.update(units.now)
    assert units.deadlines.near == pytest.approx(units.now + 4 * 3 * FULL_CALL_S + 0.1)
    assert units.deadlines.update_at == pytest.approx(units.now + 0.0125)


def test_several_servers_answer_a_queue_in_a_part_of_the_time() -> None:
    """Two servers, one of them busy: two full calls and the new entry's take half of their time."""
    units = Units(servers=2)
    units.send(10)
    units.enqueue(19)
    expected = 2 * FULL_CALL_S / 2
    assert is_too_late(units, 0.79 * expected)
    assert not is_too_late(units, 0.81 * expected)
