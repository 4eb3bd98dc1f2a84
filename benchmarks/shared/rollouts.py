"""Whole rollouts through the ``steps`` and ``gate`` of ``triton-gateway canary run``; questions supply counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Final

from deploy.controller.rollouts.gate import Gate
from deploy.controller.rollouts.labels import LabelTest
from deploy.controller.rollouts.pairs import MirrorTest
from deploy.controller.rollouts.steps import STEPS, Observation, Rollout, Rules, after_look, begun

TESTS: Final = ("errors", "latency", "labels", "pairs")


@dataclass(frozen=True)
class Plan:
    """Requests a second, seconds between two looks, and the options of ``canary run``."""

    rate: int = 100
    every_s: float = 5.0
    steps: tuple[float, ...] = STEPS
    min_requests: int = 200
    step_s: float = 60.0
    mirror_first: float = 20.0
    mirror_wait: float = 10.0
    """Step times that the first step waits for mirrored answers."""


SHORT: Final = Plan(25, 2.0, (10.0, 25.0, 50.0, 100.0), 200, 20.0)
"""The plan of ``rollouts-on-real-servers``."""


def begin(plan: Plan) -> Rollout:
    """Return a rollout at its first step, with what ``canary run`` compares of a classifier."""
    rules = Rules(plan.min_requests, plan.step_s, "predicted_label", 5.0, plan.mirror_first,
                  plan.step_s * plan.mirror_wait)  # fmt: skip
    gate = Gate(labels=LabelTest(0.1), pairs=MirrorTest.of(0.1, 0.3))
    return begun(Rollout("e", "e/2", "e/1", steps=plan.steps, rules=rules, gate=gate), 0.0)


def rolled(plan: Plan, look: Callable[[Rollout, float], Observation]) -> Rollout:
    """Return a rollout at its end, or after an hour. ``look`` returns the counts of one look."""
    found, now = begin(plan), 0.0
    while not found.is_over and now < 3600:
        now += plan.every_s
        found = after_look(found, look(found, now), now)
    return found


def ended(ends: Sequence[Rollout]) -> dict[str, Any]:
    """Return how rollouts of one kind ended, after how many requests, and what was found."""
    runs = len(ends)
    needed = [end.gate.canary_requests for end in ends if end.phase == "rolled_back"]
    logs = [end.gate.describe() for end in ends if end.phase == "rolled_back"]
    decided = Counter(max(TESTS, key=lambda test: one[test]) for one in logs)
    return {
        "runs": runs, "rolled_back": len(needed),
        "promoted": sum(end.phase == "promoted" for end in ends),
        "within_1000": sum(count <= 1000 for count in needed),
        "canary_requests": [int(n) for n in quantiles(needed, n=20)] if len(needed) > 1 else needed,
        "decided_by": dict(decided.most_common()),
        "seconds": [end.history[-1].at for end in sorted(ends, key=lambda one: one.history[-1].at)][runs // 2],
    }  # fmt: skip
