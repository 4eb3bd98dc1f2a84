"""Mirrored requests answered by both versions, seeded: too many differences are found, permitted ones are not."""

from __future__ import annotations

from collections import Counter
from statistics import median

import numpy as np
import pytest

from deploy.controller.rollouts.gate import Counts, Gate
from deploy.controller.rollouts.pairs import MirrorTest
from gateway.metrics.mirrored import PLACES

PERMITTED, IN_GROUP = 0.1, 0.3
SHARES = {
    "label": {"SPORT": 0.42, "POLITICS": 0.33, "TECH": 0.207, "FONTS": 0.043},
    "language": {"en": 0.85, "none": 0.101, "de": 0.049},
    "length": {"short": 0.06, "middle": 0.878, "long": 0.062},
}
"""Groups of the requests, drawn independently of each other."""


def mirrored_until_bad(seed, *, differs, most, wrong=()):
    """Return the gate when it rolls back, or at ``most`` mirrored requests.

    ``differs``: the share of different answers; ``wrong``: groups in which every answer differs.
    """
    random = np.random.default_rng(seed)
    drawn = {by: random.choice([*of], most, p=[*of.values()]) for by, of in SHARES.items()}
    other = random.random(most) < differs
    for group in wrong:
        by, value = group.split()
        other |= drawn[by] == value
    gate = Gate(pairs=MirrorTest.of(PERMITTED, IN_GROUP))
    for at in range(0, most, 10):
        these = other[at : at + 10]
        agreed, differed = Counter(), Counter()
        for by, values in drawn.items():
            for value, is_other in zip(values[at : at + 10], these, strict=True):
                (differed if is_other else agreed)[f"{by} {value}"] += 1
        groups = {group: (agreed[group], differed[group]) for group in {*agreed, *differed}}
        gate = gate.after(Counts(20, pairs=(int((~these).sum()), int(these.sum())), groups=groups), Counts(180))
        if gate.is_bad:
            break
    return gate


@pytest.mark.parametrize("differs", [0.067, 0.1])
def test_versions_that_differ_evenly_as_often_as_is_permitted_are_kept(differs):
    """Of 100 runs of 1 000 mirrored requests, judged as a whole and in ten groups, at most one is rolled back."""
    runs = [mirrored_until_bad(seed, differs=differs, most=1_000) for seed in range(100)]
    assert sum(run.is_bad for run in runs) <= 1


@pytest.mark.parametrize(("differs", "within"), [(0.2, 350), (0.35, 80), (0.5, 50), (1.0, 20)])
def test_versions_that_differ_more_often_are_found(differs, within):
    """All of 30 runs are found; the test does not depend on how frequent labels are."""
    runs = [mirrored_until_bad(seed, differs=differs, most=5_000) for seed in range(30)]
    assert all(run.is_bad for run in runs)
    assert median(run.pairs.compared for run in runs) <= within


@pytest.mark.parametrize("group", ["length long", "language de", "label FONTS"])
def test_a_group_that_is_always_answered_differently_is_found_and_named(group):
    """4.3 to 6.2 % of all answers, fewer than may differ. The verdict names the group and the flag that permits it."""
    runs = [mirrored_until_bad(seed, differs=0.01, most=1_000, wrong=[group]) for seed in range(30)]
    assert all(run.is_bad for run in runs)
    reason = runs[0].reason()
    assert f"mirrored requests with {group} (100.0%) differently from stable" in reason
    assert "30.0% are permitted in a group (twice --other-answers)" in reason


def test_groups_are_counted_but_not_judged_if_all_their_answers_may_differ():
    """The flag that a verdict names permits what it found."""
    gate = Gate(pairs=MirrorTest.of(PERMITTED, 1.0))
    for _ in range(PLACES + 3):
        gate = gate.after(
            Counts(20, pairs=(95, 5), groups={"language de": (0, 5), "language en": (95, 0)}), Counts(180)
        )
    assert not gate.is_bad
    assert [5 * (PLACES + 3)] * 2 == gate.pairs.describe()["groups"]["language de"]


def test_there_are_never_more_groups_than_the_stake_was_divided_among():
    """Gateways that chose other values cannot lend money to the test: what is one group too many is not judged."""
    test = MirrorTest.of(PERMITTED, IN_GROUP)
    for number in range(3 * PLACES):
        test = test.after(1, 0, 0, {f"label {number}": (1, 0)})
    assert (PLACES, 3 * PLACES) == (len(test.groups), test.compared)


def test_a_canary_that_fails_what_stable_answers_is_found():
    """1.5 % of the mirrored requests: far fewer than may differ, and stable has answered each of them."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        gate = Gate(pairs=MirrorTest.of(PERMITTED, IN_GROUP))
        while not gate.is_bad and gate.pairs.compared < 2_000:
            failed = int(random.binomial(20, 0.015))
            gate = gate.after(Counts(1, pairs=(20 - failed, failed), mirror_failures=failed), Counts(99))
        assert gate.is_bad
        assert f"it also failed {gate.pairs.failed} of {gate.pairs.compared} that stable had answered" in gate.reason()


def test_failures_that_stable_has_as_well_are_no_evidence():
    """Both fail one request in 200, also when mirrored: of 20 000 mirrored ones no run in thirty is rolled back."""
    for seed in range(30):
        random = np.random.default_rng(seed)
        gate = Gate(pairs=MirrorTest.of(PERMITTED, IN_GROUP))
        for _ in range(100):
            failed = int(random.binomial(200, 0.005))
            stable = Counts(1_000, int(random.binomial(1_000, 0.005)))
            gate = gate.after(Counts(10, 0, pairs=(200 - failed, failed), mirror_failures=failed), stable)
        assert not gate.is_bad


def test_without_mirrored_requests_nothing_is_concluded():
    """The stakes stay what they were."""
    assert MirrorTest.of(PERMITTED, IN_GROUP) == MirrorTest.of(PERMITTED, IN_GROUP).after(0, 0, 0, {})
