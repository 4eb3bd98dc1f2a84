"""The metrics of rollouts, from their records: the phase of each, and the evidence against its canary. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from deploy.controller.rollouts.steps import Rollout
from gateway import metrics, spec
from gateway.spec import ServingTask

catalog = metrics.catalog


def families(task: ServingTask) -> Mapping[catalog.Metric, Mapping[tuple[str, ...], float]]:
    """Return the values of each metric by the values of its labels; a record that cannot be read is left out."""
    phases: dict[tuple[str, ...], float] = {}
    evidence: dict[tuple[str, ...], float] = {}
    for endpoint, stored in spec.records_of(task, spec.ROLLOUT).items():
        with contextlib.suppress(ValueError):
            rollout = Rollout.from_json(stored)
            phases[endpoint, rollout.canary, rollout.phase] = 1
            if not rollout.is_over:
                evidence[endpoint, rollout.canary] = rollout.gate.evidence
    return {catalog.ROLLOUT_PHASE: phases, catalog.ROLLOUT_EVIDENCE: evidence}
