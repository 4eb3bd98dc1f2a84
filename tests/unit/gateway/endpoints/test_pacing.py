"""When a call leaves while others run: a call takes 10 ms plus 1 ms for each of up to 10 rows."""

from __future__ import annotations

import pytest

from gateway.trace import BATCH
from tests.unit.gateway.endpoints.units import CALL_S, FULL_CALL_S, MAX_ROWS, ROW_S, TOKENS, Units

LEAD_S = 1.2e-3


def expecting(rows: int, **more: float) -> Units:
    """Units that recently had ``rows`` rows at the same time, all of which have ended."""
    units = Units(**more)  # type: ignore[arg-type]
    units.enqueue(rows)
    units.pacing.call_left(units.now)
    units.queue.clear()
    return units


def test_a_call_leaves_at_once_if_a_server_is_idle() -> None:
    """Two servers and one call: the second server has nothing to do."""
    units = Units(servers=2)
    units.send(10)
    units.enqueue(1)
    assert units.pacing.may_leave()


def test_behind_another_a_call_leaves_when_it_has_as_many_rows_as_it_may() -> None:
    """No other request could join it."""
    units = expecting(1000)
    units.send(1)
    units.enqueue(9)
    assert not units.pacing.may_leave()
    units.enqueue(1)
    assert units.pacing.may_leave()


def test_behind_another_a_call_leaves_when_it_has_as_many_tokens_as_it_may() -> None:
    """Rows of 10 tokens, and at most 50 tokens."""
    units = Units(max_padded_tokens=5 * TOKENS)
    units.pacing.refused()
    units.send(1)
    units.enqueue(4)
    assert not units.pacing.may_leave()
    units.enqueue(1)
    assert units.pacing.may_leave()


def test_behind_another_a_call_leaves_when_as_many_rows_are_here_as_recently() -> None:
    """Eight rows were here at the same time: four of them run, so the call waits for the other four."""
    units = expecting(8)
    units.send(4)
    units.enqueue(3)
    assert not units.pacing.may_leave()
    units.enqueue(1)
    assert units.pacing.may_leave()


def test_the_expected_number_of_rows_rises_at_once_and_falls_slowly() -> None:
    """By a 32nd of the difference with each call: from 8 towards 4, it is below 7 after ten calls."""
    units = expecting(8)
    units.send(4)
    for _ in range(9):
        units.pacing.call_left(units.now)
    units.enqueue(2)
    assert not units.pacing.may_leave()
    units.queue.clear()
    for _ in range(13):
        units.pacing.call_left(units.now)
    units.enqueue(2)
    assert units.pacing.may_leave()


def test_otherwise_a_call_leaves_shortly_before_the_call_in_front_ends() -> None:
    """1.2 ms before; the alarm is set for that time."""
    units = expecting(1000)
    front = units.send(10)
    units.enqueue(1)
    leaves = front.started + FULL_CALL_S - LEAD_S
    assert units.pacing.wake_at() == pytest.approx(leaves)
    units.now = leaves - 1e-4
    assert not units.pacing.may_leave()
    units.now = leaves + 1e-4
    assert units.pacing.may_leave()


def test_a_call_leaves_earlier_if_prices_are_uncertain_but_not_before_half_of_the_call_in_front() -> None:
    """The usual error of the prices is added to the 1.2 ms."""
    for spread, lead in ((0.1, LEAD_S + 0.1 * FULL_CALL_S), (0.9, FULL_CALL_S / 2)):
        units = expecting(1000)
        units.capacity.prices.spread = spread
        front = units.send(10)
        units.enqueue(1)
        assert units.pacing.wake_at() == pytest.approx(front.started + FULL_CALL_S - lead)


def test_at_a_parallel_server_a_quarter_of_the_other_calls_rows_is_enough() -> None:
    """The running call has 8 rows."""
    units = expecting(1000, queueing=0.0)
    units.send(8)
    units.enqueue(1)
    assert not units.pacing.may_leave()
    units.enqueue(1)
    assert units.pacing.may_leave()


def test_batch_work_makes_no_call_of_another_class_leave_earlier() -> None:
    """Ten rows of class batch and one other are not a full call; ten rows of class batch alone are."""
    units = expecting(1000)
    units.send(1)
    units.enqueue(10, BATCH)
    assert units.pacing.may_leave()
    units.enqueue(1)
    assert not units.pacing.may_leave()


def test_when_the_alarm_has_rung_the_call_leaves() -> None:
    """Even if the timer rang a little early."""
    units = expecting(1000)
    units.send(10)
    units.enqueue(1)
    assert not units.pacing.may_leave()
    units.pacing.woke()
    assert units.pacing.may_leave()


def test_after_a_refusal_two_full_calls_of_rows_are_expected() -> None:
    """The refused requests were here as well: a call of 10 rows runs, so 9 more rows do not leave yet."""
    units = Units()
    units.send(10)
    units.enqueue(9)
    assert units.pacing.may_leave()
    units.pacing.refused()
    assert not units.pacing.may_leave()


def test_while_calls_are_split_a_full_call_waits_until_it_is_needed() -> None:
    """Otherwise the server would merge two calls of this gateway instead of one of each gateway."""
    units = Units(gateways=2)
    units.overload.split_calls(is_on=True)
    front = units.send(5)
    units.enqueue(20)
    assert not units.pacing.may_leave()
    units.now = front.started + CALL_S + 5 * ROW_S - LEAD_S / 2
    assert units.pacing.may_leave()


def test_no_alarm_is_set_if_only_the_end_of_a_call_can_change_anything() -> None:
    """Nothing is queued, or as many calls run as may."""
    units = Units()
    units.send(10)
    assert units.pacing.wake_at() is None
    units.send(10)
    units.enqueue(1)
    assert units.pacing.wake_at() is None


def test_enough_queued_rows_call_for_a_look_before_the_alarm() -> None:
    """As many as are missing from the expected rows, and a full call at most."""
    units = expecting(8)
    units.send(4)
    units.enqueue(1)
    units.pacing.wake_at()
    assert 3 < units.pacing.wake_rows <= 4
    units.pacing.refused()
    units.pacing.wake_at()
    assert units.pacing.wake_rows == 10


def test_an_outlier_gets_a_call_if_it_would_finish_before_the_other_servers_do() -> None:
    """It takes three times as long, so three full calls of rows must be here."""
    units = Units()
    units.send(10)
    units.enqueue(20)
    assert not units.pacing.wants_outlier()
    units.servers.times_slower = 3.0
    assert units.pacing.wants_outlier()
    units.servers.times_slower = 3.1
    assert not units.pacing.wants_outlier()


def test_an_outlier_gets_a_call_if_a_request_would_be_refused_otherwise() -> None:
    """The limit of work is reached, and the outlier is idle."""
    units = Units(rule=FULL_CALL_S)
    units.servers.times_slower = 100.0
    units.enqueue(9)
    assert not units.pacing.wants_outlier()
    units.enqueue(1)
    assert units.pacing.wants_outlier()


def merged() -> Units:
    """Return the units of one of two gateways whose calls a server merges; the last call took 80 ms."""
    units = Units(gateways=2, merges_lengths=True)
    call = units.send(1)
    units.now += 0.08
    units.end(call)
    units.capacity.learn(call, units.now)
    units.calls.max_running = units.capacity.max_calls
    return units


def test_a_call_that_is_merged_with_others_waits_a_quarter_of_a_calls_time_after_the_last() -> None:
    """It waits for no call in front, because it will be in the next batch of the server."""
    units = merged()
    sent = units.send(1)
    units.enqueue(1)
    assert not units.pacing.may_leave()
    assert sent.started + 0.02 == pytest.approx(units.pacing.wake_at())
    units.now = sent.started + 0.021
    assert units.pacing.may_leave()


def test_a_full_merged_call_leaves_at_once() -> None:
    """A quarter of the rows of a call: of such calls the server can fill a batch."""
    units = merged()
    units.send(1)
    units.enqueue(MAX_ROWS // 4)
    assert units.pacing.may_leave()
    assert MAX_ROWS // 4 == units.capacity.merged_limits.max_rows


def test_merged_calls_have_as_many_rows_in_flight_as_one_full_call() -> None:
    """For each server: what waits beyond that can still be refused, or overtaken."""
    units = merged()
    calls = [units.send(MAX_ROWS // 2) for _ in range(2)]
    units.enqueue(MAX_ROWS)
    units.now += 1.0
    assert not units.pacing.may_leave()
    assert units.pacing.wake_at() is None
    units.end(calls[0])
    assert units.pacing.may_leave()
