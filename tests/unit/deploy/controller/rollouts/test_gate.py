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
from deploy.controller.rollouts.wagers import bounds
from gateway.metrics.catalog import LATENCY_BUCKETS

BASE_ERRORS = 0.003
LABELS, PAIRS = {"label_shift": 0.1}, {"other_answers": 0.1}


class Traffic:
    """Requests of two versions behind one canary, about ``batch`` at a time, drawn from one seeded source.

    Each side has a share of errors, the shares of its labels, and latencies (none if ``slowdown`` is 0). ``differs``:
    of ten mirrored requests in each interval, the share that is answered differently.
    """

    def __init__(self, seed, *, weight=0.25, batch=40, stable=(), differs=None, **canary):
        self.random = np.random.default_rng(seed)
        self.weight, self.batch, self.differs = weight, batch, differs
        self.canary, self.stable = canary, dict(stable)

    def _counts(self, requests, *, errors=BASE_ERRORS, slowdown=1.0, labels=()):
        failures = int(self.random.binomial(requests, errors))
        counts = Counts(requests, failures)
        if slowdown:
            latencies = slowdown * self.random.lognormal(np.log(0.012), 0.5, requests - failures)
            latencies.sort()
            beyond = len(latencies) - np.searchsorted(latencies, LATENCY_BUCKETS, side="right")
            slower = dict(zip(LATENCY_BUCKETS, beyond.tolist(), strict=True))
            counts = replace(counts, timed=len(latencies), slower=slower)
        if labels:
            found = self.random.multinomial(requests - failures, labels).tolist()
            counts = replace(counts, labels={f"L{number}": count for number, count in enumerate(found)})
        return counts

    def interval(self):
        """What both sides count in one interval."""
        n = int(self.random.binomial(self.batch, self.weight))
        canary, stable = self._counts(n, **self.canary), self._counts(self.batch - n, **self.stable)
        if self.differs is not None:
            differed = int(self.random.binomial(10, self.differs))
            canary = replace(canary, pairs=(10 - differed, differed))
        return canary, stable


def until_bad(traffic, gate, most):
    """Return the canary's requests, or the mirrored ones, until the gate rolls back; None if not within ``most``."""

    def compared():
        return gate.compared_pairs if gate.other_answers else gate.canary.requests

    while compared() < most:
        gate = gate.after(*traffic.interval())
        if gate.is_bad:
            return compared()
    return None


def labels(stable, canary, **more):
    """Traffic with these labels, and nothing else to compare but errors."""
    return {"stable": {"slowdown": 0, "labels": stable}, "slowdown": 0, "labels": canary, **more}


def answers(differs):
    """Traffic of which a share is answered differently."""
    return {"stable": {"slowdown": 0}, "slowdown": 0, "differs": differs, "weight": 0.1, "batch": 200}


TEN = (0.1,) * 10


@pytest.mark.parametrize(
    ("drawn", "tests", "runs", "most"),
    [
        pytest.param({"weight": 0.05, "batch": 1_000}, {}, 200, 5_000, marks=pytest.mark.long, id="equal, weight 5 %"),
        pytest.param({"weight": 0.5, "batch": 100}, {}, 200, 5_000, id="equal, weight 50 %"),
        pytest.param({"slowdown": 1.1, "batch": 200}, {}, 100, 2_000, id="as much slower as is permitted"),
        pytest.param(labels((0.6, 0.4), (0.6, 0.4), batch=200), LABELS, 60, 2_000, id="equal labels"),
        pytest.param(labels((0.97, 0.03), (0.97, 0.03), batch=200), LABELS, 60, 2_000, id="a rare label"),
        pytest.param(labels((0.6, 0.4), (0.5, 0.5), batch=200), LABELS, 60, 2_000, id="ten points more"),
        pytest.param(labels(TEN, TEN, batch=200), LABELS, 60, 2_000, id="ten labels"),
        pytest.param(answers(0.067), PAIRS, 100, 1_000, id="few other answers"),
        pytest.param(answers(0.1), PAIRS, 100, 1_000, id="as many other answers as are permitted"),
    ],
)
def test_versions_that_are_no_worse_are_rolled_back_in_one_run_of_a_hundred_at_most(drawn, tests, runs, most):
    """Evaluated after every interval."""
    rolled_back = sum(until_bad(Traffic(seed, **drawn), Gate(**tests), most) is not None for seed in range(runs))
    print(f"{rolled_back} of {runs} rolled back")
    assert rolled_back <= max(1, runs / 100)


FAULTS = [
    ("5 % errors", {"weight": 0.05, "errors": 0.05}, {}, 300),
    ("5 % errors", {"weight": 0.5, "errors": 0.05}, {}, 300),
    ("20 % errors", {"weight": 0.05, "errors": 0.2}, {}, 75),
    ("20 % errors", {"weight": 0.5, "errors": 0.2}, {}, 100),
    ("+50 % latency", {"weight": 0.05, "slowdown": 1.5}, {}, 300),
    ("+50 % latency", {"weight": 0.5, "slowdown": 1.5}, {}, 600),
    pytest.param("1 % errors", {"weight": 0.25, "errors": 0.01}, {}, 4_000, marks=pytest.mark.long),
    ("2 % errors", {"weight": 0.05, "errors": 0.02}, {}, 1_000),
    ("+30 % latency", {"weight": 0.05, "slowdown": 1.3}, {}, 600),
    ("+30 % latency", {"weight": 0.25, "slowdown": 1.3}, {}, 1_000),
    ("a rare label vanishes", labels((0.5, 0.457, 0.043), (0.543, 0.457, 0.0)), LABELS, 1_500),
    ("labels swapped", labels((0.8, 0.2), (0.2, 0.8), weight=0.05), LABELS, 100),
    ("labels swapped", labels((0.8, 0.2), (0.2, 0.8), weight=0.5), LABELS, 300),
    ("40 points", labels((0.7, 0.3), (0.3, 0.7)), LABELS, 300),
    ("always one label", labels((0.5, 0.5), (1.0, 0.0)), LABELS, 200),
    ("one of ten takes over", labels(TEN, (0.55, *(0.05,) * 9)), LABELS, 200),
    ("25 points", labels((0.6, 0.4), (0.35, 0.65)), LABELS, 700),
    *((f"{differs:.0%} other answers", answers(differs), PAIRS, within)
      for differs, within in ((0.2, 350), (0.35, 80), (0.5, 50), (1.0, 20))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "drawn", "tests", "within"), FAULTS)
def test_faults_are_found(name, drawn, tests, within):
    """Every one of 25 seeded runs; the median stays below the stated number of requests."""
    batch = max(4, round(10 / drawn.get("weight", 0.25)))
    runs = [until_bad(Traffic(seed, **{"batch": batch, **drawn}), Gate(**tests), 10 * within) for seed in range(25)]
    assert None not in runs
    print(f"{name}: median {median(runs):.0f}, slowest {max(runs)} requests")
    assert median(runs) <= within


def test_a_canary_that_turns_bad_late_is_found():
    """After 20 000 healthy canary requests a quarter's 5 % errors are found within 600."""
    found = []
    for seed in range(20):
        gate, traffic = Gate(), Traffic(seed, batch=200)
        while gate.canary.requests < 20_000:
            gate = gate.after(*traffic.interval())
        traffic.canary["errors"] = 0.05
        start = gate.canary.requests
        while not gate.is_bad:
            gate = gate.after(*traffic.interval())
        found.append(gate.canary.requests - start)
    assert median(found) <= 600


@pytest.mark.parametrize(
    "bad", [{"errors": 0.33}, {"slowdown": 2.0}, {"labels": (0.2, 0.8)}], ids=lambda bad: next(iter(bad))
)
def test_a_bad_hour_for_everybody_proves_nothing(bad):
    """Triton is overloaded, or callers ask something else; from one interval to the next, and back again."""
    gate, traffic = Gate(**LABELS), Traffic(4, batch=100)
    for number in range(200):
        traffic.canary = traffic.stable = {"labels": (0.8, 0.2), **(bad if number // 20 % 2 else {})}
        gate = gate.after(*traffic.interval())
    assert gate.evidence < DOUBT


@pytest.mark.parametrize(
    ("canary", "stable", "evidence"),
    [(Counts(30, 1), Counts(270, 1), DOUBT), (Counts(100, 100), Counts(), 1.001), (Counts(), Counts(100), 1.001)],
)
def test_few_failures_or_one_side_alone_are_no_evidence(canary, stable, evidence):
    """Thirty requests, one failed: a fixed rule of 99 % would have rolled back."""
    assert Gate(**PAIRS).after(canary, stable).evidence < evidence


def test_latency_is_compared_at_stables_own_quantiles():
    """The bounds come from stable's histogram: near its median, 12 ms, and at its slow end."""
    gate, traffic = Gate(), Traffic(1)
    for _ in range(20):
        gate = gate.after(*traffic.interval())
    found = bounds(gate.stable, gate.slower)
    assert found[0].seconds in (0.01, 0.015)
    assert 0.03 <= found[-1].seconds <= 0.05


@pytest.mark.parametrize("slow", [1.0, 5.0, 10.0])
def test_a_slower_canary_is_found_also_if_all_was_slow_when_the_rollout_began(slow):
    """Latency bounds chosen in a slow phase move on with later requests."""

    def until_found(seed):
        gate, traffic = Gate(), Traffic(seed, batch=100)
        while gate.canary.requests < 5_000 and not gate.is_bad:
            now = slow if gate.stable.requests < 1000 else 1.0
            traffic.canary, traffic.stable = {"slowdown": 1.3 * now}, {"slowdown": now}
            gate = gate.after(*traffic.interval())
        return gate.canary.requests if gate.is_bad else 5_000

    found = [until_found(seed) for seed in range(20)]
    assert max(found) <= (2_000 if slow == 1.0 else 3_000), found


def test_failures_of_mirrored_requests_are_the_canarys_unless_stable_has_as_many():
    """Stable has answered each of them: 1.5 % are found, far fewer than may differ; 0.5 % that both have are not."""
    for seed in range(20):
        random, bad, even = np.random.default_rng(seed), Gate(**PAIRS), Gate(**PAIRS)
        for _ in range(100):
            failed = int(random.binomial(20, 0.015))
            if not bad.is_bad:
                bad = bad.after(Counts(1, pairs=(20 - failed, failed), mirror_failures=failed), Counts(99))
            failed, failures = int(random.binomial(200, 0.005)), int(random.binomial(1_000, 0.005))
            even = even.after(Counts(10, pairs=(200 - failed, failed), mirror_failures=failed), Counts(1_000, failures))
            assert not even.is_bad
        assert bad.is_bad
        failed = bad.canary.mirror_failures
        assert f"it also failed {failed} of {bad.compared_pairs} that stable had answered" in bad.reason()


HALF = {"A": 150, "B": 150}


@pytest.mark.parametrize(
    ("intervals", "told"),
    [
        ([(Counts(100, 40), Counts(900, 3))], "40 of 100 requests failed, compared with 3 of 900 for stable"),
        ([(Counts(100, pairs=(60, 40)), Counts(900, 3))], "40 of 100 mirrored requests (40.0%) differently"),
        ([(Counts(10, labels={"A": 5, "B": 5}), Counts(300, labels=HALF)),
          (Counts(300, labels={"B": 300}), Counts(300, labels=HALF))], "A 2%, B 98%, stable's are A 50%, B 50%"),
        ([Traffic(1, slowdown=3.0, batch=1_000).interval() for _ in range(2)], "slower by more than the permitted 10%"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_speaks_most_against_the_canary(intervals, told):
    """The reason names the strongest test (errors, mirrored answers, labels or latency) with its numbers."""
    gate = Gate(**LABELS, **PAIRS)
    for interval in intervals:
        gate = gate.after(*interval)
    assert told in gate.reason()


def test_with_more_requests_smaller_faults_would_have_been_seen():
    """The smallest detectable fault shrinks as requests are compared; at first no fault is detectable."""
    gate, traffic = Gate(**LABELS, **PAIRS), Traffic(1)
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
    """The stored gate contains all evidence, of every test."""
    gate = Gate(**LABELS, **PAIRS)
    for canary, stable, canary_failures, stable_failures in intervals:
        gate = gate.after(
            Counts(canary, min(canary, canary_failures), labels={"A": canary}, pairs=(8, canary_failures)),
            Counts(stable, min(stable, stable_failures), labels={"A": stable, "B": stable_failures}),
        )
    again = read(Gate, json.loads(json.dumps(plain(gate))))
    assert gate.evidence == pytest.approx(again.evidence, rel=1e-2)
    assert (gate.canary, gate.stable, gate.could_see()) == (again.canary, again.stable, again.could_see())
