"""Mirrored requests answered by both versions, seeded: too many differences are found, permitted ones are not."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import Gate

PERMITTED = 0.1


def mirrored_until_bad(seed, *, differs, most):
    """Return the gate when it rolls back, or at ``most`` mirrored requests, of which a share ``differs``."""
    random = np.random.default_rng(seed)
    gate = Gate(other_answers=PERMITTED)
    for _ in range(0, most, 10):
        differed = int(random.binomial(10, differs))
        gate = gate.after(Counts(20, pairs=(10 - differed, differed)), Counts(180))
        if gate.is_bad:
            break
    return gate


@pytest.mark.parametrize("differs", [0.067, 0.1])
def test_versions_that_differ_evenly_as_often_as_is_permitted_are_kept(differs):
    """Of 100 runs of 1 000 mirrored requests at most one is rolled back."""
    runs = [mirrored_until_bad(seed, differs=differs, most=1_000) for seed in range(100)]
    assert sum(run.is_bad for run in runs) <= 1


@pytest.mark.parametrize(("differs", "within"), [(0.2, 350), (0.35, 80), (0.5, 50), (1.0, 20)])
def test_versions_that_differ_more_often_are_found(differs, within):
    """All of 30 runs are found; the test does not depend on how frequent labels are."""
    runs = [mirrored_until_bad(seed, differs=differs, most=5_000) for seed in range(30)]
    assert all(run.is_bad for run in runs)
    assert median(run.compared_pairs for run in runs) <= within


def test_a_canary_that_fails_what_stable_answers_is_found():
    """1.5 % of the mirrored requests: far fewer than may differ, and stable has answered each of them."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        gate = Gate(other_answers=PERMITTED)
        while not gate.is_bad and gate.compared_pairs < 2_000:
            failed = int(random.binomial(20, 0.015))
            gate = gate.after(Counts(1, pairs=(20 - failed, failed), mirror_failures=failed), Counts(99))
        assert gate.is_bad
        assert (
            f"it also failed {gate.canary.mirror_failures} of {gate.compared_pairs} that stable had answered"
            in gate.reason()
        )


def test_failures_that_stable_has_as_well_are_no_evidence():
    """Both fail one request in 200, also when mirrored: of 20 000 mirrored ones no run in thirty is rolled back."""
    for seed in range(30):
        random = np.random.default_rng(seed)
        gate = Gate(other_answers=PERMITTED)
        for _ in range(100):
            failed = int(random.binomial(200, 0.005))
            stable = Counts(1_000, int(random.binomial(1_000, 0.005)))
            gate = gate.after(Counts(10, 0, pairs=(200 - failed, failed), mirror_failures=failed), stable)
        assert not gate.is_bad
