"""The steps of a rollout: when it grows, waits, holds and rolls back, and the commands of people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import Gate
from deploy.controller.rollouts.steps import Rollout, Rules, after_look, begun

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
