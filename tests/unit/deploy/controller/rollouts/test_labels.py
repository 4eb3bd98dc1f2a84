"""The comparison of labels, with simulated, seeded canaries."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from deploy.controller.rollouts.counts import Counts
from deploy.controller.rollouts.gate import Gate

MOST = 0.1


def run(seed, *, weight, stable, canary, max_requests, batch=40):
    """Canary requests until the gate rolls back; None when it does not within ``max_requests``. Everything else is
    healthy: 0.3 % errors on both sides."""
    random = np.random.default_rng(seed)
    gate = Gate(label_shift=MOST)
    names = [f"L{i}" for i in range(len(stable))]

    def side(requests, shares):
        failures = int(random.binomial(requests, 0.003))
        found = random.multinomial(requests - failures, shares)
        return Counts(requests, failures, labels=dict(zip(names, map(int, found), strict=True)))

    while gate.canary.requests < max_requests:
        n = int(random.binomial(batch, weight))
        gate = gate.after(side(n, canary), side(batch - n, stable))
        if gate.is_bad:
            return gate.canary.requests
    return None


HEALTHY = [
    ("equal", (0.6, 0.4), (0.6, 0.4)),
    ("rare label", (0.97, 0.03), (0.97, 0.03)),
    ("ten points more", (0.6, 0.4), (0.5, 0.5)),
    ("ten labels", (0.1,) * 10, (0.1,) * 10),
]


@pytest.mark.parametrize(("name", "stable", "canary"), HEALTHY, ids=lambda v: v if isinstance(v, str) else "")
def test_versions_that_answer_alike_are_rolled_back_in_one_run_of_a_hundred_at_most(name, stable, canary):
    """60 runs of 2 000 canary requests, including versions that differ as much as is permitted."""
    runs = [run(seed, weight=0.25, stable=stable, canary=canary, max_requests=2_000, batch=200) for seed in range(60)]
    rolled_back = sum(found is not None for found in runs)
    print(f"{name}: {rolled_back} of {len(runs)} rolled back")
    assert rolled_back <= 1


SHIFTED = [
    ("a rare label vanishes", (0.5, 0.457, 0.043), (0.543, 0.457, 0.0), 0.25, 1_500),
    ("labels swapped", (0.8, 0.2), (0.2, 0.8), 0.05, 100),
    ("labels swapped", (0.8, 0.2), (0.2, 0.8), 0.5, 300),
    ("40 points", (0.7, 0.3), (0.3, 0.7), 0.25, 300),
    ("always one label", (0.5, 0.5), (1.0, 0.0), 0.25, 200),
    ("one of ten takes over", (0.1,) * 10, (0.55, *(0.05,) * 9), 0.25, 200),
    ("25 points", (0.6, 0.4), (0.35, 0.65), 0.25, 700),
]


@pytest.mark.parametrize(("name", "stable", "canary", "weight", "within"), SHIFTED)
def test_shifted_labels_are_found(name, stable, canary, weight, within):
    """Every one of 20 seeded runs; the median stays below the stated number of canary requests."""
    batch = max(4, round(10 / weight))
    runs = [run(seed, weight=weight, stable=stable, canary=canary, max_requests=20_000, batch=batch)
            for seed in range(20)]  # fmt: skip
    assert None not in runs
    print(f"{name} at weight {weight:.0%}: median {median(runs):.0f}, slowest {max(runs)} canary requests")
    assert median(runs) <= within


def test_what_everybody_is_asked_now_is_no_shift():
    """The mix of requests is reversed for both sides at the same time."""
    random = np.random.default_rng(5)
    gate = Gate(label_shift=MOST)
    for number in range(300):
        share = 0.8 if number < 150 else 0.2
        canary, stable = (int(random.binomial(n, share)) for n in (10, 30))
        gate = gate.after(Counts(10, labels={"A": canary, "B": 10 - canary}),
                          Counts(30, labels={"A": stable, "B": 30 - stable}))  # fmt: skip
    assert not gate.is_bad
