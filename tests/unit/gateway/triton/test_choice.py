"""The choice of a server: alone, and with the real batcher in simulated time."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.triton.choice import Call, Paces, Server, choose
from tests.simulated import MIXES, OpenLoad, Price, open_load

CALL_S, ROW_S, TOKENS = 10e-3, 0.1e-3, 16


def one(*, in_flight: int = 0, is_unhealthy: bool = False, missing: str = "") -> Server:
    """Return a server in a given state."""
    server = Server()
    server.in_flight, server.is_unhealthy = in_flight, is_unhealthy
    server.owed = in_flight * CALL_S
    server.missing = {missing} if missing else set()
    return server


@given(st.integers(1, 7), st.integers(1, 50))
def test_idle_servers_take_exact_turns(count: int, rounds: int) -> None:
    """Each gets the same number of calls."""
    servers = [one() for _ in range(count)]
    chosen = Counter(servers.index(choose(servers, "m", turn, ()) or one()) for turn in range(count * rounds))
    assert {rounds} == set(chosen.values())


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 9),
    st.sampled_from([0.0, CALL_S]),
)  # fmt: skip
def test_the_choice_is_never_worse_than_another(facts: list[tuple[bool, bool, int]], turn: int, seconds: float) -> None:
    """Healthy servers come first, then those with the model, then the least busy. None is chosen twice for a call."""
    servers = [one(in_flight=count, is_unhealthy=ill, missing="m" if lacks else "") for ill, lacks, count in facts]

    def rank(server: Server) -> tuple[bool, bool, int]:
        return server.is_unhealthy, "m" in server.missing, server.in_flight

    tried: list[Server] = []
    while (found := choose(servers, "m", turn, tried, seconds=seconds)) is not None:
        assert rank(found) == min(rank(other) for other in servers if other not in tried)
        tried.append(found)
    assert len(servers) == len(tried)


class Pool:
    """Servers that run one call at a time, ``slower`` times as long as usual."""

    def __init__(self, *slower: float) -> None:
        self.paces = Paces()
        self.servers = [Server() for _ in slower]
        self.slower = list(slower)
        self.now = 1.0

    def call(self, server: Server, rows: int = 20, *, gives_up: float = inf) -> Call:
        """Make a single call at a server."""
        call = self.paces.call("m", rows, rows * TOKENS)
        self.paces.begin(server, call, self.now)
        took = (CALL_S + ROW_S * rows) * self.slower[self.servers.index(server)]
        self.now += min(took, gives_up)
        self.paces.end(server, call, self.now, self.servers, was_answered=took < gives_up)
        return call

    def run(self, rounds: int, *rows: int) -> None:
        """Make calls at all servers in turn."""
        for _ in range(rounds):
            for server, count in zip(self.servers, rows or [20] * len(self.servers), strict=True):
                self.call(server, count)

    def chosen(self, calls: int = 8) -> list[int]:
        """Return which servers would get the next calls, each made while no other is."""
        seconds = self.paces.call("m", 20, 20 * TOKENS).seconds
        found = [choose(self.servers, "m", turn, (), seconds=seconds, now=self.now) for turn in range(calls)]
        return [self.servers.index(one) for one in found if one is not None]


def test_a_server_three_times_slower_gets_no_calls_while_others_are_idle() -> None:
    """It gets one after ten seconds, because it may be fast again."""
    pool = Pool(1, 3, 1, 1)
    pool.run(16)
    assert 3 == pytest.approx(pool.servers[1].pace, rel=0.35)
    assert {0, 2, 3} == set(pool.chosen())
    pool.now += 11
    assert {0, 1, 2, 3} == set(pool.chosen())


def test_a_server_that_gets_larger_calls_is_not_slow() -> None:
    """Four times the rows take three times as long, as on any server."""
    pool = Pool(1, 1, 1, 1)
    pool.run(50, 20, 20, 20, 200)
    assert all(server.pace == 1.0 for server in pool.servers)


def test_a_server_with_a_queue_of_calls_is_not_slow() -> None:
    """Waiting behind other calls is not slowness: one server here always has three calls, the other one."""
    pool = Pool(1, 1)
    for _ in range(40):
        pool.call(pool.servers[0])
        calls = [pool.paces.call("m", 20, 20 * TOKENS) for _ in range(3)]
        for call in calls:
            pool.paces.begin(pool.servers[1], call, pool.now)
        for call in calls:
            pool.now += CALL_S + ROW_S * 20
            pool.paces.end(pool.servers[1], call, pool.now, pool.servers, was_answered=True)
    assert [1.0, 1.0] == [server.pace for server in pool.servers]


def test_a_server_whose_call_is_late_is_avoided() -> None:
    """The call is expected to take as long again as it is late already."""
    pool = Pool(1, 1)
    pool.run(20)
    stuck, other = pool.servers
    first, second = (pool.paces.call("m", 20, 20 * TOKENS) for _ in range(2))
    pool.paces.begin(stuck, first, pool.now)
    pool.now += 5 * CALL_S
    pool.paces.begin(other, second, pool.now)
    assert choose(pool.servers, "m", 0, (), seconds=second.seconds, now=pool.now) is other


def test_callers_that_leave_early_do_not_change_the_pace() -> None:
    """A caller's time-out of two milliseconds makes no server fast or slow."""
    pool = Pool(1, 1)
    pool.run(20)
    before = [server.took for server in pool.servers]
    for _ in range(50):
        pool.call(pool.servers[0], gives_up=2e-3)
    assert before == [server.took for server in pool.servers]


def test_calls_given_up_late_make_a_server_slower() -> None:
    """A call that is given up after five times its usual time was not answered in it."""
    pool = Pool(1, 50, 1)
    pool.run(1)
    for _ in range(40):
        for server in pool.servers:
            pool.call(server, gives_up=0.05)
    assert pool.servers[1].pace > 2


def test_streams_count_as_load_but_are_not_timed() -> None:
    """The duration of a generated text is unknown."""
    pool = Pool(1, 1)
    pool.run(20)
    busy, other = pool.servers
    pool.paces.begin(busy, None, pool.now)
    pool.now += 100
    assert choose(pool.servers, "m", 0, ()) is other
    assert not busy.ends(0.0, pool.now)
    pool.paces.end(busy, None, pool.now, pool.servers, was_answered=False)
    assert (0, 0) == (busy.in_flight, busy.streams)


def test_models_without_calls_are_forgotten() -> None:
    """A call of such a model that ends later does no harm."""
    pool = Pool(1, 1)
    call = pool.paces.call("m", 1, 1)
    pool.paces.begin(pool.servers[0], call, pool.now)
    pool.paces.forget(())
    pool.paces.end(pool.servers[0], call, pool.now + 1, pool.servers, was_answered=True)
    assert 0 == pool.servers[0].in_flight


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


def test_one_of_four_three_times_slower_does_not_triple_the_tail(equal: OpenLoad) -> None:
    """The other three do most of its work, and nothing is lost."""
    found = four(0.7, GPU.slower(3.0))
    assert found.answers >= 0.98 * equal.answers
    assert found.percentile(99) <= 2.2 * equal.percentile(99)


def test_one_of_four_that_pauses_does_not_set_the_tail(equal: OpenLoad) -> None:
    """It pauses 0.5 s every 3 s. Its calls wait, and no others are sent to it."""
    found = four(0.7, Price("pausing", GPU.call, GPU.row, 0.0, pauses=(3.0, 0.5)), seconds=6.0)
    assert found.answers >= 0.98 * equal.answers
    assert found.percentile(98) <= 1.65 * equal.percentile(98)


def test_the_capacity_of_a_slow_server_is_used_under_overload(equal: OpenLoad) -> None:
    """The load exceeds the three others. The slow one helps, and hardly any request is refused."""
    del equal
    found = four(0.8, GPU.slower(3.0))
    assert found.answers >= 0.95 * 0.8 * CAPACITY


def test_two_servers_one_of_them_slow_answer_as_much_as_in_turns() -> None:
    """The fast one alone cannot carry the load. The tail is no worse than with turns."""
    load = 0.6 * 2 * 64 / GPU.seconds(64, 16)
    by_turns, found = (
        open_load(
            GPU, MIXES["short"], load, seconds=4.0, warm=5.0, others=[GPU.slower(3.0)], is_plain=is_plain, rule="auto"
        )
        for is_plain in (True, False)
    )
    assert found.answers >= 0.98 * by_turns.answers
    assert found.percentile(99) <= by_turns.percentile(99)
