"""Who gets the next call, and who is too slow to get any: alone, then under the real batcher in simulated time."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shared.simulated import MIXES, OpenLoad, Price, open_load
from gateway.triton.choice import Call, Paces, Server, choose, probed, spare

CALL_S, ROW_S, TOKENS = 10e-3, 0.1e-3, 16


def one(*, in_flight: int = 0, is_unhealthy: bool = False, missing: str = "", is_outlier: bool = False) -> Server:
    """A server in some state."""
    server = Server()
    server.in_flight, server.is_unhealthy, server.is_outlier = in_flight, is_unhealthy, is_outlier
    server.owed = in_flight * CALL_S
    server.missing = {missing} if missing else set()
    return server


@given(st.integers(1, 7), st.integers(1, 50))
def test_idle_servers_take_exact_turns(count: int, rounds: int) -> None:
    """Every one gets the same number of calls."""
    servers = [one() for _ in range(count)]
    chosen = Counter(servers.index(choose(servers, "m", turn, ()) or one()) for turn in range(count * rounds))
    assert {rounds} == set(chosen.values())


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 9),
    st.sampled_from([0.0, CALL_S]),
)  # fmt: skip
def test_the_choice_is_never_worse_than_another(facts: list[tuple[bool, bool, int]], turn: int, seconds: float) -> None:
    """Who answers goes first, then who has the model, then who is least busy; nobody is chosen twice for one call."""
    servers = [one(in_flight=count, is_unhealthy=ill, missing="m" if lacks else "") for ill, lacks, count in facts]

    def rank(server: Server) -> tuple[bool, bool, int]:
        return server.is_unhealthy, "m" in server.missing, server.in_flight

    tried: list[Server] = []
    while (found := choose(servers, "m", turn, tried, seconds=seconds)) is not None:
        assert rank(found) == min(rank(other) for other in servers if other not in tried)
        tried.append(found)
    assert len(servers) == len(tried)


class Pool:
    """Servers that each take one call after the other; ``slower`` times as long as they should."""

    def __init__(self, *slower: float) -> None:
        self.paces = Paces()
        self.servers = [Server() for _ in slower]
        self.slower = list(slower)
        self.now = 1.0

    def call(self, server: Server, rows: int = 20, *, is_probe: bool = False, gives_up: float = inf) -> Call:
        """Make a call there, alone."""
        call = self.paces.call("m", rows, rows * TOKENS)
        self.paces.begin(server, call, self.now)
        took = (CALL_S + ROW_S * rows) * self.slower[self.servers.index(server)]
        self.now += min(took, gives_up)
        self.paces.end(
            server, call, self.now, self.servers, was_answered=took < gives_up, is_probe=is_probe
        )  # fmt: skip
        return call

    def run(self, rounds: int, *rows: int) -> None:
        """Make calls at all of them in turn."""
        for _ in range(rounds):
            for server, count in zip(self.servers, rows or [20] * len(self.servers), strict=True):
                self.call(server, count)

    @property
    def outliers(self) -> list[int]:
        """Which of them do not share the calls."""
        return [number for number, server in enumerate(self.servers) if server.is_outlier]


def test_a_server_three_times_slower_is_out_after_some_calls() -> None:
    """And gets no more while the others have room."""
    pool = Pool(1, 3, 1, 1)
    pool.run(16)
    assert [1] == pool.outliers
    assert not any(choose(pool.servers, "m", turn, ()) is pool.servers[1] for turn in range(8))
    assert 3 == pytest.approx(spare(pool.servers), rel=0.35)


def test_a_server_that_gets_larger_calls_is_not_slow() -> None:
    """Four times the rows take three times as long: that is what such a call costs anywhere."""
    pool = Pool(1, 1, 1, 1)
    pool.run(50, 20, 20, 20, 200)
    assert [] == pool.outliers
    assert all(server.pace == 1.0 for server in pool.servers)


def test_a_server_with_a_queue_of_calls_is_not_slow() -> None:
    """Standing behind another call is nobody's slowness: here one always has three, the other one."""
    pool = Pool(1, 1)
    for _ in range(40):
        pool.call(pool.servers[0])
        calls = [pool.paces.call("m", 20, 20 * TOKENS) for _ in range(3)]
        for call in calls:
            pool.paces.begin(pool.servers[1], call, pool.now)
        for call in calls:
            pool.now += CALL_S + ROW_S * 20
            pool.paces.end(pool.servers[1], call, pool.now, pool.servers, was_answered=True)
    assert [] == pool.outliers


@pytest.mark.parametrize("slower", [(3, 3), (1, 3), (1, 3, 9), (3, 3, 3, 1), (1, 1, 3, 3, 9), (5,)])
def test_at_least_half_of_the_servers_share_the_calls(slower: tuple[float, ...]) -> None:
    """Whatever they take."""
    pool = Pool(*slower)
    pool.run(100)
    assert 2 * len(pool.outliers) <= len(slower)


def test_milliseconds_make_no_outlier() -> None:
    """A model that takes nearly no time: a server further away takes three times as long, and is as good."""
    pool = Pool(0.05, 0.15, 0.05)
    pool.run(50)
    assert [] == pool.outliers


def test_probes_let_a_server_back_in() -> None:
    """It is as fast as the others again; a probe a second tells, and few are enough."""
    pool = Pool(1, 3, 1, 1)
    pool.run(16)
    slow, pool.slower[1] = pool.servers[1], 1.0
    probes, began = 0, pool.now
    while slow.is_outlier:
        pool.now += 0.05
        if probed(pool.servers, "m", pool.now) is slow:
            pool.call(slow, is_probe=True)
            probes += 1
    assert probes <= 4
    assert pool.now - began < 5
    assert any(choose(pool.servers, "m", turn, ()) is slow for turn in range(8))


def test_a_server_that_stays_slow_stays_out_and_gets_few_probes() -> None:
    """A copy of a call costs it a sixteenth of its time at most."""
    pool = Pool(1, 30, 1, 1)
    pool.run(16)
    began, took = pool.now, 0.0
    while pool.now < began + 120:
        pool.now += 0.05
        if probed(pool.servers, "m", pool.now) is not None:
            before = pool.now
            pool.call(pool.servers[1], is_probe=True)
            took += pool.now - before
    assert [1] == pool.outliers
    assert took < 120 / 16


def test_probes_go_nowhere_without_the_model_or_health() -> None:
    """They would fail."""
    assert probed([one(), one(is_outlier=True, is_unhealthy=True), one(is_outlier=True, missing="m")], "m", 9.0) is None
    assert probed([one(), one(is_outlier=True, in_flight=1)], "m", 9.0) is None


def test_an_outlier_takes_a_call_when_the_others_have_enough() -> None:
    """One at a time."""
    slow = one(is_outlier=True)
    assert choose([one(in_flight=2), slow, one(in_flight=1)], "m", 1, ()) is not slow
    assert choose([one(in_flight=2), slow, one(in_flight=2)], "m", 1, ()) is slow
    slow.in_flight = 1
    assert choose([one(in_flight=2), slow, one(in_flight=2)], "m", 1, ()) is not slow
    assert inf == spare([slow, one()])


def test_an_outlier_is_called_if_nobody_else_has_the_model() -> None:
    """Slow is better than an error."""
    slow = one(is_outlier=True, in_flight=3)
    assert choose([one(missing="m"), slow, one(is_unhealthy=True)], "m", 1, ()) is slow


def test_a_server_whose_call_is_late_is_avoided() -> None:
    """It is expected to take as long again as it is late, so that an idle moment elsewhere is not waited for."""
    pool = Pool(1, 1)
    pool.run(20)
    stuck, other = pool.servers
    first, second = (pool.paces.call("m", 20, 20 * TOKENS) for _ in range(2))
    pool.paces.begin(stuck, first, pool.now)
    pool.now += 5 * CALL_S
    pool.paces.begin(other, second, pool.now)
    assert choose(pool.servers, "m", 0, (), seconds=second.seconds, now=pool.now) is other


def test_who_leaves_early_says_nothing_of_the_server() -> None:
    """A caller's two milliseconds make nobody fast or slow."""
    pool = Pool(1, 1)
    pool.run(20)
    before = [server.took for server in pool.servers]
    for _ in range(50):
        pool.call(pool.servers[0], gives_up=2e-3)
    assert before == [server.took for server in pool.servers]


def test_who_waits_in_vain_says_that_it_takes_longer() -> None:
    """Calls that are given up after five times their time were not answered in it."""
    pool = Pool(1, 50, 1)
    pool.run(1)
    for _ in range(40):
        for server in pool.servers:
            pool.call(server, gives_up=0.05)
    assert [1] == pool.outliers


def test_streams_count_and_are_timed_by_nobody() -> None:
    """Nobody knows how long text is generated."""
    pool = Pool(1, 1)
    pool.run(20)
    busy, other = pool.servers
    pool.paces.begin(busy, None, pool.now)
    pool.now += 100
    assert choose(pool.servers, "m", 0, ()) is other
    assert not busy.waits(pool.now)
    pool.paces.end(busy, None, pool.now, pool.servers, was_answered=False)
    assert (0, 0) == (busy.in_flight, busy.streams)


def test_models_that_nobody_calls_are_forgotten() -> None:
    """And a call of theirs that ends afterwards does no harm."""
    pool = Pool(1, 1)
    call = pool.paces.call("m", 1, 1)
    pool.paces.begin(pool.servers[0], call, pool.now)
    pool.paces.forget(())
    assert not pool.paces.end(pool.servers[0], call, pool.now + 1, pool.servers, was_answered=True)
    assert 0 == pool.servers[0].in_flight


GPU = Price("gpu", 22e-3, 0.5e-3, 0.0)
CAPACITY = 4 * 64 / GPU.seconds(64, 16)


def four(load: float, *last: Price, seconds: float = 3.0) -> OpenLoad:
    """What becomes of a load on four servers of which the last may have another price."""
    prices = [GPU, GPU, GPU, *(last or (GPU,))]
    return open_load(prices[0], MIXES["short"], load * CAPACITY, seconds=seconds, warm=3.0, others=prices[1:])


@pytest.fixture(scope="module")
def equal() -> OpenLoad:
    """What requests take with four equal servers at seven tenths of what they can do."""
    return four(0.7)


def test_one_of_four_three_times_slower_does_not_set_the_tail(equal: OpenLoad) -> None:
    """Three do the work of four, in fuller calls."""
    found = four(0.7, GPU.slower(3.0))
    assert found.answers >= 0.98 * equal.answers
    assert found.percentile(99) <= 1.3 * equal.percentile(99)


def test_one_of_four_that_pauses_does_not_set_the_tail(equal: OpenLoad) -> None:
    """Half a second every three: what it had when it stopped waits, and nothing else goes there."""
    found = four(0.7, Price("pausing", GPU.call, GPU.row, 0.0, pauses=(3.0, 0.5)), seconds=6.0)
    assert found.answers >= 0.98 * equal.answers
    assert found.percentile(98) <= 1.4 * equal.percentile(98)


def test_what_a_slow_server_can_do_is_not_given_up(equal: OpenLoad) -> None:
    """More is asked for than the three others can answer: the slow one helps, and nearly nobody is refused."""
    del equal
    found = four(0.8, GPU.slower(3.0))
    assert found.answers >= 0.95 * 0.8 * CAPACITY


def test_two_of_which_one_is_slow_answer_as_much_as_by_turns() -> None:
    """The fast one alone cannot carry it: what the slow one works on takes nobody's place, and its tail is no worse."""
    load = 0.6 * 2 * 64 / GPU.seconds(64, 16)
    by_turns, found = (
        open_load(GPU, MIXES["short"], load, seconds=4.0, warm=5.0, others=[GPU.slower(3.0)], is_plain=is_plain)
        for is_plain in (True, False)
    )
    assert found.answers >= 0.98 * by_turns.answers
    assert found.percentile(99) <= by_turns.percentile(99)
