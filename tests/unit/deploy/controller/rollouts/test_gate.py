"""The gate with simulated, seeded canaries: how often it is wrong, and how soon it finds a fault."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.controller.plain import plain, read
from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import DOUBT, Gate
from gateway.metrics.catalog import LATENCY_BUCKETS

BASE_ERRORS = 0.003


class Traffic:
    """Requests of two versions behind one canary: failures and latencies drawn from one seeded source."""

    def __init__(self, seed, *, weight, errors=BASE_ERRORS, slowdown=1.0, batch=40):
        self.random = np.random.default_rng(seed)
        self.weight, self.errors, self.slowdown, self.batch = weight, errors, slowdown, batch

    def _counts(self, requests, errors, slowdown):
        failures = int(self.random.binomial(requests, errors))
        latencies = slowdown * self.random.lognormal(np.log(0.012), 0.5, requests - failures)
        latencies.sort()
        beyond = len(latencies) - np.searchsorted(latencies, LATENCY_BUCKETS, side="right")
        return Counts(requests, failures, len(latencies), dict(zip(LATENCY_BUCKETS, beyond.tolist(), strict=True)))

    def interval(self):
        """About ``batch`` requests."""
        canary = int(self.random.binomial(self.batch, self.weight))
        return (
            self._counts(canary, self.errors, self.slowdown),
            self._counts(self.batch - canary, BASE_ERRORS, 1.0),
        )


def canary_requests_until_bad(traffic, most):
    """Return the canary requests until the gate rolls back; None if it does not within ``most``."""
    gate = Gate()
    while gate.canary.requests < most:
        gate = gate.after(*traffic.interval())
        if gate.is_bad:
            return gate.canary.requests
    return None


@pytest.mark.parametrize("weight", [pytest.param(0.05, marks=pytest.mark.long), 0.5])
def test_healthy_canaries_are_rolled_back_in_one_run_of_a_hundred_at_most(weight):
    """200 runs of 5 000 canary requests each, evaluated after every interval."""
    runs = [canary_requests_until_bad(Traffic(s, weight=weight, batch=round(50 / weight)), 5_000) for s in range(200)]
    rolled_back = sum(run is not None for run in runs)
    print(f"healthy at weight {weight:.0%}: {rolled_back} of {len(runs)} rolled back")
    assert rolled_back / len(runs) <= 0.01


SEEDED = [
    ("5 % errors", 0.05, {"errors": 0.05}, 300),
    ("5 % errors", 0.25, {"errors": 0.05}, 300),
    ("5 % errors", 0.5, {"errors": 0.05}, 300),
    ("20 % errors", 0.05, {"errors": 0.2}, 75),
    ("20 % errors", 0.5, {"errors": 0.2}, 100),
    ("+50 % p99", 0.05, {"slowdown": 1.5}, 300),
    ("+50 % p99", 0.25, {"slowdown": 1.5}, 300),
    ("+50 % p99", 0.5, {"slowdown": 1.5}, 600),
    pytest.param("1 % errors", 0.25, {"errors": 0.01}, 4_000, marks=pytest.mark.long),
    ("2 % errors", 0.05, {"errors": 0.02}, 1_000),
    ("+30 % latency", 0.05, {"slowdown": 1.3}, 600),
    ("+30 % latency", 0.25, {"slowdown": 1.3}, 1_000),
    ("+40 % latency", 0.05, {"slowdown": 1.4}, 400),
    ("+40 % latency", 0.25, {"slowdown": 1.4}, 600),
]


@pytest.mark.parametrize(("name", "weight", "fault", "within"), SEEDED, ids=lambda v: str(v) if v is not None else "")
def test_bad_canaries_are_found(name, weight, fault, within):
    """Every one of 50 seeded runs; the median stays below the stated number of canary requests."""
    batch = max(4, round(10 / weight))
    runs = [canary_requests_until_bad(Traffic(s, weight=weight, batch=batch, **fault), 20_000) for s in range(50)]
    assert None not in runs
    print(f"{name} at weight {weight:.0%}: median {median(runs):.0f}, slowest {max(runs)} canary requests")
    assert median(runs) <= within


def test_a_canary_that_turns_bad_late_is_found():
    """After 20 000 healthy canary requests a quarter's 5 % errors are found within 600."""
    found = []
    for seed in range(20):
        gate, traffic = Gate(), Traffic(seed, weight=0.25, batch=200)
        while gate.canary.requests < 20_000:
            gate = gate.after(*traffic.interval())
        traffic.errors = 0.05
        start = gate.canary.requests
        while not gate.is_bad:
            gate = gate.after(*traffic.interval())
        found.append(gate.canary.requests - start)
    assert median(found) <= 600


def test_a_bad_hour_for_everybody_proves_nothing():
    """Triton is overloaded, and one request in three fails on both sides."""
    gate, traffic = Gate(), Traffic(3, weight=0.25)
    for _ in range(400):
        canary, stable = traffic.interval()
        gate = gate.after(
            Counts(canary.requests, int(traffic.random.binomial(canary.requests, 0.33))),
            Counts(stable.requests, int(traffic.random.binomial(stable.requests, 0.33))),
        )
    assert gate.evidence < DOUBT


def test_one_failure_among_few_requests_is_no_evidence():
    """Thirty requests, one failed: a fixed rule of 99 % would have rolled back."""
    gate = Gate().after(Counts(30, 1), Counts(270, 1))
    assert gate.evidence < DOUBT


def test_without_stable_traffic_nothing_is_concluded():
    """Nor without mirrored requests: nothing can be compared."""
    assert 1 == Gate(other_answers=0.1).after(Counts(100, 100), Counts()).evidence


def test_latency_is_compared_at_stables_own_quantiles():
    """The bounds come from stable's histogram: near its median, 12 ms, and at its slow end."""
    gate, traffic = Gate(), Traffic(1, weight=0.25)
    for _ in range(20):
        gate = gate.after(*traffic.interval())
    bounds = [at.seconds for at in gate.bounds]
    assert bounds[0] in (0.01, 0.015)
    assert sorted(bounds) == bounds
    assert 0.03 <= bounds[-1] <= 0.05


def test_a_canary_slower_by_what_is_permitted_is_no_worse():
    """A tenth slower at every quantile: 100 runs of 2 000 canary requests, evaluated after every interval."""
    runs = [canary_requests_until_bad(Traffic(s, weight=0.25, slowdown=1.1, batch=200), 2_000) for s in range(100)]
    assert sum(run is not None for run in runs) <= 1


def test_a_slow_hour_for_everybody_proves_nothing():
    """Both sides take twice as long from one interval to the next, and back again."""
    gate, traffic = Gate(), Traffic(4, weight=0.25)
    for number in range(200):
        slowdown = 2.0 if number // 20 % 2 else 1.0
        n = int(traffic.random.binomial(100, 0.25))
        canary, stable = (traffic._counts(size, BASE_ERRORS, slowdown) for size in (n, 100 - n))
        gate = gate.after(canary, stable)
    assert gate.evidence < DOUBT


@pytest.mark.parametrize("slow", [1.0, 5.0, 10.0])
def test_a_slower_canary_is_found_also_if_all_was_slow_when_the_rollout_began(slow):
    """Latency bounds chosen in a slow phase are replaced by bounds from later requests."""

    def until_found(seed):
        gate, traffic = Gate(), Traffic(seed, weight=0.25, batch=100)
        while gate.canary.requests < 5_000 and not gate.is_bad:
            now = slow if gate.stable.requests < 1000 else 1.0
            n = int(traffic.random.binomial(100, 0.25))
            gate = gate.after(traffic._counts(n, BASE_ERRORS, 1.3 * now), traffic._counts(100 - n, BASE_ERRORS, now))
        return gate.canary.requests if gate.is_bad else 5_000

    found = [until_found(seed) for seed in range(20)]
    assert max(found) <= (2_000 if slow == 1.0 else 3_000), found


def test_a_verdict_says_what_speaks_most_against_the_canary():
    """The reason names the strongest test (errors, latency, labels or mirrored answers) with its numbers."""
    fresh = Gate(label_shift=0.1, other_answers=0.1)
    assert (
        "40 of 100 requests failed, compared with 3 of 900 for stable"
        in fresh.after(Counts(100, 40), Counts(900, 3)).reason()
    )
    pairs = fresh.after(Counts(100, 0, pairs=(60, 40)), Counts(900, 3)).reason()
    assert "40 of 100 mirrored requests (40.0%) differently from stable; 10.0% are permitted (--other-answers)" in pairs
    known = fresh.after(Counts(10, labels={"A": 5, "B": 5}), Counts(300, labels={"A": 150, "B": 150}))
    assert (
        "A 2%, B 98%, stable's are A 50%, B 50%; a share may differ by 10 percentage points"
        in known.after(Counts(300, labels={"B": 300}), Counts(300, labels={"A": 150, "B": 150})).reason()
    )
    traffic, gate = Traffic(1, weight=0.25, slowdown=3.0), fresh
    for _ in range(40):
        gate = gate.after(*traffic.interval())
    assert "slower by more than the permitted 10%" in gate.reason()


def test_with_more_requests_smaller_faults_would_have_been_seen():
    """The smallest detectable fault shrinks as requests are compared; at first no fault is detectable."""
    gate, traffic = Gate(label_shift=0.1, other_answers=0.1), Traffic(1, weight=0.25)
    assert {None} == {*gate.could_see().values()}
    found = []
    for number in range(1, 401):
        canary, stable = traffic.interval()
        gate = gate.after(
            replace(canary, labels={"A": canary.timed}, pairs=(2, 0)), replace(stable, labels={"A": stable.timed})
        )
        if not number % 200:
            found.append(gate.could_see())
    assert all(found[0][name] >= found[1][name] for name in ("errors", "labels", "pairs"))
    assert found[1]["errors"] < 0.03


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 300), st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_gate_survives_being_stored(intervals):
    """The stored gate contains all evidence, of every test; without a test of labels or pairs, there is none again."""
    gate = Gate(label_shift=0.1, other_answers=0.1)
    for canary, stable, canary_failures, stable_failures in intervals:
        gate = gate.after(
            Counts(canary, min(canary, canary_failures), labels={"A": canary}, pairs=(8, canary_failures)),
            Counts(stable, min(stable, stable_failures), labels={"A": stable, "B": stable_failures}),
        )
    again = read(Gate, json.loads(json.dumps(plain(gate))))
    assert gate.evidence == pytest.approx(again.evidence, rel=1e-2)
    for counted in ("canary", "stable", "label_shares", "mirrored", "could_see"):
        assert gate.describe()[counted] == again.describe()[counted]
    assert Gate() == read(Gate, plain(Gate()))
