"""Throughput and order of calls in simulated time, so the numbers are exact (``benchmarks.shared``)."""

from __future__ import annotations

import random

import pytest

from tests import simulated
from tests.simulated import MIXES, PRICES, Price, load

CALL, TOKEN = PRICES[:2]
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
def test_throughput_is_at_least_90_per_cent_of_two_full_calls_taking_turns(
    price: Price, mix: str, connections: int
) -> None:
    """With any price and without a setting. It is also near the best cut of each turn, except for short texts at a
    price per padded token: there the best cut has calls of one row, and the gateway cannot make that many calls.
    """
    answers = load(price, MIXES[mix], connections).answers
    assert answers >= 0.9 * simulated.bound(price, MIXES[mix], connections)
    if price is TOKEN:
        assert answers >= BEFORE[mix, connections]
    if price is not TOKEN or mix == "mixed":
        assert answers >= 0.85 * simulated.best(price, MIXES[mix], connections)


def test_prices_are_learned_even_if_all_calls_are_equally_full() -> None:
    """128 connections fill every call. The batcher still finds out that cutting calls by length is cheaper."""
    answers = load(TOKEN, MIXES["short"], 128, warm=6.0).answers
    assert answers >= 1.1 * simulated.bound(TOKEN, MIXES["short"], 128)


def test_a_very_fast_server_gets_no_small_calls() -> None:
    """The gateway's own time for each call counts then, so requests still share calls."""
    assert load(Price("instant", 50e-6, 1e-6, 0.0), MIXES["mixed"], 64).rows >= 16


def test_two_instances_of_a_model_are_both_used() -> None:
    """A server that works on two calls at a time gets two, and answers at least 1.05 times what one instance can."""
    two = Price("two instances", 4e-3, 50e-6, 0.0, at_once=2)
    assert load(two, MIXES["short"], 64).answers > 1.05 * simulated.bound(CALL, MIXES["short"], 64)


def test_lone_requests_leave_at_once() -> None:
    """With one connection, every call has one row and nothing is added to the time of wire, server and gateway."""
    cell = load(Price("exact", 4e-3, 50e-6, 0.0, noise=0.0), MIXES["short"], 1)
    assert cell.rows == 1
    own = simulated.REQUEST_S + simulated.CALL_S + 2 * simulated.WIRE_S + 4e-3 + 50e-6
    assert max(cell.seconds) == pytest.approx(own, abs=1e-6)


@pytest.mark.parametrize("price", PRICES, ids=lambda price: price.name)
def test_no_request_is_passed_over_for_long(price: Price) -> None:
    """Long texts are rare, but the oldest request is always in the next call: its worst time is a few turns."""

    def lengths(chance: random.Random) -> int:
        return 250 if chance.random() < 0.01 else chance.randint(8, 16)

    cell = load(price, lengths, 64)
    assert max(cell.seconds) < 8 * cell.p50
