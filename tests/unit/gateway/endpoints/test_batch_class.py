"""Calls of class batch leave only when requests of other classes hardly wait longer for it."""

from __future__ import annotations

import pytest

from gateway.endpoints.batch_class import BatchClassThrottle
from gateway.endpoints.calls import CallInFlight, CallsInFlight
from gateway.endpoints.capacity import Capacity, OneServer
from gateway.endpoints.entries import BatchLimits, Entry
from gateway.endpoints.entry_queue import EntryQueue
from gateway.prices import Prices
from gateway.trace import BATCH, DEFAULT, Flow
from tests.simulated import Row


class Stack:
    """A throttle of one server whose calls take 1 ms and 5 us per padded token, with a clock that is set."""

    def __init__(self) -> None:
        self.now = 10.0
        self.queue: EntryQueue[Row] = EntryQueue()
        self.calls = CallsInFlight()
        capacity = Capacity(Prices(), BatchLimits(), OneServer())
        self.throttle = BatchClassThrottle(self.queue, self.calls, capacity, lambda: self.now)

    def call(self, rank: int) -> CallInFlight:
        """A call of one entry of a class that leaves now."""
        made = CallInFlight([self.entry(rank)], self.now)
        self.throttle.call_left(made, rank)
        return made

    def entry(self, rank: int) -> Entry[Row]:
        """An entry of one row."""
        made = Entry([Row(100)], 60.0)
        made.flow = Flow(rank, "")
        return made


def test_batch_work_without_other_classes_does_not_wait() -> None:
    """It does not wait either if no other class has sent anything for a second."""
    stack = Stack()
    stack.queue.add(stack.entry(BATCH))
    assert not stack.throttle.must_wait()
    stack.calls.add(stack.call(DEFAULT), 1)
    assert stack.throttle.must_wait()
    stack.now += 1.1
    assert not stack.throttle.must_wait()


def test_beside_other_classes_batch_calls_take_a_tenth_of_the_time() -> None:
    """A call of 1.5 ms has left, so the next one may leave 15 ms later."""
    stack = Stack()
    stack.call(DEFAULT)
    stack.call(BATCH)
    stack.queue.add(stack.entry(BATCH))
    assert stack.throttle.next_at == pytest.approx(stack.now + 15e-3)
    assert stack.throttle.must_wait()
    stack.now += 16e-3
    assert not stack.throttle.must_wait()


def test_beside_other_classes_a_batch_call_is_at_most_twice_as_long_as_theirs() -> None:
    """Their calls take 1.5 ms. A batch call is not shortened if no other class has sent anything for a second."""
    stack = Stack()
    for _ in range(200):
        stack.call(DEFAULT)
    entries = [stack.entry(BATCH) for _ in range(20)]
    for entry in entries:
        stack.queue.add(entry)
    assert len(stack.throttle.shorten(entries)) in (3, 4)
    stack.now += 1.1
    assert stack.throttle.shorten(entries) == entries
