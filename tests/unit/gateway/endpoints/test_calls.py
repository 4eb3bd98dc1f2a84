"""The calls in flight: which call waits behind which, and how much work is in them."""

from __future__ import annotations

import pytest

from gateway.endpoints.calls import CallInFlight, CallsInFlight
from gateway.endpoints.entries import Entry
from gateway.prices import Prices
from gateway.trace import BATCH, CRITICAL, DEFAULT, DEFAULT_FLOW, Flow
from tests.simulated import Row


def call(started: float, *lengths: int, rank: int = DEFAULT) -> CallInFlight:
    """A call with an entry of one row for each length."""
    entries = []
    for number, length in enumerate(lengths):
        entry = Entry([Row(length)], 60.0 + number)
        entry.flow = DEFAULT_FLOW if rank == DEFAULT else Flow(rank, "")
        entry.submitted = started - 0.5
        entries.append(entry)
    return CallInFlight(entries, started)


def test_a_call_counts_its_entries_and_they_refer_to_it() -> None:
    """Padded tokens are longest × rows. It may run until the latest deadline."""
    made = call(1.0, 4, 10, 6)
    assert (made.rows, made.tokens, made.longest, made.padded, made.latest) == (3, 20, 10, 30, 62.0)
    assert all(entry.call is made and entry.queued_ns == 500_000_000 for entry in made.entries)


def test_if_all_servers_are_busy_a_call_waits_behind_the_oldest_one_without_a_follower() -> None:
    """Two servers: the third call waits behind the first, the fourth behind the second."""
    calls, made = CallsInFlight(), [call(float(number), 4) for number in range(4)]
    for one in made:
        calls.add(one, 2)
    assert [one.front for one in made] == [None, None, made[0], made[1]]
    assert calls.last() is made[2]


def test_at_a_serial_server_a_call_is_expected_to_end_after_the_one_in_front() -> None:
    """Its own time is counted from the end of the call in front, expected or real."""
    prices = Prices()
    took = prices.expect(1, 4)
    calls, first, second = CallsInFlight(), call(1.0, 4), call(1.0, 4)
    calls.add(first, 1)
    calls.add(second, 1)
    assert prices.queueing == 1.0
    assert second.expected_end(prices) == pytest.approx(1.0 + 2 * took)
    assert calls.earliest_end(prices) == pytest.approx(1.0 + took)
    calls.remove(first, 1.5)
    assert second.front is None
    assert second.expected_end(prices) == pytest.approx(1.5 + took)


def test_the_work_of_a_call_is_counted_by_class_until_it_ends() -> None:
    """Calls to outliers do not count as work of the servers that share the load."""
    calls, default, batch, outlier = CallsInFlight(), call(0.0, 4, 4), call(0.0, 8, rank=BATCH), call(0.0, 4)
    calls.add(default, 2)
    calls.add(batch, 2)
    calls.outliers[outlier] = None
    assert [calls.rows_up_to(rank) for rank in (CRITICAL, DEFAULT, BATCH)] == [0, 2, 3]
    assert [calls.tokens_up_to(rank) for rank in (CRITICAL, DEFAULT, BATCH)] == [0, 8, 16]
    assert len(list(calls)) == 3
    assert len(list(calls.entries())) == 4
    assert calls.remove(outlier, 1.0)
    assert not calls.remove(batch, 1.0)
    assert not calls.remove(default, 1.0)
    assert [calls.rows_up_to(rank) for rank in (CRITICAL, DEFAULT, BATCH)] == [0, 0, 0]
