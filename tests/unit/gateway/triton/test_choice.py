"""The choice of a server: alone, and with the real batcher in simulated time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.triton.choice import Server, choose
from tests.simulated import MIXES, OpenLoad, Price, open_load


def one(*, in_flight: int = 0, is_unhealthy: bool = False, missing: str = "") -> Server:
    """Return a server in a given state."""
    server = Server()
    server.in_flight, server.is_unhealthy = in_flight, is_unhealthy
    server.missing = {missing} if missing else set()
    return server


@given(st.integers(1, 7), st.integers(1, 50), st.booleans())
def test_servers_take_exact_turns(count: int, rounds: int, at_once: bool) -> None:
    """Each gets the same number of calls, whether they come one after another or all at once."""
    servers = [one() for _ in range(count)]
    chosen: Counter[int] = Counter()
    for now in range(count * rounds):
        found = choose(servers, "m")
        assert found is not None
        chosen[servers.index(found)] += 1
        found.begin(now)
        if not at_once:
            found.end(now + 0.5)
    assert {rounds} == set(chosen.values())


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6),
)
def test_the_choice_is_never_worse_than_another(facts: list[tuple[bool, bool, int]]) -> None:
    """Healthy servers come first, then those with the model, then the least busy. None is chosen twice for a call."""
    servers = [one(in_flight=count, is_unhealthy=ill, missing="m" if lacks else "") for ill, lacks, count in facts]

    def rank(server: Server) -> tuple[bool, bool, int]:
        return server.is_unhealthy, "m" in server.missing, server.in_flight

    tried: list[Server] = []
    while (found := choose(servers, "m", tried)) is not None:
        assert rank(found) == min(rank(other) for other in servers if other not in tried)
        tried.append(found)
    assert len(servers) == len(tried)


def test_of_busy_servers_the_one_whose_call_began_first_is_next() -> None:
    """Its call is expected to end first. A call that waits there begins when the one in front of it ends."""
    a, b = servers = one(), one()
    a.begin(1.0)
    b.begin(2.0)
    assert choose(servers, "m") is a
    a.begin(3.0)
    b.begin(4.0)
    a.begin(4.0)
    a.end(5.0)
    assert (2, 2) == (a.in_flight, b.in_flight)
    assert choose(servers, "m") is b


GPU = Price("gpu", 22e-3, 0.5e-3, 0.0)
CAPACITY = 4 * 64 / GPU.seconds(64, 16)


def four(load: float, *last: Price, seconds: float = 3.0) -> OpenLoad:
    """Return the results of a load on four servers, the last of which may have another price."""
    prices = [GPU, GPU, GPU, *(last or (GPU,))]
    return open_load(prices[0], MIXES["short"], load * CAPACITY, seconds=seconds, warm=3.0, others=prices[1:])


@pytest.fixture(scope="module")
def equal() -> OpenLoad:
    """Return the latencies with four equal servers at 70 % of their capacity."""
    return four(0.7)


def test_one_of_four_three_times_slower_gets_fewer_calls(equal: OpenLoad) -> None:
    """The tail is that of its own calls, which take three times as long, and nothing is lost."""
    found = four(0.7, GPU.slower(3.0))
    assert found.answers >= 0.98 * equal.answers
    assert found.percentile(50) <= 2 * equal.percentile(50)
    assert found.percentile(99) <= 3.5 * equal.percentile(99)


def test_one_of_four_that_pauses_does_not_set_the_tail(equal: OpenLoad) -> None:
    """It pauses 0.5 s every 3 s. Its calls wait, and no others are sent to it."""
    found = four(0.7, Price("pausing", GPU.call, GPU.row, 0.0, pauses=(3.0, 0.5)), seconds=6.0)
    assert found.answers >= 0.98 * equal.answers
    assert found.percentile(98) <= 1.65 * equal.percentile(98)


def test_the_capacity_of_a_slow_server_is_used_under_overload() -> None:
    """The load exceeds the three others. The slow one helps, and hardly any request is refused."""
    assert four(0.8, GPU.slower(3.0)).answers >= 0.95 * 0.8 * CAPACITY
