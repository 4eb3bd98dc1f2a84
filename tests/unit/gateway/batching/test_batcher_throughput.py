"""Throughput, order and waits of calls in simulated time, so the numbers are exact."""

from __future__ import annotations

import pytest

from tests import simulated
from tests.simulated import MIXES, PRICES, Load, Price, bound, load, open_load

CALL, TOKEN = PRICES[:2]


@pytest.mark.parametrize(
    "connections", [pytest.param(16, marks=pytest.mark.long), 64, pytest.param(256, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("price", PRICES, ids=lambda price: price.name)
def test_throughput_is_at_least_90_per_cent_of_two_full_calls_taking_turns(
    price: Price, mix: str, connections: int
) -> None:
    """With any price and without a setting."""
    answers = load(price, MIXES[mix], connections).answers
    assert answers >= 0.9 * bound(price, MIXES[mix], connections)


def test_a_very_fast_server_gets_no_small_calls() -> None:
    """The gateway's own time for each call counts then, so requests still share calls."""
    assert load(Price("instant", 50e-6, 1e-6, 0.0), MIXES["mixed"], 64).rows >= 16


def test_two_instances_of_a_model_are_both_used() -> None:
    """A server that works on two calls at a time gets two, and answers at least 1.05 times what one instance can."""
    two = Price("two instances", 4e-3, 50e-6, 0.0, at_once=2)
    assert load(two, MIXES["short"], 64).answers > 1.05 * bound(CALL, MIXES["short"], 64)


def test_lone_requests_leave_at_once() -> None:
    """With one connection, every call has one row and nothing is added to the time of wire, server and gateway."""
    cell = load(Price("exact", 4e-3, 50e-6, 0.0, noise=0.0), MIXES["short"], 1)
    assert cell.rows == 1
    own = simulated.REQUEST_S + simulated.CALL_S + 2 * simulated.WIRE_S + 4e-3 + 50e-6
    assert max(cell.seconds) == pytest.approx(own, abs=1e-6)


@pytest.mark.parametrize("callers", [2, 4, 8])
def test_callers_who_come_back_at_once_share_one_call(callers: int) -> None:
    """Not two calls that take turns, each with half of them."""
    cell = load(CALL, MIXES["short"], callers)
    assert cell.rows > 0.9 * callers
    assert cell.answers > 1.4 * bound(CALL, MIXES["short"], callers)


@pytest.mark.parametrize("pause", [1e-3, 20e-3])
def test_callers_who_think_for_a_moment_are_not_awaited(pause: float) -> None:
    """Their answers take two calls at most, and no wait is added."""
    cell = load(CALL, MIXES["short"], 8, pause=pause)
    assert cell.percentile(50) < 2.2 * CALL.seconds(8, 16)


GPU = Price("gpu", 22e-3, 0.5e-3, 0.0)
CAPACITY = 64 / GPU.seconds(64, 16)


def beside_batch(share: float, *, servers: int = 1, batch: int = 0, seconds: float = 5.0) -> Load:
    """Simulate a load on ``servers`` servers, beside ``batch`` callers of class batch."""
    return open_load(
        GPU, MIXES["short"], share * servers * CAPACITY, seconds=seconds, warm=3.0, others=[GPU] * (servers - 1),
        batch=batch * servers, rule="off",
    )  # fmt: skip


@pytest.mark.parametrize(("share", "servers"), [(0.1, 1), (0.3, 1), (0.6, 1), (0.3, 4)])
def test_batch_work_uses_the_time_that_other_classes_leave(share: float, servers: int) -> None:
    """Requests of other classes wait hardly longer, and some batch work is done however busy the servers are."""
    alone, beside = beside_batch(share, servers=servers), beside_batch(share, servers=servers, batch=128)
    assert beside.percentile(50) <= 1.15 * alone.percentile(50)
    assert beside.percentile(99) <= 2 * alone.percentile(99)
    assert beside.batch >= 0.08 * servers * CAPACITY


def test_batch_work_alone_gets_the_whole_capacity() -> None:
    """No other class has to wait for it."""
    assert beside_batch(1e-6, batch=128).batch >= 0.9 * CAPACITY


@pytest.mark.parametrize(("times", "gateways", "p99"), [(5.0, 1, 0.28), (2.0, 2, 1.5), (5.0, 2, 1.5)])
def test_gateways_that_do_not_know_of_each_other_keep_the_goodput(times: float, gateways: int, p99: float) -> None:
    """Each has two full calls in hand. One gateway answers in 1.6 times as long as at 0.8 times the capacity."""
    price = Price("large", 20e-3, 1.5e-3, 0.0)
    capacity = 64 / price.seconds(64, 0)
    found = open_load(price, MIXES["short"], times * capacity, seconds=12.0, rule="auto", gateways=gateways)
    assert found.answers >= 0.94 * capacity
    assert found.percentile(99) <= p99
    assert max(found.seconds) <= 2.0


@pytest.mark.parametrize("times", [5.0, 20.0])
def test_a_tenant_that_sends_many_times_its_share_takes_nothing_from_another_one(times: float) -> None:
    """The other tenant's requests wait for the running call and the one behind it at most."""
    calm, hard = (
        open_load(GPU, MIXES["short"], {"quiet": 0.3 * CAPACITY, "greedy": share * 0.3 * CAPACITY}).tenants
        for share in (1.0, times)
    )
    assert hard["quiet"].answers >= 0.99 * hard["quiet"].asked
    assert hard["quiet"].percentile(99) <= 1.6 * calm["quiet"].percentile(99)
    assert hard["greedy"].answers >= 0.6 * CAPACITY
