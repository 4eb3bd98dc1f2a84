"""Prices of calls are learned and followed under noise, pauses and changes, and if the calls hardly differ."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prices import Prices


@dataclass
class World:
    """Calls of a server with these prices. A share of ``pauses`` of them takes 50 ms more."""

    call: float
    row: float
    token: float
    queueing: float = 1.0
    noise: float = 0.05
    pauses: float = 0.0
    shortest: int = 8
    longest: int = 200

    def seconds(self, rows: int, tokens: int) -> float:
        """Return the duration of a call without noise."""
        return self.call + self.row * rows + self.token * tokens

    def teach(self, prices: Prices, calls: int, seed: int = 1) -> Prices:
        """Let ``prices`` learn from this many calls."""
        chance = random.Random(seed)
        for _ in range(calls):
            rows = chance.randint(1, 64)
            tokens = rows * chance.randint(self.shortest, self.longest)
            behind = chance.random() * self.seconds(rows, tokens) / 2
            took = self.seconds(rows, tokens) * max(chance.gauss(1, self.noise), 0.3) + self.queueing * behind
            prices.learn(rows, tokens, behind, took + 0.05 * (chance.random() < self.pauses))
        return prices


WORLDS = {
    "a price per call": World(4e-3, 5e-5, 0.0),
    "a price per padded token": World(0.0, 0.0, 1e-5),
    "both": World(2e-3, 2e-5, 5e-6),
    "slow": World(0.5, 5e-3, 1e-4),
    "fast": World(1e-4, 2e-6, 1e-8),
    "noise and pauses": World(4e-3, 5e-5, 2e-6, noise=0.2, pauses=0.05),
    "several instances": World(2e-3, 2e-5, 5e-6, queueing=0.0),
}


@pytest.mark.parametrize("name", WORLDS)
def test_prices_are_learned(name: str) -> None:
    """At any scale. The error is within a tenth of the call's duration or of an average call's; under noise more."""
    world, error = WORLDS[name], 0.1 if name != "noise and pauses" else 0.3
    prices = world.teach(Prices(), 400)
    middle = world.seconds(16, 16 * 64)
    for rows in (1, 16, 64):
        for length in (8, 64, 200):
            expected = world.seconds(rows, rows * length)
            assert prices.expect(rows, rows * length) == pytest.approx(expected, rel=error, abs=error * middle)
    assert prices.queueing == pytest.approx(world.queueing, abs=0.25)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_price_that_changes_is_followed(factor: float) -> None:
    """Another model on the same GPU, or a faster GPU: learned again after some hundred calls."""
    before = WORLDS["both"]
    after = World(before.call * factor, before.row * factor, before.token * factor)
    prices = after.teach(before.teach(Prices(), 500), 400, seed=2)
    assert prices.expect(32, 32 * 60) == pytest.approx(after.seconds(32, 32 * 60), rel=0.15)


def test_prices_that_calls_do_not_distinguish_stay_stable() -> None:
    """If all texts have one length, rows and tokens are the same, even after 10,000 calls. Other lengths help."""
    world = World(4e-3, 5e-5, 1e-6, shortest=16, longest=16)
    prices = world.teach(Prices(), 200)
    row, token = prices.row, prices.token
    world.teach(prices, 10_000, seed=2)
    assert prices.expect(40, 640) == pytest.approx(world.seconds(40, 640), rel=0.1)
    assert abs(prices.token - token) * 16 + abs(prices.row - row) < 6.6e-5
    World(4e-3, 5e-5, 1e-6).teach(prices, 400, seed=3)
    assert prices.expect(40, 40 * 150) == pytest.approx(4e-3 + 40 * 5e-5 + 6000 * 1e-6, rel=0.15)


def test_a_few_smaller_calls_tell_the_prices() -> None:
    """From calls of 64 rows alone, prices cannot be derived. A few of 32 rows are enough."""
    prices = Prices()
    for _ in range(300):
        prices.learn(64, 1500, 0.0, 0.01)
    for turn in range(300):
        rows = 32 if turn % 4 == 0 else 64
        prices.learn(rows, rows * 24, 0.0, 0.002 + rows * 1e-4)
    assert prices.call == pytest.approx(0.002, rel=0.1)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(0, 100_000), st.floats(0, 10), st.floats(0, 100)),
        min_size=1, max_size=80,
    )
)  # fmt: skip
def test_prices_are_never_negative_and_always_numbers(calls: list[tuple[int, int, float, float]]) -> None:
    """For any measurement: a stopped clock, hours, no tokens."""
    prices = Prices()
    for rows, tokens, behind, took in calls:
        prices.learn(rows, tokens, behind, took)
        for value in (prices.call, prices.row, prices.token, prices.queueing):
            assert 0 <= value < float("inf")
        assert prices.queueing <= 1
        assert 0 < prices.spread < 1e9


MEASURED = json.loads((Path(__file__).parents[3] / "benchmarks/results/gpu-prices.json").read_text())["models"]
"""Encoder → milliseconds of its calls on a real GPU, by rows and padded length."""


@pytest.mark.parametrize("model", MEASURED)
def test_prices_fit_calls_of_a_real_gpu(model: str) -> None:
    """Of 35 sizes of calls, half are expected to within 5 % of what an H200 takes, nine in ten to within an eighth."""
    took = {}
    for size, milliseconds in MEASURED[model]["ms"].items():
        rows, length = map(int, size.split("x"))
        took[rows, rows * length] = milliseconds / 1e3
    chance, prices = random.Random(1), Prices()
    for _ in range(600):
        (rows, tokens), seconds = chance.choice(list(took.items()))
        prices.learn(rows, tokens, 0.0, seconds)
    errors = sorted(abs(prices.expect(*size) - seconds) / seconds for size, seconds in took.items())
    assert errors[len(errors) // 2] < 0.05
    assert errors[len(errors) * 9 // 10] < 0.125
