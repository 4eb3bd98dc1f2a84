"""The limit of work in simulated time: first with an ideal server, then under the real batcher."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from math import inf

import pytest

from gateway.endpoints.entries import BatchLimits
from gateway.endpoints.work_limit import WorkLimit
from gateway.prices import Prices
from tests.simulated import MIXES, OpenLoad, Price, load, open_load

CALL_S, ROW_S, TOKENS = 22e-3, 0.5e-3, 16
LIMITS = BatchLimits(max_rows=64)
FULL_S = CALL_S + 64 * ROW_S
GPU = Price("gpu", CALL_S, ROW_S, 0.0)
CAPACITY = 64 / FULL_S
LARGE = Price("large", 20e-3, 1.5e-3, 0.0)
LARGE_CAPACITY = 64 / LARGE.seconds(64, 0)


class Server:
    """Servers that each work on one call after the other; callers within the limit keep them busy."""

    def __init__(self, seed: int = 1) -> None:
        self.prices = Prices()
        self.limit = WorkLimit(self.prices, LIMITS)
        self.now = 1.0
        self.servers = 1
        self.slower = 1.0
        self._chance = random.Random(seed)

    def learn(self) -> None:
        """Make calls of all sizes, as a gateway does before an overload."""
        for number in range(64):
            rows = 8 + number % 57
            self.prices.learn(rows, rows * TOKENS, 0.0, self._took(rows))

    def run(self, calls: int, *, wanted: int = 1024) -> float:
        """Make ``calls`` calls with ``wanted`` callers; return the answers per second of the second half."""
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


def test_the_limit_settles_where_more_work_brings_no_more_answers(server: Server) -> None:
    """Two full calls are enough for nearly all answers, however many callers there are, so waits stay short."""
    assert server.run(600) >= 0.94 * CAPACITY
    assert 1.7 * FULL_S < server.limit.seconds < 4 * FULL_S


def test_the_limit_does_not_drift(server: Server) -> None:
    """After ten minutes of overload it is still in the same range."""
    for _ in range(6):
        server.run(2_000)
        assert 1.7 * FULL_S < server.limit.seconds < 4 * FULL_S
    assert server.now > 600


def test_a_limit_that_is_not_used_up_does_not_change(server: Server) -> None:
    """At night the limit stays what it was by day."""
    server.run(600)
    server.run(12, wanted=20)  # the period that had begun
    limit = server.limit.seconds
    server.run(600, wanted=20)
    assert limit == server.limit.seconds


def test_without_enough_work_there_is_no_limit(server: Server) -> None:
    """The effect of more work is not known."""
    server.run(600, wanted=20)
    assert server.limit.seconds == inf


def test_more_servers_get_more_work(server: Server) -> None:
    """The limit grows, because more work brings more answers."""
    server.run(600)
    before = server.limit.seconds
    server.servers = 3
    assert server.run(1200) >= 0.85 * 3 * CAPACITY
    assert server.limit.seconds > 2 * before


def test_a_server_that_becomes_three_times_slower_gets_no_longer_queue(server: Server) -> None:
    """The same number of rows may be in hand, and they take three times as long."""
    server.run(600)
    server.slower = 3.0
    server.run(900)
    assert server.limit.seconds < 4 * 3 * FULL_S


def test_the_limit_rises_even_if_all_calls_so_far_had_one_row() -> None:
    """The cost of larger calls is unknown, so the limit lets them be tried."""
    server = Server()
    server.limit.seconds = 2 * CALL_S
    for _ in range(2000):
        server.run(2)
    assert server.run(200) >= 0.85 * CAPACITY


@pytest.fixture(scope="module")
def calm() -> OpenLoad:
    """The times of answers at four fifths of the capacity."""
    return open_load(GPU, MIXES["short"], 0.8 * CAPACITY, seconds=3.0, warm=3.0)


@pytest.mark.parametrize("times", [1.3, 4.0])
def test_in_an_overload_goodput_stays_high_and_answers_stay_quick(calm: OpenLoad, times: float) -> None:
    """Under the real batcher; requests arrive at random and do not wait for answers."""
    found = open_load(GPU, MIXES["short"], times * CAPACITY, seconds=3.0, warm=4.0)
    assert found.answers >= 0.97 * CAPACITY
    assert found.percentile(99) <= 1.1 * calm.percentile(99)


@pytest.mark.parametrize("times", [2.0, 10.0])
def test_if_rows_are_expensive_requests_wait_only_for_the_call_in_front_and_their_own(times: float) -> None:
    """Without the admission window, admitted requests would wait for one more whole call."""
    calm = open_load(LARGE, MIXES["short"], 0.75 * LARGE_CAPACITY, seconds=6.0, warm=3.0)
    found = open_load(LARGE, MIXES["short"], times * LARGE_CAPACITY, seconds=6.0, warm=4.0, most=1024)
    assert found.answers >= 0.95 * LARGE_CAPACITY
    assert found.percentile(99) <= 1.4 * calm.percentile(99)


def test_hardly_any_request_is_refused_after_the_load_has_fallen() -> None:
    """From five times the capacity to four fifths of it, while the limit is still in force."""
    found = open_load(GPU, MIXES["short"], 5 * CAPACITY, seconds=3.0, warm=6.0,
                 change=lambda now, _server: (5.0 if now < 6.0 else 0.8) * CAPACITY)  # fmt: skip
    assert found.refusals <= 0.02 * CAPACITY
    assert found.answers >= 0.75 * CAPACITY


def test_texts_of_mixed_lengths_keep_the_goodput() -> None:
    """On a GPU a row costs the same at any padded length. The limit counts work by price, not by tokens."""
    assert open_load(GPU, MIXES["mixed"], 2 * CAPACITY, seconds=3.0, warm=4.0).answers >= 0.94 * CAPACITY


@pytest.mark.parametrize("at_once", [1, pytest.param(4, marks=pytest.mark.long)])
def test_four_servers_keep_their_goodput_and_waits_stay_short(at_once: int) -> None:
    """Four Tritons, or one that works on four calls at a time: the next one is free sooner than with one server."""
    price, others = replace(GPU, at_once=at_once), [GPU] * (3 if at_once == 1 else 0)
    calm = open_load(price, MIXES["short"], 0.8 * 4 * CAPACITY, seconds=2.0, warm=3.0, others=others)
    found = open_load(price, MIXES["short"], 2 * 4 * CAPACITY, seconds=2.0, warm=4.0, others=others)
    assert found.answers >= 0.95 * 4 * CAPACITY
    assert found.percentile(99) <= 1.5 * calm.percentile(99)


@pytest.mark.parametrize(
    "times", [pytest.param(1.3, marks=pytest.mark.long), pytest.param(2.0, marks=pytest.mark.long), 5.0]
)
def test_by_default_waits_stay_short_after_a_sudden_overload(times: float) -> None:
    """Nothing is refused at the load before it. In the twelve seconds after it, at most one answer in twenty takes
    longer than 1.1 times the former p99.
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


def test_one_second_after_a_step_of_demand_beyond_the_capacity_answers_are_quick_again() -> None:
    """From 0.8 to 1.12 times the capacity. From then on, in every tenth of a second, 19 of 20 answers take at most 1.5
    times the former p99, and goodput stays at 93 % of the capacity.
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


COSTLY = Price("a model on a CPU", 1e-3, 0.0, 0.23e-3)
"""A sentence takes 5 ms, so that one call worth making has one or two rows."""


def sentence(chance: random.Random) -> int:
    """Return the tokens of a text."""
    return chance.randint(17, 28)


@pytest.mark.parametrize(("callers", "pause"), [(16, 0.02), (64, 5e-4), (64, 0.4)])
def test_callers_who_wait_for_their_answers_are_not_refused_if_rows_are_costly(callers: int, pause: float) -> None:
    """They do not become more, though the work in hand goes up and down by several floors."""
    found = load(COSTLY, sentence, callers, seconds=12.0, warm=1.0, pause=pause, rule="auto", seed=2)
    assert found.refusals == 0


def test_random_arrivals_below_the_capacity_are_not_refused_if_rows_are_costly() -> None:
    """A queue that grows for a moment is no overload; one that grows on is."""
    capacity = load(COSTLY, sentence, 64, seconds=5.0).answers
    calm = open_load(COSTLY, sentence, 0.8 * capacity, seconds=30.0, warm=1.0, rule="auto", most=1024)
    assert not calm.refusals
    assert not calm.dropped
    step = 6.0
    found = open_load(COSTLY, sentence, 0.8 * capacity, seconds=14.0, warm=1.0, rule="auto", most=1024,
                 change=lambda now, _server: (1.5 if now >= step else 0.8) * capacity)  # fmt: skip
    late = sorted(took for sent, took in zip(found.sent, found.seconds, strict=True) if sent >= step + 2.0)
    assert late[int(0.95 * len(late))] < 0.1
    assert found.answers >= 0.85 * capacity


def rises(held: list[float], every: float = 0.1) -> list[bool]:
    """Return whether work is reported to rise at each call; calls end ``every`` seconds, with ``held`` floors of work
    in hand.
    """
    made = Server()
    made.learn()
    said = []
    for number, floors in enumerate([held[0]] * 30 + held):
        made.limit.ended(1.0 + number * every, 64, 64 * TOKENS, int(floors * 64), int(floors * 64) * TOKENS)
        said.append(made.limit.is_rising)
    return said[30:]


def test_work_that_arrives_at_once_and_stays_is_not_rising() -> None:
    """Five hundred callers begin to wait for their answers within 0.2 s."""
    assert not any(rises([0.5] * 10 + [4.0] + [8.0] * 40))


def test_work_that_goes_up_and_down_is_not_rising() -> None:
    """By one call, slowly and quickly: the end of a call takes it away again."""
    for period in (2, 5, 12, 30):
        assert not any(rises([4.0 + (number % period) / period for number in range(200)]))


@pytest.mark.parametrize(("by", "within"), [(0.9, 8), (0.25, 14), (0.12, 26)])
def test_work_that_grows_steadily_is_rising(by: float, within: int) -> None:
    """The faster it grows, the sooner that is reported."""
    said = rises([1.0] * 30 + [1.0 + by * number for number in range(40)])
    assert not any(said[:30])
    assert said[30 + within]


@pytest.mark.parametrize(("every", "is_enough"), [(0.2, True), (0.1, False)])
def test_three_growing_notes_are_enough_if_they_take_half_a_second(every: float, is_enough: bool) -> None:
    """Behind the calls of many other gateways, few calls end."""
    assert is_enough is rises([1.0, 2.0, 3.0, 4.0], every)[-1]
