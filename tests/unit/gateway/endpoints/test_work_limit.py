"""The controller of the limit of work in simulated time: alone against an ideal server, then under the real batcher."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from math import inf

import pytest

from benchmarks.shared.simulated import MIXES, OpenLoad, Price, open_load
from gateway.endpoints.entries import BatchLimits
from gateway.endpoints.work_limit import WorkLimit
from gateway.prices import Prices

CALL_S, ROW_S, TOKENS = 22e-3, 0.5e-3, 16
LIMITS = BatchLimits(max_rows=64)
FULL_S = CALL_S + 64 * ROW_S
GPU = Price("gpu", CALL_S, ROW_S, 0.0)
CAPACITY = 64 / FULL_S
LARGE = Price("large", 20e-3, 1.5e-3, 0.0)
LARGE_CAPACITY = 64 / LARGE.seconds(64, 0)


class Server:
    """Servers that take one call after the other each; as many callers as are let in keep them busy."""

    def __init__(self, seed: int = 1) -> None:
        self.prices = Prices()
        self.limit = WorkLimit(self.prices, LIMITS)
        self.now = 1.0
        self.servers = 1
        self.slower = 1.0
        self._chance = random.Random(seed)

    def learn(self) -> None:
        """Make calls of all sizes, as a gateway does before it is flooded."""
        for number in range(64):
            rows = 8 + number % 57
            self.prices.learn(rows, rows * TOKENS, 0.0, self._took(rows))

    def run(self, calls: int, *, wanted: int = 1024) -> float:
        """Make so many calls with ``wanted`` callers; return the answers per second of the second half."""
        began, rows_before, answered = 0.0, 0, 0
        for number in range(calls):
            if number == calls // 2:
                began, rows_before = self.now, answered
            room = wanted if self.limit.seconds == inf else int(self.limit.seconds / self.limit.work(1, TOKENS))
            held = min(wanted, max(room, 1))
            rows = max(min(held // (2 * self.servers), 64), 1)
            took = self._took(rows)
            self.now += took / self.servers
            answered += rows
            self.prices.learn(rows, rows * TOKENS, 0.0, took)
            self.limit.ended(self.now, rows, rows * TOKENS, held, held * TOKENS)
        return (answered - rows_before) / (self.now - began)

    def _took(self, rows: int) -> float:
        return self.slower * (CALL_S + ROW_S * rows) * max(self._chance.gauss(1.0, 0.05), 0.5)


@pytest.fixture
def server() -> Server:
    """One server whose prices are known."""
    found = Server()
    found.learn()
    return found


def test_it_settles_where_more_work_brings_no_more_answers(server: Server) -> None:
    """Two full calls are enough, whatever the callers want: hardly an answer less, and nobody waits for longer."""
    assert server.run(600) >= 0.94 * CAPACITY
    assert 1.7 * FULL_S < server.limit.seconds < 4 * FULL_S


def test_it_does_not_drift(server: Server) -> None:
    """After ten minutes of overload it is where it was."""
    for _ in range(6):
        server.run(2_000)
        assert 1.7 * FULL_S < server.limit.seconds < 4 * FULL_S
    assert server.now > 600


def test_what_is_not_used_up_says_nothing(server: Server) -> None:
    """At night the limit stays what it was by day."""
    server.run(600)
    server.run(12, wanted=20)  # the period that had begun
    limit = server.limit.seconds
    server.run(600, wanted=20)
    assert limit == server.limit.seconds


def test_without_much_work_there_is_no_limit(server: Server) -> None:
    """Nothing is known of what would be too much."""
    server.run(600, wanted=20)
    assert server.limit.seconds == inf


def test_more_servers_get_more_work(server: Server) -> None:
    """Found out by itself: what the limit passes grows with what comes of it."""
    server.run(600)
    before = server.limit.seconds
    server.servers = 3
    assert server.run(1200) >= 0.85 * 3 * CAPACITY
    assert server.limit.seconds > 2 * before


def test_a_server_that_gets_three_times_slower_gets_no_longer_queue(server: Server) -> None:
    """The same number of rows, which take three times as long: the time of two calls is what it was in calls."""
    server.run(600)
    server.slower = 3.0
    server.run(900)
    assert server.limit.seconds < 4 * 3 * FULL_S


def test_small_calls_that_are_all_alike_do_not_hold_it_down() -> None:
    """If all that was ever seen are calls of one row, nobody knows what larger ones cost: they are tried."""
    server = Server()
    server.limit.seconds = 2 * CALL_S
    for _ in range(2000):
        server.run(2)
    assert server.run(200) >= 0.85 * CAPACITY


@pytest.fixture(scope="module")
def calm() -> OpenLoad:
    """What requests take at four fifths of the capacity."""
    return open_load(GPU, MIXES["short"], 0.8 * CAPACITY, seconds=3.0, warm=3.0)


@pytest.mark.parametrize("times", [1.3, 4.0])
def test_under_the_batcher_goodput_stays_and_answers_stay_quick(calm: OpenLoad, times: float) -> None:
    """Arrivals at random that do not wait for answers."""
    found = open_load(GPU, MIXES["short"], times * CAPACITY, seconds=3.0, warm=4.0)
    assert found.answers >= 0.97 * CAPACITY
    assert found.percentile(99) <= 1.1 * calm.percentile(99)


@pytest.mark.parametrize("times", [2.0, 10.0])
def test_where_rows_are_dear_too_nobody_waits_for_more_than_the_call_in_front_and_its_own(times: float) -> None:
    """Whoever was let in as soon as a call had left waited for the whole of it."""
    calm = open_load(LARGE, MIXES["short"], 0.75 * LARGE_CAPACITY, seconds=6.0, warm=3.0)
    found = open_load(LARGE, MIXES["short"], times * LARGE_CAPACITY, seconds=6.0, warm=4.0, most=1024)
    assert found.answers >= 0.95 * LARGE_CAPACITY
    assert found.percentile(99) <= 1.4 * calm.percentile(99)


def test_hardly_anybody_is_refused_when_the_load_has_fallen() -> None:
    """From five times the capacity to four fifths of it, and the limit still holds."""
    found = open_load(GPU, MIXES["short"], 5 * CAPACITY, seconds=3.0, warm=6.0,
                 change=lambda now, _server: (5.0 if now < 6.0 else 0.8) * CAPACITY)  # fmt: skip
    assert found.refusals <= 0.02 * CAPACITY
    assert found.answers >= 0.75 * CAPACITY


def test_texts_of_all_lengths_do_not_upset_it() -> None:
    """On a GPU a row costs what it costs, however long it is padded: work is what the prices say, not tokens."""
    assert open_load(GPU, MIXES["mixed"], 2 * CAPACITY, seconds=3.0, warm=4.0).answers >= 0.94 * CAPACITY


@pytest.mark.parametrize("at_once", [1, pytest.param(4, marks=pytest.mark.long)])
def test_four_servers_have_all_of_their_goodput_and_short_waits(at_once: int) -> None:
    """Four Tritons, or one that works on four calls at a time: the next one that is free is nearer than with one."""
    price, others = replace(GPU, at_once=at_once), [GPU] * (3 if at_once == 1 else 0)
    calm = open_load(price, MIXES["short"], 0.8 * 4 * CAPACITY, seconds=2.0, warm=3.0, others=others)
    found = open_load(price, MIXES["short"], 2 * 4 * CAPACITY, seconds=2.0, warm=4.0, others=others)
    assert found.answers >= 0.95 * 4 * CAPACITY
    assert found.percentile(99) <= 1.5 * calm.percentile(99)


@pytest.mark.parametrize(
    "times", [pytest.param(1.3, marks=pytest.mark.long), pytest.param(2.0, marks=pytest.mark.long), 5.0]
)
def test_by_default_a_load_that_comes_at_once_is_held_to_short_waits(times: float) -> None:
    """From one moment to the next, in the middle of a quiet day: nothing is refused before, and of twelve seconds after
    it one in twenty answers at most takes longer than what the slowest took before.
    """
    calm = open_load(GPU, MIXES["short"], 0.8 * CAPACITY, seconds=6.0, warm=1.0, rule="auto", most=1024)
    assert not calm.refusals
    assert not calm.dropped
    found = open_load(GPU, MIXES["short"], 0.8 * CAPACITY, seconds=12.0, warm=4.0, rule="auto", most=1024,
                 change=lambda now, _server: (times if now >= 4.0 else 0.8) * CAPACITY)  # fmt: skip
    assert found.answers >= 0.95 * CAPACITY
    assert found.percentile(95) <= 1.1 * calm.percentile(99)
    assert found.percentile(99) <= 1.65 * calm.percentile(99)
    assert found.percentile(99.9) <= 0.45


def test_a_step_of_demand_beyond_the_capacity_is_over_within_a_second() -> None:
    """From four fifths of it to 1.4 times that, from one moment to the next: from then on 19 of 20 of every tenth of a
    second are answered within one and a half times what the slowest took before, and as many as can be are answered.
    """
    step = 10.0
    found = open_load(GPU, MIXES["short"], 0.8 * CAPACITY, seconds=14.0, warm=4.0, rule="auto", most=1024,
                 change=lambda now, _server: (1.12 if now >= step else 0.8) * CAPACITY)  # fmt: skip
    both = list(zip(found.sent, found.seconds, strict=True))
    calm = sorted(took for sent, took in both if sent < step - 0.5)
    within = 1.5 * calm[int(0.99 * len(calm))]
    windows = defaultdict(list)
    for sent, took in both:
        windows[int((sent - step) * 10)].append(took)
    late = [n for n, took in windows.items() if sum(one <= within for one in took) < 0.95 * len(took)]
    assert max(late, default=0) < 10
    assert sum(sent >= step for sent, _ in both) >= 0.93 * CAPACITY * 8.0


def rises(held: list[float]) -> list[bool]:
    """Whether work in hand is said to rise, at each of the calls that end every tenth of a second with so many floors
    of it in hand.
    """
    made = Server()
    made.learn()
    said = []
    for number, floors in enumerate([held[0]] * 30 + held):
        made.limit.ended(1.0 + number / 10, 64, 64 * TOKENS, int(floors * 64), int(floors * 64) * TOKENS)
        said.append(made.limit.is_rising)
    return said[30:]


def test_work_that_comes_at_once_and_stays_does_not_rise() -> None:
    """Five hundred callers begin to wait for their answers, in two tenths of a second."""
    assert not any(rises([0.5] * 10 + [4.0] + [8.0] * 40))


def test_work_that_goes_up_and_down_does_not_rise() -> None:
    """By one call, slowly and quickly: that much comes back when a call ends."""
    for period in (2, 5, 12, 30):
        assert not any(rises([4.0 + (number % period) / period for number in range(200)]))


@pytest.mark.parametrize(("by", "within"), [(0.9, 8), (0.25, 14), (0.12, 26)])
def test_work_that_becomes_more_and_more_rises(by: float, within: int) -> None:
    """The quicker it does, the sooner that is said."""
    said = rises([1.0] * 30 + [1.0 + by * number for number in range(40)])
    assert not any(said[:30])
    assert said[30 + within]
