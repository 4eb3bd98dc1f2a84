"""A rollout's runner with fakes: one serving Task, two gateways with real metrics text, a manual clock."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from deploy.controller.rollouts import record, steps
from deploy.controller.rollouts.gate import Counts, Gate
from deploy.controller.rollouts.labels import LabelTest
from deploy.controller.rollouts.pairs import MirrorTest
from deploy.controller.rollouts.record import Lease, PendingCommand
from deploy.controller.rollouts.runner import Runner, act
from deploy.controller.rollouts.source import GatewaySource, Look, Version, between, parse
from deploy.controller.rollouts.steps import Observation, Rollout, Rules
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway import preview
from gateway.errors import RegistryUnavailable, SpecFault
from gateway.spec import ShadowSpec, decode
from gateway.testing import FakeRegistry

ENDPOINTS = {f"e/{v}": {"serving_url": "e", "version": v, "engine_type": "triton", "model_id": f"m{v}"} for v in "123"}


class World(FakeRegistry):
    """A serving Task, gateways that follow it, and traffic between two looks."""

    def __init__(self):
        super().__init__()
        self.sections = {"endpoints": json.dumps(ENDPOINTS), "canary": sections.render({"other": {
            "endpoint": "other", "weights": [1.0], "load_endpoints": ["e/3"]}})}  # fmt: skip
        self.now = 1000.0
        self.down = set()
        self.counters = {"g1": {}, "g2": {}}
        self.compared = []

    # the gateways
    def add(self, gateway, version, route, **outcomes):
        for outcome, count in outcomes.items():
            key = f'gateway_requests_total{{endpoint="e",outcome="{outcome}",route="{route}",version="{version}"}}'
            self.counters[gateway][key] = self.counters[gateway].get(key, 0) + count

    def fetch(self, url):
        gateway = url.removesuffix("/metrics?detail=full")
        if gateway in self.down:
            return None
        return "".join(f"{key} {value}\n" for key, value in self.counters[gateway].items())

    def statuses(self):
        shares = {name: record.weights(self.task(), name) for name in ("e",)}
        return {g: None if g in self.down else {"canaries": shares, "compared": self.compared} for g in self.counters}

    def runner(self, me="me"):
        return Runner(
            self, GatewaySource(("g1", "g2"), fetch=self.fetch), self.statuses, endpoint="e", me=me,
            clock=lambda: self.now, sleep=lambda _s: None,
        )  # fmt: skip

    def tick(self, runner, *, canary_failures=0, requests=100):
        """Five seconds of traffic on both gateways, then a look."""
        for gateway in self.counters:
            self.add(gateway, "2", "canary", ok=requests - canary_failures, model_failed=canary_failures)
            self.add(gateway, "1", "stable", ok=requests * 4, model_failed=1)
        self.now += 5
        return runner.look()


@pytest.fixture
def world():
    """A world without a rollout."""
    return World()


def fresh(**fields):
    """A rollout of e/2 beside e/1."""
    return Rollout("e", "e/2", "e/1", **{"steps": (5.0, 50.0, 100.0), "rules": Rules(200, 10.0), **fields})


def test_a_healthy_rollout_ends_with_the_new_version_as_the_default(world):
    """Weights are written in ClearML's format, other canaries stay, gateways know the stable version.

    At the end the canary is removed: the name means the new version from before that on.
    """
    runner = world.runner()
    runner.start(fresh())
    assert {"e/2": 0.05, "e/1": 0.95} == record.weights(world.task(), "e")
    assert {"e": "e/1"} == decode(world.task()).stables
    seen = []
    for _ in range(12):
        progress = world.tick(runner)
        seen += [d.what for d in progress.decisions]
        if progress.rollout.is_over:
            break
    assert ["step", "promote"] == seen
    assert record.weights(world.task(), "e") is None
    assert {"e/3": 1.0} == record.weights(world.task(), "other")
    assert Lease() == record.read(world.task(), "e")[1]
    assert ({"e": "e/2"}, ()) == (decode(world.task()).defaults, decode(world.task()).faults)


def meanings(world):
    """What the name ``e`` means after each write to ClearML from now on."""
    found, write = [], world.write

    def writes(changed, records=()):
        write(changed, records)
        found.append(decode(world.task()).bare_name("e"))

    world.write = writes
    return found


def test_a_promoted_name_means_the_new_version_at_every_moment(world):
    """First the default is recorded, then the canary is removed; never does the name mean nothing."""
    runner = world.runner()
    runner.start(fresh())
    world.write({}, [record.command("e", PendingCommand("1", "promote", "ann"))])
    found = meanings(world)
    runner.look()
    assert len(found) > 1
    assert {"e/2"} == {*found}


def test_an_old_copy_after_a_promotion_does_not_bring_the_canary_back(world):
    """Gateways follow the decision at once, and say why. A later rollout of the same route begins as any other."""
    runner = world.runner()
    runner.start(fresh())
    stale = dict(world.sections)
    while not world.tick(runner).rollout.is_over:
        pass
    world.sections = stale
    found = decode(world.task())
    assert ("e/2", ["canary e"]) == (found.bare_name("e"), [fault.subject for fault in found.faults])
    assert "stays in force: no such route (promote" in found.faults[0].message
    runner = world.runner()
    runner.start(Rollout("e", "e/3", "e/2", steps=(5.0, 100.0)))
    assert {"e/3": 0.05, "e/2": 0.95} == record.weights(world.task(), "e")
    assert "running" == world.tick(runner).rollout.phase


@pytest.mark.parametrize("foreign", [True, False])
def test_a_name_that_no_default_would_answer_keeps_its_finished_canary(world, foreign):
    """A name that is no endpoint's, or one whose stable version is the endpoint without a version."""
    name = "zc" if foreign else "e"
    stable = "e/1" if foreign else "e"
    bare = {"serving_url": "e", "version": "", "engine_type": "triton", "model_id": "m0"}
    world.sections["endpoints"] = json.dumps(ENDPOINTS if foreign else {**ENDPOINTS, "e": bare})
    runner = Runner(world, GatewaySource((), fetch=world.fetch), dict, endpoint=name, me="me",
                    clock=lambda: world.now, sleep=lambda _s: None)  # fmt: skip
    runner.start(Rollout(name, "e/2", stable, steps=(5.0, 100.0)))
    world.write({}, [record.command(name, PendingCommand("1", "promote", "ann"))])
    assert "promoted" == runner.look().rollout.phase
    assert {"e/2": 1.0, stable: 0.0} == record.weights(world.task(), name)
    found = decode(world.task())
    assert ("a finished canary, e/2 answers all", ()) == (found.bare_name(name), found.faults)


@pytest.mark.parametrize("command", ["promote", "abort", "pause"])
def test_a_command_for_a_rollout_is_none_for_the_next_one(world, command):
    """An old `promote` would send all requests to a version that was never compared."""
    world.runner().start(fresh())
    world.now += 100  # its runner was killed
    act(world, "e", PendingCommand("1", command, "ann"), me="her", clock=lambda: world.now, sleep=lambda _s: None)
    if command == "pause":
        act(world, "e", PendingCommand("2", "abort", "ann"), me="her", clock=lambda: world.now, sleep=lambda _s: None)
    runner = world.runner()
    runner.start(replace(fresh(), canary="e/3"))
    looked = runner.look()
    assert ("running", ()) == (looked.rollout.phase, looked.decisions)
    assert {"e/3": 0.05, "e/1": 0.95} == record.weights(world.task(), "e")


def test_a_bad_version_is_rolled_back_to_weight_zero(world):
    """Within a few looks, with the evidence in the Task."""
    runner = world.runner()
    runner.start(fresh())
    world.tick(runner)
    while not world.tick(runner, canary_failures=10).rollout.is_over:
        pass
    assert {"e/2": 0.0, "e/1": 1.0} == record.weights(world.task(), "e")
    stored, _ = record.read(world.task(), "e")
    assert ("rolled_back", "roll back") == (stored.phase, stored.history[-1].what)


def test_a_canary_without_room_is_no_worse_than_stable_without_room(world):
    """Refusals for lack of capacity are no failures, whether callers got them or stable answered instead."""
    runner = world.runner()
    runner.start(fresh())
    key = 'gateway_canary_fallbacks_total{endpoint="e",outcome="overloaded",version="2"}'
    for _ in range(20):
        world.counters["g1"][key] = world.counters["g1"].get(key, 0) + 10
        progress = world.tick(runner)
        if progress.rollout.is_over:
            break
    assert (0, "promoted") == (progress.rollout.gate.canary_failures, progress.rollout.phase)


@pytest.mark.parametrize("is_answered_by_stable", [True, False])
def test_a_canary_that_never_has_room_is_rolled_back(world, is_answered_by_stable):
    """Both if callers got its refusals and if stable answered instead."""
    runner = world.runner()
    runner.start(fresh())
    key = 'gateway_canary_fallbacks_total{endpoint="e",outcome="overloaded",version="2"}'
    for _ in range(200):
        if is_answered_by_stable:
            world.counters["g1"][key] = world.counters["g1"].get(key, 0) + 50
        else:
            world.add("g1", "2", "canary", overloaded=50)
        world.add("g1", "1", "stable", ok=400)
        world.now += 5
        progress = runner.look()
        if progress.rollout.is_over:
            break
    assert "rolled_back" == progress.rollout.phase
    assert "e/2 answered no request for" in progress.rollout.why
    assert {"e/2": 0.0, "e/1": 1.0} == record.weights(world.task(), "e")


def test_fallbacks_count_against_the_canary(world):
    """Callers got stable's answer, but the canary's failure counts."""
    runner = world.runner()
    runner.start(fresh())
    world.tick(runner)
    key = 'gateway_canary_fallbacks_total{endpoint="e",outcome="model_failed",version="2"}'
    for _ in range(4):
        world.counters["g1"][key] = world.counters["g1"].get(key, 0) + 10
        world.add("g1", "1", "fallback", ok=10)
        progress = world.tick(runner)
        if progress.rollout.is_over:
            break
    assert "rolled_back" == progress.rollout.phase


def test_one_runner_at_a_time(world):
    """The second runner is refused with the first one's name. When the first is gone, it takes over and continues."""
    first = world.runner("first")
    first.start(fresh())
    for _ in range(3):
        world.tick(first)
    with pytest.raises(DeployError, match="is run by first"):
        world.runner("second").start(None)
    world.now += 60  # the first was killed
    second = world.runner("second")
    assert 50.0 == second.start(None).weight
    with pytest.raises(DeployError, match="taken over by second"):
        first.look()


def test_of_two_that_start_at_once_one_goes_on(world):
    """Both wrote a lease; the one whose lease is not in the Task gives up."""
    first, second = world.runner("first"), world.runner("second")
    first._sleep = lambda _s: world.write({}, [record.written(fresh(), Lease("second", world.now + 30))])
    with pytest.raises(DeployError, match="is run by second"):
        first.start(fresh())
    assert second.start(None)


def test_an_interrupted_runner_leaves_at_once(world):
    """After Ctrl-C the next runner does not wait for the lease to expire, and no evidence is lost."""
    first = world.runner("first")
    first.start(fresh())
    world.tick(first)
    world.tick(first)
    first.release()
    resumed = world.runner("second").start(None)
    assert 200 == resumed.gate.canary_requests


@pytest.mark.parametrize(("command", "phase", "weight"), [("pause", "paused", 5.0), ("abort", "aborted", 0.0)])
def test_commands_from_another_machine_reach_the_runner(world, command, phase, weight):
    """Commands are left in the Task, and the runner carries them out at its next look."""
    runner = world.runner()
    runner.start(fresh())
    done = act(world, "e", PendingCommand("id", command, "ann"), me="other", clock=lambda: world.now,
               sleep=lambda _s: world.tick(runner))  # fmt: skip
    assert (phase, weight) == (done.phase, done.weight)
    assert weight / 100 == record.weights(world.task(), "e")["e/2"]


def test_commands_work_without_a_runner(world):
    """If the runner was killed, the command itself carries out the abort."""
    world.runner().start(fresh())
    world.now += 60
    abort = PendingCommand("id", "abort", "ann")
    done = act(world, "e", abort, me="other", clock=lambda: world.now, sleep=lambda _s: None)
    assert "aborted" == done.phase
    assert {"e/2": 0.0, "e/1": 1.0} == record.weights(world.task(), "e")
    with pytest.raises(DeployError, match="has ended: aborted"):
        act(world, "e", PendingCommand("id2", "resume", "ann"), me="other", clock=lambda: world.now)


def test_somebody_elses_weights_are_respected(world):
    """If the stock CLI changes the canary, the rollout pauses; resume restores its weights."""
    runner = world.runner()
    runner.start(fresh())
    world.write(record.with_weights(world.task(), "e", {"e/2": 0.0, "e/1": 1.0}))
    progress = world.tick(runner)
    assert "paused" == progress.rollout.phase
    assert {"e/2": 0.0, "e/1": 1.0} == record.weights(world.task(), "e")
    world.write({}, [record.command("e", PendingCommand("1", "resume", "ann"))])
    assert "running" == world.tick(runner).rollout.phase
    assert 0.05 == record.weights(world.task(), "e")["e/2"]
    assert "running" == world.tick(runner).rollout.phase


def test_a_gateway_that_cannot_be_read_holds_the_rollout(world):
    """The rollout continues by itself afterwards."""
    runner = world.runner()
    runner.start(fresh())
    world.down = {"g2"}
    for _ in range(6):
        progress = world.tick(runner)
    assert ("holding", 5.0) == (progress.rollout.state, progress.rollout.weight)
    world.down = set()
    assert 50.0 == world.tick(runner).rollout.weight


def test_a_look_that_lacks_a_gateway_loses_none_of_its_requests(world):
    """What it counted meanwhile is compared at the next look: every second look lacks one of two gateways."""
    runner = world.runner()
    runner.start(fresh(steps=(5.0, 100.0)))
    world.tick(runner)
    for number in range(8):
        world.down = {"g2"} if number % 2 else set()
        progress = world.tick(runner, requests=10)
    world.down = set()
    progress = world.tick(runner, requests=10)
    assert 9 * 2 * 10 == progress.rollout.gate.canary_requests


def test_a_registry_outage_decides_nothing(world):
    """Traffic is unchanged, and the rollout continues afterwards."""
    runner = world.runner()
    runner.start(fresh())
    world.tick(runner)
    world.is_up = False
    progress = runner.look()
    assert "waiting for ClearML" in progress.problem
    world.is_up = True
    assert "" == world.tick(runner).problem


def test_another_rollout_of_the_same_route_is_refused(world):
    """Only one rollout per route runs at a time."""
    world.runner("one").start(fresh())
    world.now += 60
    with pytest.raises(DeployError, match="to e/2, is running"):
        world.runner("two").start(Rollout("e", "e/3", "e/1"))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([("e/2", -1.0), ("e/1", 2.0)], "zero or more"),
        ([("e/2", 0.0), ("e/1", 0.0)], "only zero weights"),
        ([("e/2", float("nan"))], "zero or more"),
        ([("e/9", 1.0)], "no endpoint e/9"),
        ([("e/1", 1.0), ("e/1", 1.0)], "named twice"),
    ],
)
def test_weights_a_gateway_could_not_use_are_refused_at_once(world, shares, message):
    """The command refuses them with the reason."""
    with pytest.raises(SpecFault, match=message):
        preview.check_weights(decode(world.task()), "e", shares)


def test_a_restarted_gateway_gives_nothing_for_one_interval():
    """Counters that went back give neither a negative nor a huge number of requests."""
    line = 'gateway_requests_total{{endpoint="e",outcome="ok",route="canary",version="2"}} {}\n'
    looks = [Look({"g": parse(line.format(n), "e")}) for n in (100, 40, 70)]
    version = Version("e", "2")
    assert 0 == between(looks[0], looks[1], version, "canary").requests
    assert 30 == between(looks[1], looks[2], version, "canary").requests


def test_callers_mistakes_and_full_gateways_are_nobodys_failure():
    """Only 5xx answers of the version count as failures; client errors do not even count as requests."""
    text = "".join(
        f'gateway_requests_total{{endpoint="e",outcome="{outcome}",route="canary",version="2"}} 10\n'
        for outcome in ("ok", "input_refused", "client_gone", "overloaded", "hook_failed", "deadline_exceeded")
    )
    found = between(Look({"g": {}}), Look({"g": parse(text, "e")}), Version("e", "2"), "canary")
    assert (30, 20) == (found.requests, found.failures)


def test_latency_buckets_become_counts_of_slower_answers():
    """Prometheus counts faster answers, the gate needs slower ones."""
    labels = 'endpoint="e",route="stable",version="1"'
    text = "".join(
        f'gateway_request_duration_seconds_bucket{{{labels},le="{le}"}} {n}\n'
        for le, n in (("0.01", 70), ("0.1", 98), ("+Inf", 100))
    )
    found = between(Look({"g": {}}), Look({"g": parse(text, "e")}), Version("e", "1"), "stable")
    assert Counts(0, 0, 100, {0.01: 30, 0.1: 2}) == found


def test_what_versions_answer_is_counted_by_value():
    """Only the compared variable counts; values may be any text."""

    def text(good, odd):
        labels = 'endpoint="e",version="2",variable'
        return (
            f'gateway_variable_enum_total{{{labels}="predicted_label",value="good"}} {good}\n'
            f'gateway_variable_enum_total{{{labels}="predicted_label",value="a}}, \\"b"}} {odd}\n'
            f'gateway_variable_enum_total{{{labels}="other",value="good"}} {good}\n'
        )

    before, now = (Look({"g": parse(text(good, odd), "e")}) for good, odd in ((10.0, 1.0), (40.0, 3.0)))
    version = Version("e", "2")
    assert {"good": 30, 'a}, "b': 2} == between(before, now, version, "canary", "predicted_label").labels
    assert {} == between(before, now, version, "canary").labels


def test_a_version_that_answers_otherwise_is_rolled_back(world):
    """If labels are compared, a shift is rolled back, and the record contains the shares."""
    rules = Rules(min_requests=50, step_s=1.0, variable="predicted_label")
    fresh = replace(Rollout("e", "e/2", "e/1", steps=(10.0, 100.0)), rules=rules, gate=Gate(labels=LabelTest(0.1)))
    rollout = steps.begun(fresh, 0.0)
    for _ in range(40):
        seen = Observation(Counts(10, 0, labels={"A": 2, "B": 8}), Counts(90, 0, labels={"A": 72, "B": 18}))
        rollout = steps.after_look(rollout, seen, 0.5)
    assert "rolled_back" == rollout.phase
    assert {"A": 0.2, "B": 0.8} == rollout.history[-1].evidence["label_shares"]["canary"]
    assert rules == Rollout.from_json(json.loads(json.dumps(rollout.to_json()))).rules


def mirrored(**rules):
    """A rollout that compares what both versions answer to the same requests."""
    return replace(fresh(gate=Gate(pairs=MirrorTest.of(0.1, 0.3))), rules=Rules(200, 10.0, mirror=5.0, **rules))


def mirror(world, **outcomes):
    """Count mirrored requests."""
    for outcome, count in outcomes.items():
        key = f'gateway_shadow_requests_total{{endpoint="e",outcome="{outcome}",version="2"}}'
        world.counters["g1"][key] = world.counters["g1"].get(key, 0) + count


def test_requests_are_mirrored_while_a_rollout_runs_and_not_after_it(world):
    """Stable's requests are mirrored to the canary; different scores alone are no different answer."""
    runner = world.runner()
    runner.start(mirrored())
    assert {"e/1": ShadowSpec("e/1", "e/2", 5.0, 1.0)} == decode(world.task()).shadows
    while not world.tick(runner).rollout.is_over:
        pass
    assert {} == decode(world.task()).shadows
    assert () == decode(world.task()).faults


def test_more_is_mirrored_until_enough_was_compared(world):
    """After that, the requested share is mirrored, and nothing after the rollout."""
    runner = world.runner()
    runner.start(mirrored(mirror_first=20.0))
    assert {"e/1": ShadowSpec("e/1", "e/2", 20.0, 1.0)} == decode(world.task()).shadows
    world.tick(runner)
    world.counters["g1"]['gateway_shadow_requests_total{endpoint="e",outcome="agreed",version="2"}'] = 1_000
    shares = set()
    while not world.tick(runner).rollout.is_over:
        shares |= {shadow.percent for shadow in decode(world.task()).shadows.values()}
    assert {5.0} == shares
    assert {} == decode(world.task()).shadows
    runner = world.runner()
    runner.start(mirrored(mirror_first=20.0))
    runner.release()
    act(world, "e", PendingCommand("1", "abort", "ann"), me="other", clock=lambda: world.now, sleep=lambda _s: None)
    assert {} == decode(world.task()).shadows


def test_an_abort_without_a_runner_ends_the_mirroring(world):
    """The end of a rollout also ends its mirroring."""
    runner = world.runner()
    runner.start(mirrored())
    runner.release()
    act(world, "e", PendingCommand("1", "abort", "ann"), me="other", clock=lambda: world.now, sleep=lambda _s: None)
    assert {} == decode(world.task()).shadows


def test_a_shadow_that_somebody_configured_is_left_alone(world):
    """It stays unchanged, even after the rollout, and its answers are compared."""
    own = ShadowSpec("e", "e/2", 50.0, 0.1)
    world.write({}, [record.shadow("e", own)])
    runner = world.runner()
    runner.start(mirrored())
    while not world.tick(runner).rollout.is_over:
        pass
    assert {"e": own} == decode(world.task()).shadows


def test_answers_turned_round_at_random_are_found_where_no_label_is_more_frequent(world):
    """A quarter of the mirrored answers differ, while errors, latency and shares of labels are unchanged."""
    runner = world.runner()
    runner.start(mirrored())
    for _ in range(60):
        mirror(world, agreed=30, differed=10, dropped=5)
        progress = world.tick(runner)
        if progress.rollout.is_over:
            break
    assert "rolled_back" == progress.rollout.phase
    assert "mirrored requests (25.0%) differently from stable; 10.0% are permitted" in progress.rollout.why
    assert {} == decode(world.task()).shadows


def test_a_canary_that_fails_mirrored_requests_is_rolled_back(world):
    """Stable answered each of them. 1.5 % is far below the share that may differ; its own callers are too few."""
    runner = world.runner()
    runner.start(mirrored())
    for _ in range(20):
        mirror(world, agreed=197, failed=3, dropped=40)
        world.add("g1", "1", "stable", ok=1_000, model_failed=1)
        world.now += 5
        progress = runner.look()
        if progress.rollout.is_over:
            break
    assert "rolled_back" == progress.rollout.phase
    assert "that stable had answered" in progress.rollout.why


def test_mirrored_requests_that_had_no_room_are_no_evidence(world):
    """Dropped ones say nothing about the version, however many they are."""
    runner = world.runner()
    runner.start(mirrored())
    for _ in range(20):
        mirror(world, agreed=50, dropped=5_000)
        progress = world.tick(runner)
        if progress.rollout.is_over:
            break
    assert "promoted" == progress.rollout.phase


@pytest.mark.parametrize("group", ['by="language",group="de"', 'by="label",group="FONTS"', 'by="length",group="long"'])
def test_a_version_that_is_wrong_in_one_group_alone_is_rolled_back(world, group):
    """One in twenty answers, fewer than may differ over all. The verdict names the group and what permits it."""
    runner = world.runner()
    runner.start(mirrored())
    key = f'gateway_shadow_group_requests_total{{endpoint="e",outcome="differed",version="2",{group}}}'
    for _ in range(30):
        mirror(world, agreed=76, differed=4)
        world.counters["g1"][key] = world.counters["g1"].get(key, 0) + 4
        progress = world.tick(runner)
        if progress.rollout.is_over:
            break
    named = group.replace('by="', "").replace('",group="', " ").removesuffix('"')
    assert "rolled_back" == progress.rollout.phase
    assert f"mirrored requests with {named} (100.0%)" in progress.rollout.why
    assert "(--other-answers-in-group)" in progress.rollout.why


def test_labels_of_another_name_are_the_same_labels_if_that_was_permitted(world):
    """Renamed labels would otherwise look like a version that never gives stable's labels."""
    names = {"bad": "NEGATIVE", "good": "POSITIVE"}
    rules = Rules(200, 10.0, variable="predicted_label", names=names)
    runner = world.runner()
    runner.start(replace(fresh(gate=Gate(labels=LabelTest(0.1))), rules=rules))
    for _ in range(12):
        for version, values in (("1", ("NEGATIVE", "POSITIVE")), ("2", ("bad", "good"))):
            for value in values:
                of = f'endpoint="e",value="{value}",variable="predicted_label",version="{version}"'
                key = f"gateway_variable_enum_total{{{of}}}"
                world.counters["g1"][key] = world.counters["g1"].get(key, 0) + 100
        progress = world.tick(runner)
        if progress.rollout.is_over:
            break
    assert "promoted" == progress.rollout.phase


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("{}", "verdict is no enum variable of e/1"),
        ('{"e/*": {"endpoint": "e/*", "log_frequency": 0.5, "metrics": {"verdict": {"type": "enum", '
         '"buckets": ["a", "b"]}}}}', "counted for 50% of the requests only"),
    ],
)  # fmt: skip
def test_answers_that_are_not_all_counted_are_not_compared(world, metrics, message):
    """Sampled counts would look like more evidence than there is."""
    task = world.task()
    task = replace(task, sections={**task.sections, "metric_logging": metrics})
    with pytest.raises(SpecFault, match=message):
        preview.check_counted(decode(task), ["e/1"], "verdict")
    preview.check_counted(decode(task), ["e/1"], "predicted_label")


def test_an_old_copy_that_a_slow_client_writes_back_is_put_right(world):
    """The stock CLI had read the Task before the rollout began; the rollout continues, and its history says so."""
    stale = dict(world.sections)
    runner = world.runner()
    runner.start(fresh())
    world.sections = stale
    assert {"e/2": 0.05, "e/1": 0.95} == dict(
        zip(decode(world.task()).canaries["e"].load_endpoints, decode(world.task()).canaries["e"].weights, strict=True)
    )
    progress = world.tick(runner)
    assert ["put right"] == [d.what for d in progress.decisions]
    assert {"e/2": 0.05, "e/1": 0.95} == record.weights(world.task(), "e")
    assert "running" == world.tick(runner).rollout.phase


def test_weights_that_come_back_after_they_were_put_right_pause_the_rollout(world):
    """The first time they look like an old copy; the second time somebody has set them on purpose."""
    stale = dict(world.sections)
    runner = world.runner()
    runner.start(fresh())
    world.sections = dict(stale)
    assert ["put right"] == [d.what for d in world.tick(runner).decisions]
    world.sections = dict(stale)
    assert "paused" == world.tick(runner).rollout.phase
    assert "e" not in decode(world.task()).canaries


def test_an_old_copy_after_somebodys_will_is_not_fought(world):
    """Other weights pause the rollout; later changes do not concern it."""
    stale = dict(world.sections)
    runner = world.runner()
    runner.start(fresh())
    world.write(record.with_weights(world.task(), "e", {"e/1": 1.0}))
    assert "paused" == world.tick(runner).rollout.phase
    world.sections = stale
    assert () == world.tick(runner).decisions
    assert "e" not in decode(world.task()).canaries
    world.write({}, [record.command("e", PendingCommand("1", "resume", "ann"))])
    world.tick(runner)
    assert {"e/2": 0.05, "e/1": 0.95} == record.weights(world.task(), "e")


def test_an_old_copy_after_the_end_does_not_undo_a_rollback(world):
    """No runner is left: gateways follow its last decision and report why."""
    runner = world.runner()
    runner.start(fresh())
    world.tick(runner)
    stale = dict(world.sections)
    while not world.tick(runner, canary_failures=10).rollout.is_over:
        pass
    world.sections = stale
    spec = decode(world.task())
    assert ("rolled_back", (0.0, 1.0)) == (record.read(world.task(), "e")[0].phase, spec.canaries["e"].weights)
    assert ["canary e"] == [fault.subject for fault in spec.faults]
    assert "wrote an old copy back" in spec.faults[0].message


def test_each_kind_of_record_survives_an_old_copy_of_the_configuration(world):
    """After each record, an old copy of the whole configuration is written."""
    stale, runner = dict(world.sections), world.runner()
    rollout = runner.start(fresh())
    world.sections = dict(stale)
    assert rollout.canary == record.read(world.task(), "e")[0].canary
    world.write({}, [record.command("e", PendingCommand("id", "abort", "ann"))])
    world.sections = dict(stale)
    assert "abort" == record.pending_command(world.task(), "e").command
    world.write({}, [record.shadow("e", ShadowSpec("e", "e/3", 5.0))])
    world.sections = dict(stale)
    assert {"e"} == set(decode(world.task()).shadows)


def refuse(changed):
    """ClearML fails just before weights are written."""
    if changed:
        raise RegistryUnavailable("away")


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_step_that_could_not_be_written_is_written_again_and_is_nobodys_will(world, monkeypatch, is_recorded):
    """ClearML fails between the record of a step and its weights, or before both."""
    runner = world.runner()
    runner.start(fresh())
    before, write = dict(world.sections), world.write

    def broken(changed, records=()):
        if not changed:
            return write(changed, records)
        if is_recorded:
            write({}, records)
        raise RegistryUnavailable("away")

    monkeypatch.setattr(world, "write", broken)
    while not (progress := world.tick(runner)).problem:
        pass
    assert (50.0, {"e/2": 0.05, "e/1": 0.95}) == (progress.rollout.weight, record.weights(world.task(), "e"))
    monkeypatch.setattr(world, "write", write)
    progress = world.tick(runner, requests=0)
    assert ("running", {"e/2": 0.5, "e/1": 0.5}) == (progress.rollout.phase, record.weights(world.task(), "e"))
    assert ["start", "step"] == [decision.what for decision in progress.rollout.history]
    world.sections = before  # the one old copy that is put right has not been used up
    assert ["put right"] == [decision.what for decision in world.tick(runner, requests=0).decisions]
    assert {"e/2": 0.5, "e/1": 0.5} == record.weights(world.task(), "e")


def test_weights_that_somebody_sets_while_a_step_cannot_be_written_pause_the_rollout(world, monkeypatch):
    """A repeated write must not overwrite weights that somebody has set since."""
    runner = world.runner()
    runner.start(fresh())
    write = world.write
    monkeypatch.setattr(world, "write", lambda changed, records=(): refuse(changed) or write(changed, records))
    while not world.tick(runner).problem:
        pass
    monkeypatch.setattr(world, "write", write)
    world.write(record.with_weights(world.task(), "e", {"e/1": 1.0}))
    assert "paused" == world.tick(runner).rollout.phase
    assert {"e/1": 1.0} == record.weights(world.task(), "e")


def test_a_command_whose_weights_could_not_be_written_says_that_it_is_in_force(world, monkeypatch):
    """No runner exists: the abort is decided, and gateways follow the decision."""
    runner = world.runner()
    runner.start(fresh())
    runner.release()
    write = world.write

    def broken(changed, records=()):
        write({}, records)
        refuse(changed)

    monkeypatch.setattr(world, "write", broken)
    with pytest.raises(DeployError, match=r"in force.*could not be written to the serving Task: away"):
        act(world, "e", PendingCommand("1", "abort", "ann"), me="her", clock=lambda: world.now, sleep=lambda _s: None)
    assert (0.0, 1.0) == decode(world.task()).canaries["e"].weights


def test_what_gateways_say_of_inputs_and_answers_is_recorded(world):
    """Only for these two versions, not for others that are compared."""
    runner = world.runner()
    runner.start(fresh())
    world.compared = [
        {"endpoint": "e", "version": version, "beside": "1", "days": 40.0, "sentences": told, "alike": []}
        for version, told in (("3", {"texts": "it gets other texts"}), ("2", {"answers": "it answers differently"}))
    ]
    world.tick(runner)
    stored, _ = record.read(world.task(), "e")
    assert ["answers"] == list(stored.differences)
    assert "differs" == stored.history[-1].what
