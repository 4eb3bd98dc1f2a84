"""When a call waits for the callers of the last one: a call takes 10 ms plus 1 ms for each of up to 10 rows."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

from gateway.endpoints.batcher import Batcher
from gateway.endpoints.calls import CallInFlight
from gateway.endpoints.entries import BatchLimits
from gateway.trace import CRITICAL, Flow
from tests.simulated import MIXES, PRICES, Row, Server, SimulatedLoop, bound, load, open_load, simulate
from tests.unit.gateway.endpoints.units import CALL_S, MAX_ROWS, ROW_S, TOKENS, Units

IN_TIME_S = CALL_S / 5
PER_CALL = PRICES[0]
"""4 ms for each call and 0.05 ms for each row, like a GPU."""


def arrive(units: Units, rows: int, after: float = 0.0) -> None:
    """Let ``rows`` requests arrive ``after`` so many seconds, as the batcher does."""
    units.now += after
    units.enqueue(rows)
    if units.queue.arrived >= units.returns.target:
        units.returns.reached(units.now)


def used_to(after: float, *, rows: int = 4, **more: Any) -> Units:
    """Units whose callers came back ``after`` so many seconds, 30 times; the last call has just ended."""
    units = Units(**more)
    for _ in range(30):
        call = units.send(rows)
        units.now += 20e-3
        units.end(call)
        arrive(units, rows, after)
        units.queue.clear()
    call = units.send(rows)
    units.now += 20e-3
    units.end(call)
    return units


def queued_behind(units: Units) -> CallInFlight:
    """Let all callers come back into one call and four others queue behind it; return the call."""
    arrive(units, 4, IN_TIME_S)
    units.queue.clear()
    call = units.send(4)
    units.enqueue(4)
    return call


def waits(units: Units) -> bool:
    """Whether the next call waits now."""
    return units.returns.is_waiting and units.returns.must_wait()


def test_callers_who_usually_come_back_in_time_are_awaited() -> None:
    """Until nine tenths of them are back, whoever else comes."""
    units = used_to(IN_TIME_S)
    arrive(units, 3)
    assert waits(units)
    arrive(units, 1)
    assert not waits(units)


def test_nobody_is_awaited_before_it_is_known_that_they_come_back() -> None:
    """A new version answers as if there were no such rule."""
    units = Units()
    units.end(units.send(4))
    arrive(units, 1)
    assert not waits(units)


@pytest.mark.parametrize("after", [0.6 * CALL_S, 2.0])
def test_callers_who_come_back_late_are_not_awaited(after: float) -> None:
    """Half the price of a call is the most that waiting for them may cost."""
    units = used_to(after)
    arrive(units, 1)
    assert not waits(units)


def test_a_lone_caller_never_waits() -> None:
    """It is back itself."""
    units = used_to(IN_TIME_S, rows=1)
    assert units.returns.is_waiting
    arrive(units, 1)
    assert not waits(units)


def test_a_call_waits_at_most_half_the_price_of_a_call() -> None:
    """Callers can leave, all at once."""
    units = used_to(IN_TIME_S)
    ended = units.now
    arrive(units, 1, IN_TIME_S)
    assert ended + CALL_S / 2 == pytest.approx(units.pacing.wake_at())
    units.now = ended + CALL_S / 2
    assert not waits(units)


def test_callers_who_stay_away_are_soon_not_awaited_any_more() -> None:
    """After two or three calls."""
    units = used_to(IN_TIME_S)
    cost = 0
    while units.returns.is_waiting:
        cost += 1
        arrive(units, 1, CALL_S)
        units.queue.clear()
        units.end(units.send(4))
    assert cost <= 3


def test_while_they_are_in_a_call_the_next_one_does_not_leave() -> None:
    """Otherwise the two groups would take turns for ever."""
    units = used_to(IN_TIME_S)
    call = queued_behind(units)
    assert not units.pacing.may_leave()
    units.end(call)
    assert waits(units)


def test_behind_a_call_that_is_late_the_next_one_leaves() -> None:
    """It may be lost: nothing waits for its end."""
    units = used_to(IN_TIME_S)
    call = queued_behind(units)
    late = call.started + CALL_S + 4 * ROW_S + CALL_S / 2
    assert late == pytest.approx(units.pacing.wake_at())
    units.now = late - 1e-6
    assert not units.pacing.may_leave()
    units.now = late
    assert units.pacing.may_leave()


@pytest.mark.parametrize(("waiting", "more"), [(3, {}), (MAX_ROWS - 3, {}), (4, {"max_padded_tokens": 7 * TOKENS})])
def test_more_rows_than_fit_into_a_call_do_not_wait(waiting: int, more: dict[str, Any]) -> None:
    """The server could not take them all at once."""
    units = used_to(IN_TIME_S, **more)
    call = units.send(4)
    units.enqueue(waiting)
    units.end(call)
    assert waits(units) is (waiting == 3)


def test_beside_other_classes_nobody_waits() -> None:
    """A critical request is worth more than a call."""
    units = used_to(IN_TIME_S)
    units.enqueue(1, CRITICAL)
    assert not waits(units)


@pytest.mark.parametrize("more", [{"servers": 2}, {"gateways": 2}, {"queueing": 0.0}, {"rule": "always"}])
def test_nobody_waits_if_the_server_would_not_be_idle_anyway(more: dict[str, Any]) -> None:
    """Several servers or gateways, a server that takes several calls at a time, an overload."""
    units = used_to(IN_TIME_S, **more)
    units.enqueue(1)
    assert not waits(units)


@pytest.mark.parametrize("connections", [2, 4, 8])
def test_before_a_gpu_few_callers_get_more_answers_than_two_calls_taking_turns_could_give(connections: int) -> None:
    """Simulated: 1.64, 1.57 and 1.43 times as many."""
    answers = load(PER_CALL, MIXES["short"], connections).answers
    assert answers >= 1.3 * bound(PER_CALL, MIXES["short"], connections)


def test_who_does_not_wait_for_answers_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random arrivals: the same answers at the same times as without the rule."""

    def times() -> list[float]:
        return open_load(PER_CALL, MIXES["short"], 500.0, rule="off", seconds=3.0, warm=1.0).seconds

    found = times()
    monkeypatch.setattr("gateway.endpoints.returns._LIKELY", math.inf)
    assert times() == found


def test_a_critical_request_ends_the_wait() -> None:
    """Simulated: it arrives while the server is idle and a call waits for callers, and leaves at once."""

    async def main(loop: SimulatedLoop) -> None:
        server = Server(loop, PER_CALL, random.Random(1))
        batcher: Batcher[Row] = Batcher(server, limits=BatchLimits(), on_batch=lambda *_: None, clock=loop.time)

        async def call() -> None:
            while loop.time() < 1.5:
                await batcher.submit([Row(8)], loop.time() + 60)
                await asyncio.sleep(1e-3)

        callers = [loop.create_task(call()) for _ in range(8)]
        await asyncio.sleep(1.0)
        while not (batcher._returns.is_waiting and batcher._alarm is not None and not batcher._calls.running):
            assert loop.time() < 1.4
            await asyncio.sleep(1e-5)
        sent, flow = loop.time(), Flow(CRITICAL, "")
        critical = loop.create_task(batcher.submit([Row(8)], sent + 60, flow=flow))
        while not batcher._calls.running:
            assert loop.time() < sent + 1e-4
            await asyncio.sleep(1e-5)
        await asyncio.gather(critical, *callers)
        await batcher.close()

    simulate(main)


def test_if_all_callers_but_one_leave_it_is_answered_all_the_same() -> None:
    """Simulated: it waits for them twice or three times, half the price of a call each time."""
    times: list[float] = []

    async def main(loop: SimulatedLoop) -> None:
        batcher: Batcher[Row] = Batcher(
            Server(loop, PER_CALL, random.Random(1)), limits=BatchLimits(), on_batch=lambda *_: None, clock=loop.time
        )

        async def call(until: float, taken: list[float]) -> None:
            while loop.time() < until:
                sent = loop.time()
                await batcher.submit([Row(8)], sent + 60)
                taken.append(loop.time() - sent)

        await asyncio.gather(*(call(1.0, []) for _ in range(7)), call(1.0, []))
        assert batcher._returns.is_waiting
        await call(loop.time() + 0.2, times)
        await batcher.close()

    simulate(main)
    usual = PER_CALL.call * 1.4
    assert max(times) < usual + PER_CALL.call / 2
    assert sum(taken > usual for taken in times) <= 3
