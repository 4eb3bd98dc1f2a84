"""Model sync against a registry and a Triton that misbehave on purpose; time moves by hand."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
from onnx import TensorProto, helper

from deploy.sync.health import Readiness
from deploy.sync.model_folder import build
from deploy.sync.model_folder.execution import Tuning
from deploy.sync.reconcile import ModelSync
from deploy.sync.repository import ModelRepository
from deploy.sync.settings import SyncSettings
from gateway import errors
from gateway.registry import reports
from gateway.registry.cache import ArtifactCache, SpecStore
from gateway.registry.ledger import Record
from tests import tiny
from tests.fakes import FakeRegistry
from tests.inline import Inline


class Registry(FakeRegistry):
    """Every model has a file of its own with the same tiny graph."""

    def __init__(self, folder):
        super().__init__()
        x, y = ((name, TensorProto.FLOAT, ("batch", 2)) for name in "xy")
        self._file = tiny.saved(folder / "net.onnx", [helper.make_node("Identity", ["x"], ["y"])], [x], [y])
        self.errors = {}
        self.asked = []
        """The ids of models whose download began."""

    def add(self, url, model_id="", *, pool="", unload_after="", **fields):
        """Let an endpoint serve a model, by default one called like itself."""
        model_id = model_id or f"m-{url}"
        self.add_model(model_id, shutil.copy(self._file, self._file.with_name(f"{model_id}.onnx")), **fields)
        options = {name: value for name, value in (("pool", pool), ("unload_after", unload_after)) if value}
        self.add_endpoint(url, model_id, auxiliary_cfg={"gateway": options} if options else {})

    def download(self, uri, folder):
        model_id = uri.rpartition("/")[2].removesuffix(".onnx")
        self.asked.append(model_id)
        if model_id in self.errors:
            raise self.errors[model_id]
        return super().download(uri, folder)


class Triton:
    """Loads what is on disk unless it was told to fail."""

    def __init__(self, root):
        self._root = root
        self.states = {}
        self.errors = {}
        self.is_up = True
        self.refuses_key = False
        self.kills = "-"
        """Loading a model whose name begins like this ends the server."""
        self.called = {}
        self.loads, self.unloads = [], []

    def _check(self):
        if not self.is_up:
            raise errors.BackendUnavailable("no Triton answers")
        if self.refuses_key:
            raise errors.BackendRefused("Triton refuses the key")

    def index(self):
        self._check()
        return dict(self.states)

    def load(self, name):
        self.loads.append(name)
        assert (self._root / name / "config.pbtxt").exists()
        if name.startswith(self.kills):
            self.is_up = False
            self.states.clear()
        self._check()
        self.states[name] = "failed"
        if error := self.errors.get(name.partition("-")[0]):
            raise error
        self.states[name] = "ready"

    def unload(self, name):
        self.unloads.append(name)
        self.states[name] = "absent"

    def is_ready(self, name):
        return self.states.get(name) == "ready"

    def last_inference(self):
        return self.called

    def close(self):
        pass


class World:
    """A sync with its surroundings. The model of an endpoint is called ``URL-…`` in Triton."""

    def __init__(self, folder):
        self.settings = SyncSettings(
            folder / "state", folder / "models", "triton:8001", engine="python", tuning=Tuning(instances=1)
        )
        self.registry, self.triton = Registry(folder / "uploads"), Triton(folder / "models")
        self.repository = ModelRepository(folder / "models")
        self.now, self.stubs, self.sync = 1000.0, {}, None
        self.start()

    def start(self, pool=None, **changes):
        """Start model sync, anew if it runs."""
        if self.sync is not None:
            self.sync.close()
        settings = replace(self.settings, **changes)
        self.sync = ModelSync(
            settings, self.registry, cache=ArtifactCache(settings.state_dir / "cache", self.registry),
            store=SpecStore(settings.state_dir / "sync"), triton=self.triton, repository=self.repository,
            clock=lambda: self.now, wall=lambda: self.now, pool=pool or Inline(), stubs=lambda _: self.stubs,
        )  # fmt: skip
        self.sync.open()

    def rounds(self, count=3, apart=2.0):
        """Run rounds; returns state, and the reason or what is done, by url."""
        for _ in range(count):
            self.sync.step()
            self.now += apart
        return {m["url"]: (m["state"], m["reason"] or m["doing"]) for m in self.sync.status()["models"]}

    def name(self, url):
        """Triton's name of the model that serves an endpoint."""
        return next(m["name"] for m in self.sync.status()["models"] if m["url"] == url)


@pytest.fixture
def world(tmp_path):
    """See the class."""
    made = World(tmp_path)
    yield made
    made.sync.close()


LOADED = "loaded", ""
BROKEN = {
    "no record": (lambda w: w.registry.models.pop("m-bad"), "refused", "there is no model m-bad"),
    "an upload that did not finish": (
        lambda w: w.registry.models.update({"m-bad": replace(w.registry.models["m-bad"], uri="http://f/uploading_file")}),
        "refused", "has no data: its upload did not finish",
    ),
    "a download": (lambda w: w.registry.errors.update({"m-bad": errors.RegistryRefused("404")}), "failed", "404"),
    "a bad configuration": (
        lambda w: w.registry.endpoints["bad"].update(auxiliary_cfg={"max_batchsize": 3}), "refused", "max_batchsize"),
    "a refused load": (
        lambda w: w.triton.errors.update(bad=errors.ModelNotReady("no operator")), "refused", "no operator"),
    "a load that takes too long": (
        lambda w: w.triton.errors.update(bad=errors.DeadlineExceeded("late")), "refused", "late"),
}  # fmt: skip
"""What fails: how, and what is said. What another Triton may have fetched is not refused: a Triton without it must not
take the place of one that has it.
"""


@pytest.mark.parametrize("case", BROKEN)
def test_a_model_that_fails_at_any_step_tells_why_harms_no_other_and_recovers(world, case):
    """Also if only the model's record changes. A custom endpoint needs no Triton."""
    break_it, state, reason = BROKEN[case]
    world.registry.add("good")
    world.registry.add("bad")
    world.registry.add_endpoint("custom", "m-good", engine="custom")
    sound = dict(world.registry.models), dict(world.registry.endpoints["bad"])
    break_it(world)
    found = world.rounds()
    assert (LOADED, state, {"good", "bad"}) == (found["good"], found["bad"][0], {*found})
    assert reason in found["bad"][1]
    world.registry.models, world.registry.endpoints["bad"] = sound
    world.registry.errors.clear()
    world.triton.errors.clear()
    assert {"good": LOADED, "bad": LOADED} == world.rounds(20)
    assert 1 == world.triton.loads.count(world.name("good"))
    assert ("m-good", "good") == tuple(world.sync.status()["models"][1][key] for key in ("model", "url"))


def test_another_release_writes_and_loads_its_models_again(world, monkeypatch):
    """Each once, under the same name. What cannot be fetched or built again serves on: the pod is ready."""
    for url in "abc":
        world.registry.add(url)
    world.rounds()
    names = {url: world.name(url) for url in "abc"}
    recipes = {one.recipe for one in world.repository.models().values()}
    world.triton.loads.clear()
    monkeypatch.setattr(build, "FORMAT", 99)
    shutil.rmtree(world.settings.state_dir / "cache")
    world.registry.errors = {"m-b": errors.RegistryRefused("403"), "m-c": errors.SpecFault("it holds no files")}
    world.start()
    assert {"a": "loaded", "b": "failed", "c": "refused"} == {url: one for url, (one, _) in world.rounds(4).items()}
    assert [names["a"]] == world.triton.loads
    assert world.repository.models()[names["a"]].recipe not in recipes
    assert ({"ready"}, []) == ({*world.triton.states.values()}, Readiness().reasons(world.sync.status()))
    world.triton.states.clear()
    world.rounds(1)
    assert Readiness().reasons(world.sync.status())


def test_a_failed_model_is_retried_with_growing_delays(world):
    """2 s, 4 s, 8 s …, and from the start after it has recovered; at once if the Task changes or Triton is new."""
    world.registry.add("a")
    world.registry.errors["m-a"] = errors.RegistryRefused("403")
    world.rounds(60, apart=1.0)
    assert 5 == len(world.registry.asked)  # at about 0, 2, 6, 14, 30 s
    world.registry.errors.clear()
    assert {"a": LOADED} == world.rounds(40)
    world.triton.loads.clear()
    world.triton.states.clear()
    world.triton.errors["a"] = errors.ModelNotReady("broken")
    world.rounds(8, apart=1.0)
    assert 2 == len(world.triton.loads), "it is a first failure again"
    for repair in ("Task", "Triton"):
        world.triton.errors["a"] = errors.ModelNotReady("broken")
        world.triton.states.clear()
        world.rounds(20, apart=10.0)
        world.triton.errors.clear()
        if repair == "Task":
            world.registry.add("b")
        else:
            world.triton.is_up = False
            world.rounds(2)
            world.triton.is_up = True
        assert LOADED == world.rounds(3)["a"], repair


LEAVING = {
    "replaced": (lambda w: w.registry.add("a", "m2"), 26, 100),
    "removed": (lambda w: w.registry.endpoints.clear(), 26, 100),
    "moved to a pool that may load it for minutes": (lambda w: w.registry.add("a", pool="h100"), 590, 700),
}
"""What happens to an endpoint → seconds for which its model stays, and within which it goes."""


@pytest.mark.parametrize("case", LEAVING)
def test_a_model_leaves_triton_and_disk_when_gateways_must_have_moved(world, case):
    """Not while its successor cannot be fetched, nor while it is called, nor at once after that: a gateway may be
    starting again.
    """
    change, stays, goes = LEAVING[case]
    world.registry.add("a", "m1")
    world.rounds()
    old = world.name("a")
    world.registry.errors["m2"] = errors.RegistryRefused("403")
    change(world)
    if case == "replaced":
        world.rounds(30, apart=60.0)
        assert "ready" == world.triton.states[old]
        world.registry.errors.clear()
        while 2 > [*world.triton.states.values()].count("ready"):
            world.rounds(1)
    world.rounds(stays // 2)
    assert "ready" == world.triton.states[old]
    assert "retiring" in {model["state"] for model in world.sync.status()["models"]}
    if case == "removed":
        for _ in range(60):
            world.triton.called = {old: world.now - 1}
            world.rounds(1, apart=20.0)
        world.rounds(10)
        assert "ready" == world.triton.states[old]
    world.rounds((goes - stays) // 2)
    assert ([old], False) == (world.triton.unloads, (world.repository.root / old).exists())


UNREADABLE = {
    "the registry": lambda r: setattr(r, "is_up", False),
    "the section": lambda r: r.sections.update(endpoints="a {{{ not hocon"),
    "the entry": lambda r: r.endpoints["a"].update(engine_type="tritn"),
    "the model's record": lambda r: r.models.clear(),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_nothing_is_unloaded_for_what_cannot_be_read(world, what):
    """What serves stays, also in a Triton that restarts."""
    world.registry.add("a")
    world.rounds()
    UNREADABLE[what](world.registry)
    world.registry.add_endpoint("other", None, engine="custom")
    world.rounds(30, apart=60.0)
    assert (["ready"], []) == ([*world.triton.states.values()], world.triton.unloads)
    world.triton.states.clear()
    world.rounds(2)
    assert ["ready"] == [*world.triton.states.values()]


def test_a_triton_that_refuses_the_key_is_left_alone_and_said_so(world):
    """What it holds counts as held, nothing is tried; with the key the rest is loaded at once."""
    world.registry.add("a")
    world.rounds()
    loads = list(world.triton.loads)
    world.triton.refuses_key = True
    world.registry.add("b")
    found = world.rounds(5)
    assert ("loaded", "pending", loads) == (found["a"][0], found["b"][0], world.triton.loads)
    seen = world.sync.status()["triton"]
    assert (True, "Triton refuses the key") == (seen["answers"], seen["error"])
    world.triton.refuses_key = False
    assert {"a": LOADED, "b": LOADED} == world.rounds(3)
    assert "" == world.sync.status()["triton"]["error"]


def test_a_start_without_registry_serves_the_last_good_state(world):
    """A machine that comes back while ClearML is down; and a Triton that restarts, from disk, in the next round."""
    world.registry.add("a")
    world.rounds()
    world.triton.states.clear()
    world.registry.is_up = False
    world.registry.asked.clear()
    world.start()
    world.triton.is_up = False  # which the model is not blamed for
    assert {"a": ("pending", "Triton does not answer")} == world.rounds(20)
    world.triton.is_up = True
    assert {"a": LOADED} == world.rounds(2)
    assert "the fake registry is down" == world.sync.status()["registry"]["error"]
    world.triton.states.clear()
    assert ({"a": LOADED}, []) == (world.rounds(2), world.registry.asked)


class Later(Inline):
    """Runs the steps of models when it is told to, and everything else at once."""

    def __init__(self):
        self.waiting = {}

    def submit(self, fn, /, *args, **kwargs):
        if len(args) != 3:  # the registry is asked
            return super().submit(fn, *args, **kwargs)
        self.waiting[args[0].partition("-")[0]] = future, _, _ = Future(), fn, args
        return future

    def run(self):
        """Run the steps that wait."""
        waiting, self.waiting = self.waiting, {}
        for _, (future, fn, args) in sorted(waiting.items(), reverse=True):
            done = super().submit(fn, *args)
            future.set_exception(done.exception()) if done.exception() else future.set_result(None)


def test_a_model_that_ends_triton_is_tried_less_and_less_often_and_alone(world):
    """Every attempt costs all other models: they are served between two of them. None is loaded beside it, so that none
    is suspected or delayed with it.
    """
    pool = Later()
    world.start(pool)
    for url in ("a", "b", "killer"):
        world.registry.add(url)
    world.triton.kills = "killer"
    seen, served = {}, 0
    for _ in range(120):
        seen = world.rounds(1)
        served += seen["a"][0] == seen["b"][0] == "loaded"
        if "killer" in pool.waiting and world.triton.loads:
            world.triton.states.clear()
            world.rounds(1)
            assert {"killer"} == {*pool.waiting}
        pool.run()
        world.triton.is_up = True  # its supervisor starts it again
    assert 3 <= world.triton.loads.count(world.name("killer")) <= 12
    assert served > 60
    assert ("failed", "Triton exited while loading this model (no Triton answers)") == seen["killer"]
    world.triton.kills = "-"
    world.triton.states.clear()
    world.now += 300
    world.rounds(1)
    assert {"a", "b"} == {*pool.waiting}
    for _ in range(5):
        seen = world.rounds(1)
        pool.run()
    assert {"a": LOADED, "b": LOADED, "killer": LOADED} == seen


def test_dead_stub_processes_are_replaced(world):
    """Triton calls such a model READY for ever. Of another container no process is visible, which says nothing.

    And Triton is looked at more often than the registry. Those of an earlier load may live on beside the new ones.
    """
    world.start(poll_s=300.0, tuning=Tuning(instances=2))
    for url in "ab":
        world.registry.add(url)
    world.rounds(10)
    world.registry.is_up = False
    assert 2 == len(world.triton.loads)
    a, b = world.name("a"), world.name("b")
    for stubs, loads in (({1, 2}, []), ({1}, [a]), ({1, 3, 4}, [a]), ({1, 3}, [a, a]), ({1, 3, 5, 6}, [a, a])):
        world.stubs = {a: stubs, b: {7, 8}}
        world.rounds(2)
        assert loads == world.triton.loads[2:]
    assert "" == world.sync.status()["registry"]["error"]


def test_only_what_its_pool_serves_is_loaded(world):
    """By the endpoint's option or its model's tag; what names no pool is of the default one."""
    world.registry.add("named", pool="a10,h100")
    world.registry.add("tagged", tags=("pool:a10",))
    world.registry.add("plain")
    world.registry.add("other", tags=("pool:a10",), pool="h100")
    for pools, served in (("a10", {"named", "tagged"}), ("*", {"named", "tagged", "plain", "other"})):
        world.start(pools=frozenset({pools}))
        assert dict.fromkeys(served, LOADED) == world.rounds()
        assert ({f"m-{url}" for url in served}, [pools]) == ({*world.registry.asked}, world.sync.status()["pools"])


def test_what_a_triton_has_and_why_not_is_reported(world):
    """On change, at most every ten seconds; hourly, or every minute while a model fails.

    Each round touches a file, too, by which a supervisor knows that it goes round.
    """
    ledger = world.registry.reports

    def told():
        found = reports.read(ledger.read()).values()
        return {one.url: (one.phase, one.reason, one.is_final) for models in found for one in models}

    def writes(count, apart=2.0):
        before = ledger.writes
        world.rounds(count, apart)
        return ledger.writes - before

    world.registry.add("a")
    world.registry.add("b")
    world.registry.errors["m-b"] = errors.SpecFault("it holds no files")
    assert writes(10) <= 2
    assert {"a": ("loaded", "", False), "b": ("pending", "it holds no files", True)} == told()
    assert 2 == writes(60)
    world.registry.errors.clear()
    world.rounds(100)
    assert ("loaded", "", False) == told()["b"]
    assert 0 == writes(100)
    assert 1 <= writes(6, apart=1000.0) <= 2
    ledger.is_up = False
    world.registry.endpoints.pop("a")
    world.rounds(5)
    ledger.is_up = True
    world.rounds(10)
    assert "loaded" != told().get("a", ("gone",))[0]
    world.sync.close()
    is_over = iter([False, True, True])
    world.sync.run(SimpleNamespace(is_set=lambda: next(is_over)))
    assert world.settings.heartbeat.exists()


def test_a_model_that_nobody_calls_is_unloaded_and_comes_back_when_asked_for(world):
    """It stays on disk, and a Triton that restarts does not wait for it. What says nothing about it is not unloaded."""
    cold = "loaded", "idle; the next request loads it"

    def ask(at):  # what a gateway writes
        world.registry.ledger.write([Record("load_request", name, {"at": at})])

    world.registry.add("a", unload_after="60s")
    world.registry.add("b")
    world.rounds()
    name = world.name("a")
    for _ in range(40):  # requests are seen in Triton's own statistics, whoever makes them
        world.triton.called = {name: world.now - 5}
        world.rounds(2)
    world.rounds(20)
    assert [] == world.triton.unloads
    assert {"a": cold, "b": LOADED} == world.rounds(15)
    world.triton.states.clear()
    assert {"a": cold, "b": LOADED} == world.rounds(20)
    assert ([], [name]) == (Readiness().reasons(world.sync.status()), world.triton.unloads)
    loads = len(world.triton.loads)
    ask(5.0)
    assert LOADED == world.rounds()["a"]
    world.rounds(40)  # the same request again asks for nothing: it is unloaded for want of requests, and stays so
    assert cold == world.rounds(20)["a"]
    ask(6.0)
    assert LOADED == world.rounds()["a"]
    assert [name, name] == world.triton.loads[loads:]
    assert ["m-a", "m-b"] == sorted(world.registry.asked)
