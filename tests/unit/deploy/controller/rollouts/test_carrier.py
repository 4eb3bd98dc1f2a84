"""The controller carries out rollouts from start to end: one serving Task, two gateways with real metrics text.

One whose controller is killed, or has a second one beside it, ends as it would have.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from deploy.controller import default_versions
from deploy.controller.counters import Reading, grown, parse
from deploy.controller.rollouts import record
from deploy.controller.rollouts.carrier import GUARDED_S, NO_GATEWAYS
from deploy.controller.rollouts.counts import Counts, between
from deploy.controller.rollouts.duty import families
from deploy.controller.rollouts.gate import Gate
from deploy.controller.rollouts.steps import Command, Rollout, Rules
from gateway import preview
from gateway.errors import SpecFault
from gateway.metrics import catalog
from gateway.registry import Record
from gateway.spec import ShadowSpec, rollouts
from tests.unit.deploy.controller.rollouts.world import ENDPOINTS, Killed, Look, World, fresh

FIVE = {"e/2": 0.05, "e/1": 0.95}


@pytest.fixture
def world() -> World:
    """A world without a rollout."""
    return World()


def mirrored(**rules: Any) -> Rollout:
    """A rollout that compares what both versions answer to the same requests."""
    return replace(fresh(gate=Gate(label_shift=0.1, other_answers=0.1)), rules=Rules(200, 10.0, mirror=5.0, **rules))


def test_a_healthy_rollout_ends_with_the_new_version_as_the_default(world: World) -> None:
    """Weights are written in ClearML's format, other canaries stay; gateways know the stable version and show phase
    and guard, which is renewed in good time. Stable's requests are mirrored until the end. Labels have other names, as
    permitted.
    """
    controller = world.begin(mirrored(names={"bad": "GOOD"}), world.controller("host 1a2b"))
    assert (FIVE, {"e": "e/1"}) == (world.weights(), world.serving().stables)
    assert {"e/1": ShadowSpec("e/1", "e/2", 5.0, 1.0)} == world.serving().shadows
    for _ in range(40):
        for version, value in (("1", "GOOD"), ("2", "bad")):
            of = f'endpoint="e",value="{value}",variable="predicted_label",version="{version}"'
            world.count("g1", f"gateway_variable_enum_total{{{of}}}", 100)
        if world.tick(controller).is_over:
            break
        assert world.now < world.rollout().guarded_until <= world.now + GUARDED_S
        (shown,) = rollouts(world.task(), world.now)
        assert ("running", "host 1a2b", "triton-gateway canary abort --endpoint e") == tuple(
            shown[name] for name in ("phase", "guard", "way_back")
        )
        assert [""] == [one["guard"] for one in rollouts(world.task(), world.now + 3600)]
    assert ["start", "step", "promote"] == world.decided()
    assert [FIVE, {"e/2": 0.5, "e/1": 0.5}, None] == world.wrote
    assert {"e/3": 1.0} == world.weights("other")
    assert [("promoted", "", "triton-gateway default e 1")] == [
        (one["phase"], one["guard"], one["way_back"]) for one in rollouts(world.task(), world.now)
    ]  # fmt: skip
    assert ({"e": "e/2"}, {}, ()) == (world.serving().defaults, world.serving().shadows, world.serving().faults)


def test_a_promoted_name_means_the_new_version_at_every_moment(world: World) -> None:
    """First the default is recorded, then the canary is removed; never does the name mean nothing. What a person chose
    before the promotion ends with it.
    """
    controller = world.begin(fresh())
    world.ledger.write([default_versions.chosen("e", "e/3", now=world.now, by="ann", why="default")])
    world.now += 1
    world.ask("promote")
    found, write = [], world.write

    def writes(changed: Mapping[str, str], records: Sequence[Record] = ()) -> None:
        for step in ({}, records), (changed, ()):
            write(*step)
            found.append(world.serving().bare_name("e"))

    world.write = writes  # type: ignore[method-assign]
    controller(world.task())
    assert (2, "e/2", {"e": "e/2"}) == (len(found), found[-1], world.serving().defaults)


def test_a_default_that_a_person_chose_since_is_not_overwritten(world: World) -> None:
    """A controller that was killed between the promotion and its weights is continued by another."""
    controller = world.begin(fresh())
    world.ask("promote")
    world.kill_in = 2
    with pytest.raises(Killed):
        controller(world.task())
    world.now += 1
    world.ledger.write([default_versions.chosen("e", "e/3", now=world.now, by="ann", why="default")])
    another = world.controller("another")
    for _ in range(2):
        world.tick(another)
    assert (None, {"e": "e/3"}) == (world.weights(), world.serving().defaults)


@pytest.mark.parametrize("foreign", [True, False])
def test_a_name_that_no_default_would_answer_keeps_its_finished_canary(world: World, foreign: bool) -> None:
    """A name that is no endpoint's, or one whose stable version is the endpoint without a version."""
    name, stable = ("zc", "e/1") if foreign else ("e", "e")
    bare = {"serving_url": "e", "version": "", "engine_type": "triton", "model_id": "m0"}
    world.sections["endpoints"] = json.dumps(ENDPOINTS if foreign else {**ENDPOINTS, "e": bare})
    controller = world.controller()
    world.ask("run", Rollout(name, "e/2", stable, steps=(5.0, 100.0)), endpoint=name)
    controller(world.task())
    world.ask("promote", endpoint=name)
    controller(world.task())
    assert {"e/2": 1.0, stable: 0.0} == world.weights(name)
    found = world.serving()
    assert (f"a canary, e/2 1, {stable} 0", ()) == (found.bare_name(name), found.faults)


@pytest.mark.parametrize("command", ["promote", "abort"])
def test_a_request_for_a_rollout_is_none_for_the_next_one(world: World, command: Command) -> None:
    """An old `promote` would send all requests to a version that was never compared. A second run while one runs is
    refused: the command says so before, this is for two at once.
    """
    controller = world.begin(fresh())
    world.ask("run", replace(fresh(), canary="e/3"))
    world.tick(controller)
    assert ("e/2", "run refused") == (world.rollout().canary, world.decided()[-1])
    world.ask(command)
    world.tick(controller)
    world.begin(replace(fresh(), canary="e/3"), controller)
    for _ in range(2):
        world.tick(controller)
    assert ("running", "e/3") == (world.rollout().phase, world.rollout().canary)
    assert {"e/3": 0.05, "e/1": 0.95} == world.weights()


def test_somebody_elses_weights_are_respected(world: World) -> None:
    """If the stock CLI changes the canary, the rollout and its mirroring end; another one may begin."""
    stale, controller = dict(world.sections), world.begin(mirrored())
    world.set_weights({"e/2": 0.2, "e/1": 0.8})
    assert "taken_over" == world.tick(controller).phase
    assert "were changed to e/2 0.2, e/1 0.8" in world.rollout().why
    world.tick(controller)
    assert ({"e/2": 0.2, "e/1": 0.8}, {}) == (world.weights(), world.serving().shadows)
    world.sections = stale  # an old copy is not fought any more
    for _ in range(3):
        world.tick(controller)
    assert (None, "end") == (world.weights(), world.decided()[-1])
    world.begin(fresh(), controller)
    assert FIVE == world.weights()
    assert "running" == world.tick(controller).phase


def test_a_version_that_is_removed_ends_the_rollout(world: World) -> None:
    """Its requests go to what is left; no weights are written, nor when it comes back."""
    controller = world.begin(fresh())
    world.sections["endpoints"] = json.dumps({url: one for url, one in ENDPOINTS.items() if url != "e/2"})
    world.tick(controller)
    assert ("taken_over", "e/2 was removed from the serving Task") == (world.rollout().phase, world.rollout().why)
    world.sections["endpoints"] = json.dumps(ENDPOINTS)
    world.tick(controller)
    assert ([FIVE], "end") == (world.wrote, world.decided()[-1])


def test_a_gateway_that_cannot_be_read_holds_the_rollout_and_loses_none_of_its_requests(world: World) -> None:
    """What it counted meanwhile is compared at the next look: two of three looks lack a gateway."""
    controller = world.begin(fresh(steps=(5.0, 100.0)))
    world.tick(controller)
    states = set()
    for number in range(8):
        world.down = {"g2"} if number % 3 else set()
        states.add(world.tick(controller, requests=10).state)
    assert ("holding" in states, 5.0) == (True, world.rollout().weight)
    world.down = set()
    world.tick(controller, requests=10)
    world.now += GUARDED_S
    controller(world.task())
    assert 9 * 2 * 10 == world.rollout().gate.canary.requests


def test_a_registry_outage_decides_nothing_and_loses_nothing(world: World) -> None:
    """Traffic is unchanged, the rollout continues afterwards, and what was answered meanwhile counts."""
    controller = world.begin(fresh())
    world.tick(controller)
    task = world.task()
    world.is_up = False
    for _ in range(3):
        world.traffic()
        controller(task)
    world.is_up = True
    assert 50.0 == world.tick(controller).weight
    assert 4 * 200 == world.rollout().gate.canary.requests


@pytest.mark.parametrize(
    "shares", [[("e/2", -1.0), ("e/1", 2.0)], [("e/9", 1.0)], [("e/1", 1.0), ("e/1", 1.0)]], ids=["<0", "none", "twice"]
)
def test_weights_a_gateway_could_not_use_are_refused_at_once(world: World, shares: list[tuple[str, float]]) -> None:
    """The command refuses them."""
    with pytest.raises(SpecFault):
        preview.check_weights(world.serving(), "e", shares)


def test_a_shadow_that_somebody_configured_is_left_alone(world: World) -> None:
    """It stays unchanged, even after the rollout, and its answers are compared."""
    own = ShadowSpec("e", "e/2", 50.0, 0.1)
    world.ledger.write([record.shadow("e", own)])
    world.finish(world.begin(mirrored()))
    assert {"e": own} == world.serving().shadows


def test_an_old_copy_that_a_slow_client_writes_back_is_put_right_for_a_minute(world: World) -> None:
    """The stock CLI had read the Task before the rollout began. After that minute, somebody wants it so."""
    stale, controller = dict(world.sections), world.begin(fresh())
    world.tick(controller)
    for decided in (["start"], ["start", "put right"]):
        world.sections = dict(stale)
        world.tick(controller, requests=0)
        assert world.weights() is None, "it is left alone for five seconds: its writer may still be writing"
        world.tick(controller, requests=0)
        assert (FIVE, decided) == (world.weights(), world.decided())
        world.now += 60
        world.tick(controller, requests=0)
    world.sections = dict(stale)
    world.tick(controller, requests=0)
    assert "taken_over" == world.tick(controller, requests=0).phase
    assert world.weights() is None


@pytest.mark.parametrize("bad", [True, False])
def test_an_old_copy_after_the_end_does_not_undo_it(world: World, bad: bool) -> None:
    """A rolled back version gets its share again for seconds only, by this controller or the next one; once."""
    controller = world.begin(fresh())
    world.tick(controller)
    stale = dict(world.sections)
    world.finish(controller, canary_failures=10 if bad else 0)
    ended = world.weights()
    assert ({"e/2": 0.0, "e/1": 1.0} if bad else None) == ended
    another = world.controller("another")
    for weights in (ended, FIVE):
        world.now += 60
        world.sections = dict(stale)
        for _ in range(4):
            world.tick(another)
        assert (weights, "put right") == (world.weights(), world.decided()[-1])


@pytest.mark.parametrize(
    ("later", "found", "endpoints"),
    [
        pytest.param(3601, FIVE, ENDPOINTS, id="replaced long ago: no call of the stock CLI takes an hour"),
        pytest.param(60, FIVE, {"e/2": ENDPOINTS["e/2"]}, id="the rollout's own would answer nothing: stable is gone"),
        pytest.param(60, {"e/2": 0.3, "e/1": 0.7}, ENDPOINTS, id="never replaced: set by hand"),
    ],
)
def test_weights_that_are_somebodys_will_stay_after_the_end(
    world: World, later: float, found: Mapping[str, float], endpoints: Mapping[str, Any]
) -> None:
    """The version was rolled back, and its weight is 0 until then."""
    controller = world.begin(fresh())
    world.finish(controller, canary_failures=10)
    world.now += later
    world.set_weights(found)
    world.sections["endpoints"] = json.dumps(endpoints)
    for _ in range(3):
        world.tick(controller)
    assert found == world.weights()


@pytest.mark.parametrize(
    ("written", "foreign", "phase"), [(0, None, "running"), (1, None, "running"), (1, {"e/1": 1.0}, "taken_over")]
)
def test_a_step_that_could_not_be_written_is_written_again_unless_somebody_has_set_weights_since(
    world: World, written: int, foreign: Mapping[str, float] | None, phase: str
) -> None:
    """ClearML fails between the record of a step and its weights, or before both, for minutes."""
    controller = world.begin(fresh())
    world.tick(controller)
    world.kill_in = 1 + written
    with pytest.raises(Killed):
        world.tick(controller)
    assert FIVE == world.weights()
    world.now += 300
    if foreign:
        world.set_weights(foreign)
    rollout = world.tick(controller, requests=0)
    assert (phase, foreign or {"e/2": 0.5, "e/1": 0.5}) == (rollout.phase, world.weights())
    assert ["start", "step"] == world.decided()[:2]


END = {False: ("promoted", ["start", "step", "promote"], [FIVE, {"e/2": 0.5, "e/1": 0.5}, None], {"chosen e"}),
       True: ("rolled_back", ["start", "roll back"], [FIVE, {"e/2": 0.0, "e/1": 1.0}], set())}  # fmt: skip
"""Bad or not → how a rollout ends that nothing disturbs."""


def ended(world: World) -> tuple[Any, ...]:
    """Return how the rollout of ``e`` has ended: phase, decisions, changes of weights, and records of defaults."""
    weights = [one for one, _ in itertools.groupby(world.wrote)]
    return world.rollout().phase, world.decided(), weights, {*world.ledger.read().get("default_version", {})}


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
    assert (END[bad], END[bad][2]) == (ended(undisturbed), undisturbed.wrote)
    for kill_in in range(1, 100):
        world = World()
        world.ask("run", mirrored())
        world.kill_in = kill_in
        run(world, world.controller(), bad)
        assert END[bad] == ended(world), f"killed at write {kill_in}"
        assert ({}, ()) == (world.serving().shadows, world.serving().faults)
        if world.kill_in:
            break
    else:
        raise AssertionError("it writes without end")
    assert kill_in > 4


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("begins", [0, 5, 15])
def test_two_that_lead_at_once_for_ten_seconds_decide_as_one(world: World, bad: bool, begins: int) -> None:
    """Weights and defaults are those of one; what both have counted is not counted twice."""
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
    counted = world.rollout().gate.canary.requests
    assert counted <= sum(n for key, n in world.counters["g1"].items() if 'version="2"' in key) * 2


def test_a_controller_without_gateways_begins_nothing_and_carries_out_requests(world: World) -> None:
    """Nobody could see if a version is worse. What runs already is not guarded by it, and can be aborted."""
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


def test_without_rollouts_nothing_is_asked_or_written(world: World) -> None:
    """Nor for what does not exist: the command says so. After the last one has ended, the gateways are left alone."""
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


def test_every_rollout_of_a_task_is_carried_out_and_shows_its_phase(world: World) -> None:
    """Each with its own route; a running one its evidence. A record or request that cannot be read is left out."""
    world.ledger.write([Record("rollout", "g", {}), Record("rollout_request", "b", {"id": []})])
    controller = world.begin(fresh())
    world.finish(controller)
    other = world.begin(fresh(endpoint="zc", canary="e/3"), controller)
    for _ in range(2):
        world.tick(other)
    assert (None, {"e/3": 0.05, "e/1": 0.95}) == (world.weights(), world.weights("zc"))
    found = families(world.task())
    assert {("e", "e/2", "promoted"): 1, ("zc", "e/3", "running"): 1} == found[catalog.ROLLOUT_PHASE]
    assert {("zc", "e/3")} == found[catalog.ROLLOUT_EVIDENCE].keys()


def text(name: str, label: str, counted: dict[str, float], **more: str) -> str:
    """Return the samples of a metric of e/2, by the values of a label."""
    rest = "".join(f',{key}="{value}"' for key, value in more.items())
    return "".join(f'{name}{{endpoint="e",version="2",{label}="{of}"{rest}}} {n}\n' for of, n in counted.items())


OUTCOMES = ("ok", "input_refused", "client_gone", "overloaded", "hook_failed", "deadline_exceeded")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(
            text("gateway_requests_total", "outcome", dict.fromkeys(OUTCOMES, 10), route="canary"), Counts(30, 20),
            id="only 5xx answers of the version are failures; client errors do not even count as requests",
        ),
        pytest.param(
            text("gateway_request_duration_seconds_bucket", "le", {"0.01": 70, "0.1": 98, "+Inf": 100}, route="canary"),
            Counts(timed=100, slower={0.01: 30, 0.1: 2}), id="Prometheus counts faster answers, the gate slower ones",
        ),
        pytest.param(
            text("gateway_variable_enum_total", "value", {"good": 30, 'a}, \\"b': 2}, variable="predicted_label")
            + text("gateway_variable_enum_total", "value", {"good": 9}, variable="other"),
            Counts(labels={"GOOD": 30, 'a}, "b': 2}), id="labels by what they mean; they may be any text",
        ),
        pytest.param(
            text("gateway_canary_fallbacks_total", "outcome", {"model_failed": 4, "overloaded": 50})
            + text("gateway_shadow_requests_total", "outcome", {"agreed": 3, "differed": 9, "failed": 1, "dropped": 7}),
            Counts(4, 4, pairs=(3, 10), mirror_failures=1),
            id="a canary for which stable answered, and mirrored requests; what it had no room for says nothing",
        ),
    ],
)  # fmt: skip
def test_what_gateways_count_of_a_canary(samples: str, expected: Counts) -> None:
    """Of another version or route, nothing."""
    others = samples.replace('version="2"', 'version="3"') + 'gateway_requests_total{endpoint="e",outcome="ok"} 1\n'
    counted = grown(Reading({"g": parse("")}), Reading({"g": parse(samples + others)}))
    assert expected == between(counted, ("e", "2"), "canary", {"good": "GOOD"})
