"""The gate with simulated, seeded canaries: how often it is wrong, how soon it finds a fault, and what it bets; and the
steps that follow from it.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.controller.plain import plain, read
from deploy.controller.rollouts import wagers
from deploy.controller.rollouts.bets import Bets, likelier
from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import DOUBT, THRESHOLD, Gate
from deploy.controller.rollouts.steps import Rollout, Rules, after_look, begun
from gateway.metrics.catalog import LATENCY_BUCKETS

BASE_ERRORS = 0.003
LABELS, PAIRS = {"label_shift": 0.1}, {"other_answers": 0.1}


class Traffic:
    """Requests of two versions behind one canary, about ``batch`` at a time, drawn from one seeded source.

    Each side has a share of errors, the shares of its labels, and latencies (none if ``slowdown`` is 0). ``differs``:
    of ten mirrored requests in each interval, the share that is answered differently; ``group``: the share of them in
    one group, and how many of these are.
    """

    def __init__(self, seed, *, weight=0.25, batch=40, stable=(), differs=None, group=(0.0, 0.0), **canary):
        self.random = np.random.default_rng(seed)
        self.weight, self.batch, self.differs, self.group = weight, batch, differs, group
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
            inside = int(self.random.binomial(10, self.group[0]))
            wrong = int(self.random.binomial(inside, self.group[1]))
            others = int(self.random.binomial(10 - inside, self.differs))
            differed, agreed = {"de": wrong, "en": others}, {"de": inside - wrong, "en": 10 - inside - others}
            canary = replace(canary, pairs=(10 - wrong - others, wrong + others), agreed=agreed, differed=differed)
        return canary, stable


def compared(gate):
    """The canary's requests, or the mirrored ones."""
    return gate.compared_pairs if gate.other_answers else gate.canary.requests


def gates(traffic, gate, most):
    """Yield the gate after each interval, until it rolls back or has compared ``most``."""
    while compared(gate) < most and not gate.is_bad:
        gate = gate.after(*traffic.interval())
        yield gate


def labels(stable, canary, **more):
    """Traffic with these labels, and nothing else to compare but errors."""
    return {"stable": {"slowdown": 0, "labels": stable}, "slowdown": 0, "labels": canary, **more}


def answers(differs, **more):
    """Traffic of which a share is answered differently."""
    return {"stable": {"slowdown": 0}, "slowdown": 0, "differs": differs, "weight": 0.1, "batch": 200, **more}


TEN = (0.1,) * 10


@pytest.mark.parametrize(
    ("drawn", "tests", "most"),
    [
        pytest.param({"weight": 0.05, "batch": 1_000}, {}, 5_000, marks=pytest.mark.long, id="equal, weight 5 %"),
        pytest.param({"weight": 0.5, "batch": 200}, {}, 5_000, id="equal, weight 50 %"),
        pytest.param({"slowdown": 1.1, "batch": 200}, {}, 2_000, id="as much slower as is permitted"),
        pytest.param(labels((0.97, 0.03), (0.97, 0.03), batch=200), LABELS, 1_000, id="a rare label"),
        pytest.param(labels((0.6, 0.4), (0.5, 0.5), batch=200), LABELS, 1_000, id="ten points more"),
        pytest.param(labels(TEN, TEN, batch=400), LABELS, 2_000, marks=pytest.mark.long, id="ten labels"),
        pytest.param(answers(0.1), PAIRS, 500, id="as many other answers as are permitted"),
        pytest.param(answers(0.067, group=(0.06, 0.3)), PAIRS, 2_000, id="a retrain, and as many as a group may have"),
    ],
)
def test_versions_that_are_no_worse_are_rolled_back_in_one_run_of_a_hundred_at_most(drawn, tests, most):
    """Evaluated after every interval.

    The stake of a fair test exceeds any ``c`` in at most one run of ``c`` (Ville). So thirty runs of which at most
    three reach 10 say as much as three hundred would of which at most three reach ``THRESHOLD``: there a fair test has
    two of thirty by chance in one of thirty cases. That a single bet is fair, ``test_bets`` computes exactly.
    """
    highest = [max(one.evidence for one in gates(Traffic(seed, **drawn), Gate(**tests), most)) for seed in range(30)]
    assert sum(one >= DOUBT for one in highest) <= 3
    assert sum(one >= THRESHOLD for one in highest) <= 1


@pytest.mark.parametrize(
    ("drawn", "tests", "within"),
    [
        pytest.param({"weight": 0.05, "errors": 0.05}, {}, 300, id="5 % errors, weight 5 %"),
        pytest.param({"weight": 0.5, "errors": 0.05}, {}, 300, id="5 % errors, weight 50 %"),
        pytest.param({"weight": 0.05, "errors": 0.2}, {}, 75, id="20 % errors"),
        pytest.param({"weight": 0.05, "slowdown": 1.5}, {}, 300, id="+50 % latency"),
        pytest.param({"weight": 0.25, "errors": 0.01}, {}, 4_000, marks=pytest.mark.long, id="1 % errors"),
        pytest.param({"weight": 0.25, "slowdown": 1.3}, {}, 1_000, id="+30 % latency"),
        pytest.param(labels((0.5, 0.457, 0.043), (0.543, 0.457, 0.0), batch=160), LABELS, 1_500, id="a label vanishes"),
        pytest.param(labels((0.8, 0.2), (0.2, 0.8), weight=0.05), LABELS, 100, id="labels swapped"),
        pytest.param(labels((0.5, 0.5), (1.0, 0.0)), LABELS, 200, id="always one label"),
        pytest.param(labels(TEN, (0.55, *(0.05,) * 9)), LABELS, 200, id="one of ten takes over"),
        pytest.param(labels((0.6, 0.4), (0.35, 0.65), batch=80), LABELS, 700, id="25 points"),
        pytest.param(answers(0.2), PAIRS, 350, id="20 % other answers"),
        pytest.param(answers(1.0), PAIRS, 20, id="only other answers"),
        pytest.param(answers(0.0, group=(0.05, 1.0)), PAIRS, 400, id="every answer of one twentieth"),
        pytest.param(answers(0.0, group=(0.05, 0.7)), PAIRS, 1_200, id="most answers of one twentieth"),
    ],
)
def test_faults_are_found(drawn, tests, within):
    """Every one of 11 seeded runs; the median stays below the stated number of requests."""
    batch = max(4, round(10 / drawn.get("weight", 0.25)))
    runs = [[*gates(Traffic(seed, **{"batch": batch, **drawn}), Gate(**tests), 10 * within)][-1] for seed in range(11)]
    assert all(gate.is_bad for gate in runs)
    assert median(map(compared, runs)) <= within


def test_a_canary_that_turns_bad_late_is_found():
    """After 20 000 healthy canary requests a quarter's 5 % errors are found within 600."""
    found = []
    for seed in range(5):
        traffic = Traffic(seed, batch=800)
        *_, gate = gates(traffic, Gate(), 20_000)
        traffic.canary["errors"], traffic.batch = 0.05, 200
        *_, bad = gates(traffic, gate, 30_000)
        found.append(bad.canary.requests - gate.canary.requests)
    assert median(found) <= 600


@pytest.mark.parametrize(
    "bad", [{"errors": 0.33}, {"slowdown": 2.0}, {"labels": (0.2, 0.8)}], ids=lambda bad: next(iter(bad))
)
def test_a_bad_hour_for_everybody_proves_nothing(bad):
    """Triton is overloaded, or callers ask something else; from one interval to the next, and back again."""
    gate, traffic = Gate(**LABELS), Traffic(4, batch=100)
    for number in range(80):
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


def test_a_slower_canary_is_found_also_if_all_was_slow_when_the_rollout_began():
    """Latency bounds chosen in a slow phase move on with later requests."""
    for seed in range(5):
        gate, traffic = Gate(), Traffic(seed, batch=100)
        while gate.canary.requests < 3_000 and not gate.is_bad:
            now = 5.0 if gate.stable.requests < 1000 else 1.0
            traffic.canary, traffic.stable = {"slowdown": 1.3 * now}, {"slowdown": now}
            gate = gate.after(*traffic.interval())
        assert gate.is_bad


def test_failures_of_mirrored_requests_are_the_canarys_unless_stable_has_as_many():
    """Stable has answered each of them: 1.5 % are found, far fewer than may differ; 0.5 % that both have are not."""
    for seed in range(5):
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
        ([(Counts(100, pairs=(760, 40), agreed={"label A": 760}, differed={"label B": 40}), Counts(900, 3))],
         "40 of 40 mirrored requests of the group `label B` (100.0%) differently from stable; 30.0% are permitted"),
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
    assert (gate.canary, gate.stable) == (again.canary, again.stable)


@given(st.lists(st.integers(1, 100_000), max_size=20), st.integers(1, 6))
def test_a_stake_neither_grows_nor_shrinks_by_itself(intervals: list[int], count: int) -> None:
    """That at most one sound canary of a hundred is rolled back rests on it."""
    bets = Bets.of(count)
    for seen in intervals:
        bets = bets.after([0.0] * count, seen)
    assert pytest.approx(0.0, abs=1e-9) == bets.log_evidence


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 60), st.sampled_from([1.0, 1.3]))
def test_a_bet_on_a_canary_that_is_as_bad_as_permitted_is_fair(
    canary: int, stable: int, hits: int, allowed: float
) -> None:
    """Over all splits of the hits, each as often as it then comes, a stake is multiplied by one on average."""
    splits = range(max(0, hits - stable), min(canary, hits) + 1)
    chances = np.array([math.comb(canary, n) * math.comb(stable, hits - n) * allowed**n for n in splits], np.float64)
    grown = np.exp([likelier(canary, n, stable, hits - n, (1.1, 3.0, 50.0), allowed) for n in splits])
    assert not splits or pytest.approx(np.ones(3)) == chances / chances.sum() @ grown
    ((*_, agreed, _), (*_, differed, _)) = (next(wagers.pairs(Counts(pairs=one), 0.1)) for one in ((1, 0), (0, 1)))
    assert pytest.approx(np.ones(4)) == 0.9 * np.exp(agreed) + 0.1 * np.exp(differed)


def test_labels_beyond_the_eighth_count_as_one() -> None:
    """Each label has a share of the stake, so their number is bounded; a known one keeps its place."""
    counts = {f"label {number}": 20 - number for number in range(20)}
    found = wagers.gathered(counts, ["label 19"], {})
    assert (9, sum(counts.values()), 1) == (len(found), sum(found.values()), found["label 19"])


def test_labels_are_bet_on_once_stables_shares_are_known() -> None:
    """From fewer than 200 answers it would follow by chance how often the canary may give a label."""
    one = Counts(labels={"good": 10})
    assert [0, 2] == [len([*wagers.labels(one, one, {"good": known}, 0.1)]) for known in (199, 200)]


def test_latency_is_compared_where_stable_is_and_as_much_more_often_as_its_histogram_says() -> None:
    """Half of stable's answers take longer than 10 ms; of answers a tenth slower, 54.5 % would, with odds of 1.2."""
    seen = [Counts(timed=n, slower={0.01: n // 2, 0.02: n // 10, 0.04: n // 100}) for n in (199, 1000)]
    few, found = (wagers.bounds(one, 1.1) for one in seen)
    assert ((), [0.01, 0.02, 0.02, 0.04]) == (few, [at.seconds for at in found])
    assert () == wagers.bounds(Counts(timed=1000, slower={0.01: 1000, 0.02: 0}), 1.1), "all were in one bucket"
    assert pytest.approx(1.2, abs=0.001) == found[0].allowed


ROLLOUT = Rollout("e", "e/2", "e/1", steps=(5.0, 25.0, 100.0), rules=Rules(min_requests=100, step_s=60.0))


def start(**fields):
    """A rollout at its first step, at time 0."""
    return begun(replace(ROLLOUT, **fields), "r1", 0.0)


HEALTHY = Counts(200), Counts(1800)
"""A look at which nobody failed."""


def test_a_healthy_canary_grows_step_by_step_and_is_promoted():
    """Each step needs its requests and its time."""
    rollout = after_look(start(), *HEALTHY, 10.0)
    assert (5.0, "waiting") == (rollout.weight, rollout.state)
    rollout = after_look(rollout, *HEALTHY, 61.0)
    assert (25.0, (0, 0)) == (rollout.weight, rollout.compared)
    rollout = after_look(rollout, *HEALTHY, 122.0)
    assert ("promoted", 100.0) == (rollout.phase, rollout.weight)
    assert ["start", "step", "promote"] == [d.what for d in rollout.history]
    assert all(d.evidence["canary"] for d in rollout.history)


@pytest.mark.parametrize(
    ("canary", "stable", "now", "missing", "expected"),
    [
        pytest.param(Counts(1), Counts(9), 86_400.0, (), ("running", "waiting"), id="time alone proves nothing"),
        pytest.param(Counts(10_000), Counts(0), 1000.0, (), ("running", "waiting"), id="nothing to compare with"),
        pytest.param(Counts(150, 4), Counts(1350, 2), 70.0, (), ("running", "inconclusive"), id="doubt"),
        pytest.param(*HEALTHY, 70.0, ("gateway-2",), ("running", "holding"), id="missing data"),
        pytest.param(Counts(100, 20), Counts(900, 3), 5.0, ("gateway-2",), ("rolled_back", "over"),
                     id="missing data does not hide a bad canary"),
    ],
)  # fmt: skip
def test_a_step_does_not_end(canary, stable, now, missing, expected):
    """While it lacks requests, data or clear evidence, the weight stays; what a single look may say ends it."""
    rollout = after_look(start(), canary, stable, now, missing=missing)
    assert (*expected, 0.0 if expected[1] == "over" else 5.0) == (rollout.phase, rollout.state, rollout.weight)
    if expected[1] == "inconclusive":  # more requests end the doubt
        assert 25.0 == after_look(rollout, Counts(1000, 2), Counts(9000, 27), 80.0).weight


MIRRORED = Rules(min_requests=100, step_s=10.0, mirror=5.0)


@pytest.mark.parametrize(("pairs", "seconds", "weight"), [(99, 99.0, 5.0), (100, 11.0, 25.0), (5, 100.0, 25.0)])
def test_the_first_step_waits_for_as_many_mirrored_answers_as_requests_for_ten_step_times(pairs, seconds, weight):
    """Requests and time alone prove little; little traffic must not block it for ever. Later steps do not wait."""
    look = Counts(200, pairs=(pairs, 0)), Counts(1800)
    rollout = after_look(start(rules=MIRRORED, gate=Gate(other_answers=0.1)), *look, seconds)
    assert weight == rollout.weight
    if weight == 25.0:
        assert "promoted" == after_look(rollout, *look, seconds + 11).phase
