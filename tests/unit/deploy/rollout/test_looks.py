"""Saved looks contain all that was observed, and the same gate decides the same on them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.questions.decisions_of_the_gate import KINDS, draws
from benchmarks.shared.rollouts import SHORT, begin, rolled
from deploy.rollout.gate import Counts
from deploy.rollout.looks import LookRecord, judged
from deploy.rollout.steps import Observation
from gateway.metrics.catalog import LATENCY_BUCKETS


def again(look: LookRecord) -> LookRecord:
    """Write the record as a line, and read it again."""
    return LookRecord.from_json(json.loads(json.dumps(look.to_json())))


def test_a_look_is_what_was_kept_of_it() -> None:
    """Latency bounds without slower answers are read as zeros; without answers there are no bounds."""
    slower = {bound: max(0, 40 - 10 * number) for number, bound in enumerate(LATENCY_BUCKETS)}
    told = Counts(50, 3, 47, slower, {"a": 40, "b": 7}, (9, 1), 4)
    look = LookRecord(12.25, 10.0, Observation(told, Counts(), ("g1",), ("g2",)))
    assert look == again(look)
    assert len(look.to_json()["canary"][4]) == 4


@pytest.mark.parametrize("kind", ["the same model", "25 % flipped", "2 % errors"])
def test_a_rollout_that_was_kept_is_decided_the_same_again(kind: str) -> None:
    """All decisions come at the same look, with the same evidence."""
    kept: list[LookRecord] = []
    draw = draws(np.random.default_rng(1), KINDS[kind], SHORT)

    def look(rollout, now):
        found = draw(rollout)
        kept.append(LookRecord(now, rollout.weight, found))
        return found

    end = rolled(SHORT, look)
    assert end == judged(begin(SHORT), map(again, kept))
