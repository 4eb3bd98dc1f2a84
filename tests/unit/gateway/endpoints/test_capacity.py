"""What the servers of a batcher can take: how many calls at a time, how large, and what they cost."""

from __future__ import annotations

import pytest

from gateway.endpoints.calls import CallInFlight
from gateway.endpoints.capacity import Capacity, OneServer
from gateway.endpoints.entries import BatchLimits, Entry, Gateways
from gateway.prices import Prices
from tests.simulated import Row
from tests.unit.gateway.endpoints.units import MAX_ROWS, TOKENS, FixedPrices, Units


def call(started: float, rows: int = 1) -> CallInFlight:
    """A call of ``rows`` rows."""
    return CallInFlight([Entry([Row(10)] * rows, 60.0)], started)


def test_one_server_is_serial_if_a_call_waits_for_the_one_in_front() -> None:
    """From a queueing share of 0.7 on, measured in 16 calls or more."""
    assert Units(queueing=0.7, calls=16).capacity.is_serial
    assert not Units(queueing=0.69).capacity.is_serial
    assert not Units(calls=15).capacity.is_serial


def test_beside_other_gateways_a_lower_queueing_share_makes_a_server_serial() -> None:
    """The calls of other gateways blur the measurement."""
    assert Units(queueing=0.55, gateways=2).capacity.is_serial
    assert not Units(queueing=0.54, gateways=2).capacity.is_serial


@pytest.mark.parametrize(("instances", "is_serial"), [(1, True), (2, False)])
def test_beside_other_gateways_what_a_server_says_of_itself_decides_whether_it_is_serial(
    instances: int, is_serial: bool
) -> None:
    """Four gateways measured a server of one call at a time as one of several."""
    limits = BatchLimits(MAX_ROWS, gateways=Gateways(4), instances=instances, merges_lengths=False)
    assert is_serial is Capacity(Prices(), limits, OneServer()).is_serial


def test_a_split_call_ends_as_soon_after_the_one_in_front_as_the_quickest_lately() -> None:
    """Some of the last calls waited for those of other gateways; the next call should rather be early."""
    capacity = Units(gateways=2).capacity
    capacity.split_calls(is_on=True)
    for number, seconds in enumerate((0.19, 0.12, 0.21)):
        capacity.learn(call(float(number)), number + seconds)
    front, behind = call(10.0), call(10.05)
    behind.front = front
    assert capacity.expected_end(front) == pytest.approx(10.12)
    assert capacity.expected_end(behind) == pytest.approx(10.24)


def test_several_servers_are_not_serial() -> None:
    """A call can go to the next server instead of waiting."""
    assert not Units(servers=2).capacity.is_serial


def test_a_server_beside_an_outlier_is_not_serial() -> None:
    """The work that the outlier takes would be refused otherwise."""
    units = Units()
    units.servers.times_slower = 5.0
    assert not units.capacity.is_serial


def test_below_a_queueing_share_of_a_third_a_server_works_on_several_calls_at_a_time() -> None:
    """As many as may be in flight; otherwise it works on one."""
    parallel, serial = Units(queueing=0.33).capacity, Units(queueing=0.34).capacity
    assert (parallel.is_parallel, parallel.concurrency) == (True, 2)
    assert (serial.is_parallel, serial.concurrency) == (False, 1)


def test_concurrency_grows_with_the_servers() -> None:
    """Each server adds the calls that it works on at a time."""
    assert Units(servers=3).capacity.concurrency == 3
    assert Units(servers=3, queueing=0.0).capacity.concurrency == 6


def test_split_calls_have_this_gateways_share_of_the_rows() -> None:
    """Three gateways: 3 of 10 rows each; the limits are restored afterwards."""
    capacity = Units(gateways=3).capacity
    capacity.split_calls(is_on=True)
    assert capacity.is_split
    assert (capacity.limits.max_rows, capacity.full_limits.max_rows) == (MAX_ROWS // 3, MAX_ROWS)
    capacity.split_calls(is_on=False)
    assert not capacity.is_split
    assert capacity.limits.max_rows == MAX_ROWS


def test_a_split_call_has_at_least_one_row() -> None:
    """Even if there are more gateways than rows in a call."""
    capacity = Units(gateways=50).capacity
    capacity.split_calls(is_on=True)
    assert capacity.limits.max_rows == 1


@pytest.mark.parametrize(
    "units", [Units(gateways=1), Units(gateways=3, servers=2), Units(gateways=3, queueing=0.2)],
    ids=["one gateway", "two servers", "a parallel server"],
)  # fmt: skip
def test_calls_are_split_only_by_several_gateways_at_one_serial_server(units: Units) -> None:
    """Otherwise the server does not merge the calls of the gateways into one."""
    units.capacity.split_calls(is_on=True)
    assert not units.capacity.is_split


def test_calls_that_no_server_merges_are_not_split() -> None:
    """Small calls would each cost the price of a call."""
    limits = BatchLimits(MAX_ROWS, gateways=Gateways(3), merges_calls=False)
    capacity = Capacity(Units().capacity.prices, limits, OneServer())
    assert capacity.is_serial
    capacity.split_calls(is_on=True)
    assert not capacity.is_split


def test_shortened_calls_lose_four_per_cent_of_the_answers_at_most() -> None:
    """Ten rows take 10 ms and eight 8.2 ms: 1,000 and 976 rows per second. Seven would lose 4.1 %."""
    capacity = Units().capacity
    capacity.prices = FixedPrices(1.0, 100, call=1e-3, row=0.9e-3)
    capacity.shorten_calls(TOKENS)
    assert (capacity.limits.max_rows, capacity.full_limits.max_rows) == (8, MAX_ROWS)


def test_calls_are_not_shortened_if_that_hardly_makes_them_shorter() -> None:
    """Half of a call's time is its fixed price: 96 % of the answers need 9.2 of 10 rows, and 96 % of the time."""
    capacity = Units().capacity
    capacity.shorten_calls(TOKENS)
    assert capacity.limits is capacity.full_limits
    capacity.lengthen_calls()
    assert capacity.limits is capacity.full_limits


def test_a_shortened_call_has_half_of_the_size_of_a_full_one_at_least() -> None:
    """Even if calls have no price of their own; rows and padded tokens alike."""
    capacity = Units(max_padded_tokens=60).capacity
    capacity.prices = FixedPrices(1.0, 100, call=0.0, row=0.0, token=1e-3)
    capacity.shorten_calls(TOKENS)
    assert (capacity.limits.max_rows, capacity.limits.max_padded_tokens) == (MAX_ROWS // 2, 30)


@pytest.mark.parametrize("units", [Units(servers=2), Units(queueing=0.2)], ids=["two servers", "a parallel server"])
def test_calls_are_shortened_only_at_one_serial_server(units: Units) -> None:
    """Elsewhere a call need not wait for the one in front."""
    units.capacity.shorten_calls(TOKENS)
    assert units.capacity.limits is units.capacity.full_limits


def test_split_calls_are_not_shortened() -> None:
    """The server merges them into one call with those of other gateways."""
    capacity = Units(gateways=3).capacity
    capacity.split_calls(is_on=True)
    capacity.shorten_calls(TOKENS)
    capacity.lengthen_calls()
    assert capacity.limits.max_rows == MAX_ROWS // 3


def test_while_calls_are_split_the_server_counts_as_serial() -> None:
    """A server that merges calls ends several at once, which would look parallel."""
    capacity = Units(gateways=2).capacity
    capacity.split_calls(is_on=True)
    capacity.prices = FixedPrices(queueing=0.0, calls=100)
    assert capacity.is_serial
    assert capacity.concurrency == 1


def test_the_quickest_of_the_last_16_calls_bounds_the_next_one() -> None:
    """An older call does not count."""
    capacity = Units().capacity
    assert capacity.quickest_call(0.0) == 0.0
    capacity.learn(call(0.0), 0.01)
    for number in range(15):
        capacity.learn(call(0.1), 0.13 + number / 1000)
    assert capacity.quickest_call(0.2) == pytest.approx(0.01)
    capacity.learn(call(0.1), 0.2)
    assert capacity.quickest_call(0.2) == pytest.approx(0.03)


def test_the_quickest_call_is_forgotten_one_second_after_the_last_call() -> None:
    """Otherwise it could refuse every request, and no call would correct it."""
    capacity = Units().capacity
    capacity.learn(call(0.0), 0.01)
    assert capacity.quickest_call(1.0) == pytest.approx(0.01)
    assert capacity.quickest_call(1.02) == 0.0


def test_the_first_64_calls_are_all_learned_and_then_one_in_5_ms() -> None:
    """Learning takes some microseconds of the event loop."""
    prices = Prices()
    capacity = Capacity(prices, BatchLimits(), OneServer())
    for number in range(70):
        capacity.learn(call(number * 1e-4), number * 1e-4 + 0.01)
    assert prices.calls == 65
    capacity.learn(call(0.02), 0.03)
    assert prices.calls == 66


def test_a_split_call_that_the_server_merged_with_the_one_in_front_is_not_learned() -> None:
    """It ended with the call in front, so its own time is unknown."""
    capacity = Units(gateways=2).capacity
    capacity.split_calls(is_on=True)
    for front_ended, learned in ((0.0199, 0), (0.01, 1)):
        before = capacity.prices.calls
        made = call(0.0)
        made.front_ended = front_ended
        capacity.learn(made, 0.02)
        assert capacity.prices.calls - before == learned
