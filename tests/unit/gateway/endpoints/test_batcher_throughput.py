"""Throughput and order of calls in simulated time: exact numbers, no machine in between (``benchmarks.shared``)."""

from __future__ import annotations

import random

import pytest

from benchmarks.shared import simulated
from benchmarks.shared.simulated import MIXES, PRICES, Price, load

CALL, TOKEN, BOTH = PRICES
BEFORE = {
    ("short", 16): 4098, ("short", 64): 4240, ("short", 256): 5169, ("mixed", 16): 1792, ("mixed", 64): 1775,
    ("mixed", 256): 1739,
}  # fmt: skip
"""Answers per second at a price per padded token with a fixed share of padding per call, simulated alike."""


@pytest.mark.parametrize(
    "connections", [pytest.param(16, marks=pytest.mark.long), 64, pytest.param(256, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("price", PRICES, ids=lambda price: price.name)
def test_throughput_is_nine_tenths_of_two_full_calls_taking_turns(price: Price, mix: str, connections: int) -> None:
    """Whatever a call's time goes with, without a setting; and near the best cut of each turn, but for short texts at a
    price per padded token: there the best cut has calls of one row, which the gateway cannot make in no time.
    """
    answers = load(price, MIXES[mix], connections).answers
    assert answers >= 0.9 * simulated.bound(price, MIXES[mix], connections)
    if price is TOKEN:
        assert answers >= BEFORE[mix, connections]
    if price is not TOKEN or mix == "mixed":
        assert answers >= 0.85 * simulated.best(price, MIXES[mix], connections)


def test_calls_that_are_all_full_do_not_hide_what_costs() -> None:
    """128 connections fill every call alike: that they should rather be cut by length is found out all the same."""
    answers = load(TOKEN, MIXES["short"], 128, warm=6.0).answers
    assert answers >= 1.1 * simulated.bound(TOKEN, MIXES["short"], 128)


def test_a_server_that_costs_next_to_nothing_gets_no_small_calls() -> None:
    """There the gateway's own time per call is what counts: requests still go together."""
    assert load(Price("instant", 50e-6, 1e-6, 0.0), MIXES["mixed"], 64).rows >= 16


def test_two_instances_of_a_model_are_both_used() -> None:
    """A server that takes two calls at a time gets two: half as many again as one alone could answer, at least."""
    two = Price("two instances", 4e-3, 50e-6, 0.0, at_once=2)
    assert load(two, MIXES["short"], 64).answers > 1.1 * simulated.bound(CALL, MIXES["short"], 64)


def test_lone_requests_leave_at_once() -> None:
    """One connection: every call has one row, and nothing is added to wire, server and the gateway's own time."""
    cell = load(Price("exact", 4e-3, 50e-6, 0.0, noise=0.0), MIXES["short"], 1)
    assert cell.rows == 1
    own = simulated.REQUEST_S + simulated.CALL_S + 2 * simulated.WIRE_S + 4e-3 + 50e-6
    assert max(cell.seconds) == pytest.approx(own, abs=1e-6)


@pytest.mark.parametrize("price", PRICES, ids=lambda price: price.name)
def test_nobody_is_passed_over(price: Price) -> None:
    """Long texts are as rare as can be, and the oldest always leaves: their worst time is a few turns."""

    def lengths(chance: random.Random) -> int:
        return 250 if chance.random() < 0.01 else chance.randint(8, 16)

    cell = load(price, lengths, 64)
    assert max(cell.seconds) < 8 * cell.p50
