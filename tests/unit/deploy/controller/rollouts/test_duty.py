"""A rollout whose controller is killed, or has a second one beside it, ends as it would have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deploy.controller.rollouts import record
from deploy.controller.rollouts.carrier import NO_GATEWAYS
from deploy.controller.rollouts.duty import families
from deploy.controller.rollouts.steps import Rules
from gateway.metrics import catalog
from gateway.registry import Record
from tests.unit.deploy.controller.rollouts.world import Killed, Look, World, fresh

UNHURT = {False: [{"e/2": 0.05, "e/1": 0.95}, {"e/2": 0.5, "e/1": 0.5}, None],
          True: [{"e/2": 0.05, "e/1": 0.95}, {"e/2": 0.0, "e/1": 1.0}]}  # fmt: skip
"""Bad or not → the weights of a rollout that nothing disturbs."""
END = {False: ("promoted", ["start", "step", "promote"], None, {"e": "e/2"}),
       True: ("rolled_back", ["start", "roll back"], {"e/2": 0.0, "e/1": 1.0}, {})}  # fmt: skip


def mirrored() -> Any:
    """A rollout that mirrors requests, so that each kind of write takes place."""
    return fresh(rules=Rules(200, 10.0, mirror=5.0))


def ended(world: World) -> tuple[Any, ...]:
    """Return how the rollout of ``e`` has ended: phase, decisions, weights, defaults."""
    return world.rollout().phase, world.decided(), world.weights(), dict(world.serving().defaults)


def run(world: World, controller: Look, bad: bool, *, most: int = 200) -> None:
    """Let the controller look after each five seconds of traffic, until the rollout has ended; replace a killed one."""
    is_over = 0
    for _ in range(most):
        world.traffic(canary_failures=10 if bad else 0)
        try:
            controller(world.task())
        except Killed:
            controller = world.controller(f"successor {world.now}")
        stored = record.read(world.task(), "e")
        is_over += stored is not None and stored.is_over
        if is_over == 4:
            return
    raise AssertionError(f"it has not ended: {stored}")


@pytest.mark.parametrize("bad", [False, True])
def test_a_rollout_whose_controller_is_killed_at_any_write_ends_as_it_would_have(bad: bool) -> None:
    """Before each record, and between each record and the weights that follow from it."""
    undisturbed = World()
    undisturbed.ask("run", mirrored())
    run(undisturbed, undisturbed.controller(), bad)
    assert (END[bad], UNHURT[bad]) == (ended(undisturbed), undisturbed.wrote)
    for kill_in in range(1, 100):
        world = World()
        world.ask("run", mirrored())
        world.kill_in = kill_in
        run(world, world.controller(), bad)
        assert END[bad] == ended(world), f"killed at write {kill_in}"
        assert [one for n, one in enumerate(world.wrote) if n == 0 or one != world.wrote[n - 1]] == UNHURT[bad]
        assert ({}, ()) == (world.serving().shadows, world.serving().faults)
        if world.kill_in:
            break
    else:
        raise AssertionError("it writes without end")
    assert kill_in > 4


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("begins", [0, 5, 15])
def test_two_that_lead_at_once_for_ten_seconds_decide_as_one(bad: bool, begins: int) -> None:
    """Weights and defaults are those of one; what both have counted is not counted twice."""
    world = World()
    world.ask("run", mirrored())
    first, second = world.controller("first"), world.controller("second")
    for since in range(0, 40, 5):
        world.traffic(canary_failures=10 if bad else 0)
        task = world.task()
        first(task)
        if begins <= since < begins + 10:
            second(task)
    run(world, first, bad)
    assert END[bad] == ended(world)
    assert UNHURT[bad] == [one for n, one in enumerate(world.wrote) if n == 0 or one != world.wrote[n - 1]]
    counted = world.rollout().gate.canary.requests
    assert counted <= sum(n for key, n in world.counters["g1"].items() if 'version="2"' in key) * 2


def test_a_controller_without_gateways_begins_nothing_and_carries_out_requests() -> None:
    """Nobody could see if a version is worse. What runs already is not guarded by it, and can be aborted."""
    world = World()
    world.ask("run", fresh())
    blind = world.controller("blind", sees=False)
    blind(world.task())
    assert ("refused", NO_GATEWAYS, None) == (world.rollout().phase, world.rollout().why, world.weights())
    assert {} == world.serving().stables
    world.begin(fresh())
    for _ in range(10):
        world.tick(blind)
    assert ("running", 5.0) == (world.rollout().phase, world.rollout().weight)
    assert world.rollout().guarded_until < world.now
    world.ask("abort")
    world.tick(blind)
    assert {"e/2": 0.0, "e/1": 1.0} == world.weights()


def test_without_rollouts_nothing_is_asked_or_written() -> None:
    """Nor for what does not exist: the command says so. After the last one has ended, the gateways are left alone."""
    world = World()
    controller = world.controller()
    controller(world.task())
    world.ask("abort")
    world.ask("promote", endpoint="nowhere")
    controller(world.task())
    assert ({}, []) == (dict(record.rollouts(world.task())), world.wrote)
    world.finish(world.begin(fresh(), controller))
    task = world.task()
    controller(task)
    world.is_up = False
    for _ in range(3):
        controller(task)


def test_every_rollout_of_a_task_is_carried_out() -> None:
    """One after the other, each with its own route."""
    world = World()
    controller = world.controller()
    world.ask("run", fresh(), endpoint="e")
    other = fresh(endpoint="zc", canary="e/3")
    world.ask("run", other, endpoint="zc")
    for _ in range(2):
        world.tick(controller)
    assert ({"e/2": 0.05, "e/1": 0.95}, {"e/3": 0.05, "e/1": 0.95}) == (world.weights(), world.weights("zc"))


def test_each_rollout_shows_its_phase_and_a_running_one_its_evidence() -> None:
    """A record that cannot be read is left out."""
    world, rollout = World(), fresh()
    ended = replace(rollout, endpoint="f", phase="promoted", state="over")
    world.ledger.write([record.stored(rollout), record.stored(ended), Record("rollout", "g", {})])
    found = families(world.task())
    assert {("e", "e/2", "running"): 1, ("f", "e/2", "promoted"): 1} == found[catalog.ROLLOUT_PHASE]
    assert {("e", "e/2"): rollout.gate.evidence} == found[catalog.ROLLOUT_EVIDENCE]
