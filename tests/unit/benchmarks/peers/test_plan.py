"""What a run measures."""

from __future__ import annotations

import pytest

from benchmarks.peers.plan import full, narrowed, quick
from benchmarks.peers.systems import SYSTEMS
from benchmarks.shared.backends import BACKENDS


@pytest.mark.parametrize("scenarios", [full(), quick()])
def test_scenarios_name_known_systems_and_backends(scenarios: tuple) -> None:
    """And no two of them save cells under one name for the same system."""
    names = [(s.name, system) for s in scenarios for system in s.systems]
    assert len(names) == len(set(names))
    assert {system for _, system in names} <= set(SYSTEMS)
    assert {s.backend for s in scenarios} <= set(BACKENDS)


def test_a_quick_run_is_quick() -> None:
    """Measuring alone, without starts and warm-ups, stays below three minutes; a full run below half an hour."""
    assert sum(s.seconds * s.rounds * len(s.systems) for s in quick()) < 180
    assert sum(s.seconds * s.rounds * len(s.systems) for s in full()) < 1800


def test_a_run_can_be_narrowed() -> None:
    """Only what was named is left; nothing named leaves everything."""
    everything = {"backends": [], "systems": [], "texts": [], "connections": []}
    assert list(full()) == list(narrowed(full(), **everything))
    left = list(narrowed(full(), **{**everything, "systems": ["gateway"], "connections": [64], "texts": ["long"]}))
    assert [("instant", "long", 64, ("gateway",))] == [(s.backend, s.texts, s.connections, s.systems) for s in left]
