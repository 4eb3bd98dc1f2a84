"""Mirrored requests answered by both versions, seeded: too many differences are found, permitted ones are not."""

from __future__ import annotations

import json
from statistics import median

import numpy as np
import pytest

from deploy.rollout.gate import Counts, Gate
from deploy.rollout.pairs import PairTest

PERMITTED = 0.05


def mirrored_until_bad(seed, *, differs, most):
    """Return the mirrored requests until the gate rolls back; None if it does not within ``most``."""
    random = np.random.default_rng(seed)
    gate = Gate(pairs=PairTest(PERMITTED))
    while gate.pairs.compared < most:
        differed = int(random.binomial(10, differs))
        gate = gate.after(Counts(20, pairs=(10 - differed, differed)), Counts(180))
        if gate.is_bad:
            return gate.pairs.compared
    return None


@pytest.mark.parametrize("differs", [0.0, 0.03, 0.05])
def test_versions_that_differ_as_often_as_is_permitted_are_kept(differs):
    """Of 100 runs of 2 000 mirrored requests, at most one is rolled back."""
    runs = [mirrored_until_bad(seed, differs=differs, most=2_000) for seed in range(100)]
    assert sum(run is not None for run in runs) <= 1


@pytest.mark.parametrize(("differs", "within"), [(0.1, 700), (0.25, 80), (0.5, 30), (1.0, 10)])
def test_versions_that_differ_more_often_are_found(differs, within):
    """All of 50 runs are found; the test does not depend on how frequent labels are."""
    runs = [mirrored_until_bad(seed, differs=differs, most=10_000) for seed in range(50)]
    assert None not in runs
    print(f"{differs:.0%} differ: median {median(runs):.0f}, slowest {max(runs)} mirrored requests")
    assert median(runs) <= within


def test_without_mirrored_requests_nothing_is_concluded():
    """The stakes stay what they were."""
    assert PairTest(PERMITTED) == PairTest(PERMITTED).after(0, 0)


def test_the_test_survives_being_stored():
    """The record contains all evidence."""
    test = PairTest(PERMITTED)
    for number in range(30):
        test = test.after(8, number % 3).renewed()
    again = PairTest.from_json(json.loads(json.dumps(test.to_json())))
    assert test.log_evidence == pytest.approx(again.log_evidence, abs=0.05)
    assert test.describe() == again.describe()
