"""What the controller shows of rollouts: phase, and evidence while they run."""

from __future__ import annotations

from dataclasses import replace

from deploy.controller.rollouts.shown import families
from deploy.controller.rollouts.steps import Rollout
from gateway.metrics import catalog
from gateway.registry import Record
from tests.fakes import FakeRegistry
from tests.unit.deploy.controller.rollouts.world import fresh


def test_each_rollout_shows_its_phase_and_a_running_one_its_evidence() -> None:
    """A record that cannot be read is left out."""
    registry, rollout = FakeRegistry(), fresh()
    assert isinstance(rollout, Rollout)
    ended = replace(rollout, endpoint="f", phase="promoted", state="over")
    registry.ledger.write([
        Record("rollout", "e", rollout.to_json()), Record("rollout", "f", ended.to_json()), Record("rollout", "g", {}),
    ])  # fmt: skip
    found = families(registry.task())
    assert {("e", rollout.canary, "running"): 1, ("f", rollout.canary, "promoted"): 1} == found[catalog.ROLLOUT_PHASE]
    assert {("e", rollout.canary): rollout.gate.evidence} == found[catalog.ROLLOUT_EVIDENCE]
