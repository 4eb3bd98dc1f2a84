"""Which requests are refused: a row is 2 ms of work here, and a full call of 10 rows takes 20 ms."""

from __future__ import annotations

import math

import pytest

from gateway.endpoints.entries import BatchLimits
from gateway.trace import BATCH, CRITICAL, DEFAULT
from tests.unit.gateway.endpoints.units import FULL_CALL_S, MAX_ROWS, FixedPrices, Units

WORK_S = FULL_CALL_S / MAX_ROWS


def limited(rows: float, **more: int) -> Units:
    """Units whose limit of ``rows`` rows is in force; the server is not known to be serial."""
    return Units(rule=(rows - 0.5) * WORK_S, queueing=0.5, **more)  # type: ignore[arg-type]


def test_nothing_is_refused_while_the_limit_is_not_in_force() -> None:
    """However much work is in hand."""
    units = Units(rule="auto")
    units.overload.limit.seconds = WORK_S
    units.enqueue(1000)
    assert not any(units.overload.is_full(rank, "") for rank in (CRITICAL, DEFAULT, BATCH))
    units.pressure.press(units.now)
    assert units.overload.is_full(DEFAULT, "")


@pytest.mark.parametrize(("rank", "rows"), [(CRITICAL, 34), (DEFAULT, 32), (BATCH, 16)])
def test_each_class_has_its_share_of_the_limit(rank: int, rows: int) -> None:
    """Class default has all of it, class batch half, and class critical a sixteenth more."""
    units = limited(32)
    units.enqueue(rows - 1, rank)
    assert not units.overload.is_full(rank, "")
    units.enqueue(1, rank)
    assert units.overload.is_full(rank, "")


def test_work_of_less_important_classes_refuses_no_request() -> None:
    """It is served later. Work of more important classes does count."""
    units = limited(10)
    units.enqueue(100, BATCH)
    assert not units.overload.is_full(DEFAULT, "")
    units.enqueue(10, DEFAULT)
    assert not units.overload.is_full(CRITICAL, "")
    units = limited(10)
    units.enqueue(10, CRITICAL)
    assert units.overload.is_full(DEFAULT, "")


def test_work_in_calls_counts_like_work_in_the_queue() -> None:
    """Five rows in a call and five in the queue fill a limit of ten."""
    units = limited(10)
    units.send(5)
    units.enqueue(4)
    assert not units.overload.is_full(DEFAULT, "")
    units.enqueue(1)
    assert units.overload.is_full(DEFAULT, "")
    assert units.overload.work == pytest.approx(10 * WORK_S)


def test_a_fixed_limit_holds_for_each_server() -> None:
    """Four servers may have four times the work of one."""
    assert Units(rule=0.25, servers=4).overload.max_work == 1.0


def test_a_tenant_with_less_than_its_share_may_exceed_the_limit_by_a_quarter() -> None:
    """One tenant has 19 of 20 rows. The other one, and a new one, are admitted until 25 rows are in hand."""
    units = limited(20)
    units.enqueue(19, tenant="much")
    units.enqueue(1, tenant="little")
    assert units.overload.is_full(DEFAULT, "much")
    assert not units.overload.is_full(DEFAULT, "little")
    assert not units.overload.is_full(DEFAULT, "new")
    units.enqueue(5, tenant="much")
    assert units.overload.is_full(DEFAULT, "little")


def test_calls_are_shorter_while_a_tenant_has_less_than_its_share() -> None:
    """Until a second after the last such request, or until the limit ends. A tenant by itself changes nothing."""
    units = Units(rule="auto")
    units.capacity.prices = FixedPrices(1.0, 100, call=2e-3)
    units.overload.limit.seconds = 20 * WORK_S
    units.pressure.press(units.now)
    units.overload.switch()
    limits = units.capacity.full_limits

    def call_ends() -> BatchLimits:
        units.end(units.send(MAX_ROWS))
        return units.capacity.limits

    units.enqueue(22, tenant="much")
    units.overload.is_full(DEFAULT, "much")
    assert call_ends() is limits
    units.overload.is_full(DEFAULT, "little")
    assert call_ends().max_rows < MAX_ROWS
    assert units.overload.limit.limits is units.capacity.limits
    units.now += 1.1
    assert call_ends() is limits
    units.overload.is_full(DEFAULT, "little")
    assert call_ends().max_rows < MAX_ROWS
    units.pressure.is_on = False
    units.overload.switch()
    assert units.capacity.limits is limits


def test_an_admitted_entry_counts_for_its_tenant_before_the_shares_are_counted_again() -> None:
    """They are counted every 5 ms at most; in between, admissions are added."""
    units = limited(20)
    units.enqueue(20, tenant="much")
    assert not units.overload.is_full(DEFAULT, "little")
    for _ in range(30):
        units.overload.admitted(units.entry(tenant="little"))
    assert units.overload.is_full(DEFAULT, "little")
    units.now += 6e-3
    assert not units.overload.is_full(DEFAULT, "little")


def overloaded() -> Units:
    """Units with a serial server, and a limit that has just come into force while a full call runs."""
    units = Units(rule="auto")
    units.overload.limit.seconds = 100 * WORK_S
    units.send(10)
    units.pressure.press(units.now)
    units.overload.switch()
    return units


def test_while_the_window_is_closed_requests_of_class_default_are_refused() -> None:
    """It opens 60 % of a call's time before the call in front ends. Other classes need no window."""
    units = overloaded()
    assert units.overload.is_full(DEFAULT, "")
    assert not units.overload.is_full(CRITICAL, "")
    assert not units.overload.is_full(BATCH, "")
    units.now += 0.39 * FULL_CALL_S
    assert units.overload.is_full(DEFAULT, "")
    units.now += 0.02 * FULL_CALL_S
    assert not units.overload.is_full(DEFAULT, "")


def test_if_no_call_runs_the_window_is_open() -> None:
    """The next call can leave at once."""
    units = overloaded()
    units.end(next(iter(units.calls)))
    assert not units.overload.is_full(DEFAULT, "")


@pytest.mark.parametrize(("rows", "is_closed"), [(9, True), (8, False)])
def test_the_window_opens_earlier_after_a_call_with_less_than_90_per_cent_of_its_rows(
    rows: int, is_closed: bool
) -> None:
    """After a call that was full in good time, it opens later. The time is 15 ms before the end of the last call."""
    units = overloaded()
    units.now += 5e-3
    last = units.send(rows)
    units.now = last.expected_end(units.capacity.prices) - 15e-3
    assert units.overload.is_full(DEFAULT, "") == is_closed


def test_several_servers_need_no_window() -> None:
    """The next call is needed as soon as one of them is idle."""
    units = Units(rule="auto", servers=2)
    units.overload.limit.seconds = 100 * WORK_S
    units.send(10)
    units.pressure.press(units.now)
    units.overload.switch()
    assert not units.overload.is_full(DEFAULT, "")


def test_when_the_limit_comes_into_force_the_oldest_excess_of_class_default_is_refused() -> None:
    """Ten rows fit; two critical ones count and stay, and so does work of class batch."""
    units = Units(rule="auto", servers=2, queueing=0.5)
    units.overload.limit.seconds = 10 * WORK_S
    batch, old = units.enqueue(1, BATCH), units.enqueue(4)
    units.enqueue(2, CRITICAL)
    units.enqueue(8)
    assert units.overload.switch() == []
    units.pressure.press(units.now)
    assert units.overload.switch() == old
    assert batch[0] in units.queue.entries


def test_at_a_serial_server_all_queued_requests_of_class_default_are_refused_if_a_call_runs() -> None:
    """Requests that arrive while the window is open fill the next call, and wait less."""
    units = Units(rule="auto")
    units.overload.limit.seconds = 10 * WORK_S
    units.send(5)
    old = units.enqueue(6)
    units.pressure.press(units.now)
    assert units.overload.switch() == old


def test_at_a_serial_server_without_a_call_one_full_call_of_requests_is_kept() -> None:
    """It can leave at once."""
    units = Units(rule="auto")
    units.overload.limit.seconds = 10 * WORK_S
    queued = units.enqueue(25)
    units.pressure.press(units.now)
    assert units.overload.switch() == queued[:15]


def growing() -> Units:
    """Units whose work builds up: the limit would admit 10 rows, 20 are queued, and a call has just ended."""
    units = Units(rule="auto", queueing=0.5)
    units.overload.limit.seconds = 10 * WORK_S
    assert not units.overload.is_newest_first()
    call = units.send(10)
    units.enqueue(20)
    units.end(call)
    return units


def test_while_work_builds_up_the_newest_leave_first_for_1500_ms() -> None:
    """Then it is an overload, and the oldest are refused; or it is none, and the oldest leave first again."""
    units = growing()
    assert units.overload.is_newest_first()
    units.now += 1.49
    assert units.overload.is_newest_first()
    units.now += 0.02
    assert not units.overload.is_newest_first()


def test_the_oldest_leave_first_if_work_has_stopped_growing() -> None:
    """It must grow by a fifth of a full call from one end of a call to the next."""
    for more, expected in ((1, False), (2, True)):
        units = growing()
        units.queue.remove(units.queue.entries[:10])
        call = units.send(10)
        units.enqueue(10 + more)
        units.end(call)
        assert units.overload.is_newest_first() == expected


def test_the_oldest_leave_first_if_little_is_in_hand() -> None:
    """Less than 1.25 times what the limit would admit."""
    units = growing()
    units.queue.remove(units.queue.entries[:7])
    assert units.overload.is_newest_first()
    units.queue.remove(units.queue.entries[:1])
    assert not units.overload.is_newest_first()


def test_the_oldest_leave_first_once_the_limit_is_in_force() -> None:
    """Then requests are refused instead."""
    units = growing()
    units.pressure.press(units.now)
    assert not units.overload.is_newest_first()


def test_with_a_fixed_limit_the_oldest_leave_first() -> None:
    """It is always in force."""
    units = Units(rule=10 * WORK_S)
    call = units.send(10)
    units.enqueue(20)
    units.end(call)
    assert not units.overload.is_newest_first()


def test_the_limit_is_exceeded_by_class_default_and_above() -> None:
    """In force or not. Work of class batch does not count."""
    units = Units(rule="auto")
    units.overload.limit.seconds = 10 * WORK_S
    units.enqueue(100, BATCH)
    units.enqueue(9)
    assert not units.overload.exceeds_limit()
    units.enqueue(2)
    assert units.overload.exceeds_limit()


def test_the_limit_is_infinite_before_calls_have_shown_the_prices() -> None:
    """Nothing is known of how much would be too much."""
    assert Units(rule="always", calls=0).overload.max_work == math.inf
