"""The choice of a server: alone, and with the real batcher in simulated time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prices import Prices
from gateway.triton.choice import Call, Server, choose
from tests.simulated import MIXES, Load, Price, open_load

CALL_S = 1e-3
"""What a call of no rows is expected to take before anything is learned."""
USUAL_S = 20e-3


def a_call(prices: Prices | None = None, rows: int = 0, elements: int = 0) -> Call:
    """Return a call that is to be made."""
    return Call(prices or Prices(), rows, elements)


def one(*, in_flight: int = 0, is_unhealthy: bool = False, missing: str = "") -> Server:
    """Return a server in a given state."""
    server = Server()
    for _ in range(in_flight):
        server.begin(a_call(), 0.0)
    server.is_unhealthy = is_unhealthy
    server.held = frozenset({"n"}) if missing else None
    return server


@given(st.integers(1, 7), st.integers(1, 50), st.booleans(), st.booleans())
def test_servers_take_exact_turns(count: int, rounds: int, at_once: bool, is_stream: bool) -> None:
    """Each gets the same number of calls, whether they come one after another or all at once."""
    servers = [one() for _ in range(count)]
    chosen: Counter[int] = Counter()
    for turn in range(count * rounds):
        now = turn * 1e-6
        found = choose(servers, "m", CALL_S, now)
        assert found is not None
        chosen[servers.index(found)] += 1
        call = None if is_stream else a_call()
        found.begin(call, now)
        if not at_once:
            found.end(call, now + 0.5e-6, was_answered=True)
    assert {rounds} == set(chosen.values())


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6),
)
def test_the_choice_is_never_worse_than_another(facts: list[tuple[bool, bool, int]]) -> None:
    """Healthy servers come first, then those with the model, then the least busy. None is chosen twice for a call."""
    servers = [one(in_flight=count, is_unhealthy=ill, missing="m" if lacks else "") for ill, lacks, count in facts]

    def rank(server: Server) -> tuple[bool, bool, int]:
        return server.is_unhealthy, server.lacks("m"), server.in_flight

    tried: list[Server] = []
    while (found := choose(servers, "m", CALL_S, 0.0, tried)) is not None:
        assert rank(found) == min(rank(other) for other in servers if other not in tried)
        tried.append(found)
    assert len(servers) == len(tried)


def test_the_next_call_goes_where_it_is_expected_to_end_first() -> None:
    """Two short calls end before a long one; of equal ones, the one that began first ends first."""
    a, b = servers = one(), one()
    prices = Prices()
    for turn in range(64):
        rows, now = 1 + turn % 8, turn * 10.0
        call = a_call(prices, rows, rows * 16)
        a.begin(call, now)
        a.end(call, now + 1e-3 * rows, was_answered=True)
    long, short = a_call(prices, 8, 8 * 16), [a_call(prices, 2, 2 * 16) for _ in range(2)]
    assert pytest.approx(8e-3, rel=0.1) == long.seconds
    a.begin(long, 700.0)
    for call in short:
        b.begin(call, 700.0)
    assert choose(servers, "m", CALL_S, 700.001) is b
    a.end(long, 700.008, was_answered=True)
    assert choose(servers, "m", CALL_S, 700.008) is a


def test_a_server_whose_call_is_late_is_avoided() -> None:
    """The call is expected to take as long again as it is late already."""
    stuck, other = servers = one(), one()
    stuck.begin(a_call(), 0.0)
    assert choose(servers, "m", CALL_S, 5 * CALL_S) is other
    other.begin(a_call(), 5 * CALL_S)
    assert choose(servers, "m", CALL_S, 5 * CALL_S) is other


def test_streams_count_as_load_but_are_not_timed() -> None:
    """The duration of a generated text is unknown."""
    busy, other = servers = one(), one()
    busy.begin(None, 0.0)
    assert choose(servers, "m", CALL_S, 100.0) is other
    assert not busy.waits(100.0)
    other.begin(a_call(), 100.0)
    assert choose(servers, "m", CALL_S, 100.0) is busy
    busy.end(None, 101.0, was_answered=False)
    assert (0, 0) == (busy.in_flight, busy.streams)


def test_a_server_is_slow_after_many_slow_calls_only() -> None:
    """Not after a few, nor if they take little longer; answers at the usual speed make it fast again, and time: while
    it gets no calls, nothing else could tell that it is fast by now.
    """
    slow, other, prices, now, found = one(), one(), Prices(), 0.0, []
    for calls, times in ((1, 1.0), (10, 3.0), (50, 3.0), (140, 1.0), (60, 1.3)):
        for _ in range(calls):
            now += 1.0
            for server, took in ((slow, times * USUAL_S), (other, USUAL_S)):
                call = a_call(prices)
                server.begin(call, now)
                server.end(call, now + took, was_answered=True)
        found.append(slow.expect(USUAL_S) > USUAL_S)
    assert [False, False, True, False, False] == found
    call, before = a_call(prices), slow.took
    slow.begin(call, now)
    slow.end(call, now + 1000 * USUAL_S, was_answered=True)
    assert slow.took - before < 0.5, "one pause is not a slow server"
    slow.took = 8.0
    assert slow.expect(USUAL_S) > USUAL_S
    for _ in range(60):  # seconds
        slow.fade()
    assert slow.expect(USUAL_S) == USUAL_S


@pytest.mark.parametrize("is_stream", [True, False])
def test_what_ends_beside_a_call_does_not_make_it_new(is_stream: bool) -> None:
    """A stream that ends, or a caller that leaves, says nothing about the call that is running."""
    server, prices = one(), Prices()
    beside = None if is_stream else a_call(prices)
    server.begin(a_call(prices), 0.0)
    server.begin(beside, 0.0)
    server.end(beside, 5 * CALL_S, was_answered=False)
    assert pytest.approx(4 * CALL_S) == server.waits(5 * CALL_S)


def test_a_call_without_an_answer_teaches_nothing() -> None:
    """A caller's time-out of two microseconds makes no call shorter. One that is expected to take none may end."""
    server, prices = one(), Prices()
    for _ in range(50):
        call = a_call(prices)
        server.begin(call, 0.0)
        server.end(call, 2e-6, was_answered=False)
    assert (CALL_S, 0) == (a_call(prices).seconds, server.answered)
    prices.call = 0.0
    call = a_call(prices)
    server.begin(call, 0.0)
    server.end(call, CALL_S, was_answered=True)
    assert (0, 1) == (server.in_flight, server.answered)


GPU = Price("gpu", 22e-3, 0.5e-3, 0.0)
CAPACITY = 4 * 64 / GPU.seconds(64, 16)


def four(load: float, *last: Price) -> Load:
    """Return the results of a load on four servers, the last of which may have another price."""
    prices = [GPU, GPU, GPU, *(last or (GPU,))]
    return open_load(prices[0], MIXES["short"], load * CAPACITY, seconds=3.0, warm=3.0, others=prices[1:])


SLOW = Price("slow", 3 * GPU.call, 3 * GPU.row, 0.0)


def test_one_of_four_that_is_slow_does_not_set_the_tail() -> None:
    """At 70 % of their capacity, the other three do most of its work, and nothing is lost."""
    equal, found = four(0.7), four(0.7, SLOW)
    assert found.answers >= 0.98 * equal.answers
    assert found.percentile(99) <= 2.2 * equal.percentile(99)


def test_the_capacity_of_a_slow_server_is_used_under_overload() -> None:
    """The load exceeds the three others. The slow one helps, and few requests are refused."""
    assert four(0.8, SLOW).answers >= 0.94 * 0.8 * CAPACITY
