"""Model sync against a registry and a Triton that misbehave on purpose; time moves by hand."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import onnx
import pytest
from onnx import TensorProto, helper

from deploy.sync.errors import verdict_of
from deploy.sync.health import Readiness
from deploy.sync.model_folder import build
from deploy.sync.model_folder.execution import Execution, Tuning, encode
from deploy.sync.reconcile import ModelSync
from deploy.sync.repository import ModelRepository
from deploy.sync.settings import SyncSettings
from gateway.errors import (
    ArtifactCorrupt,
    BackendRefused,
    BackendUnavailable,
    DeadlineExceeded,
    ModelNotReady,
    RegistryRefused,
    RegistryUnavailable,
    SpecFault,
)
from gateway.registry import reports
from gateway.registry.cache import SpecStore
from gateway.spec import ModelRecord, ServingTask
from tests.fakes import FakeLedger
from tests.inline import Inline
from tests.waiting import until


class Registry:
    """A serving Task and models as dictionaries."""

    def __init__(self):
        self.endpoints = {}
        self.models = {}
        self.version = 0
        self.fails = None
        self.text = None
        self.reports = FakeLedger()
        self.load_requests = {}

    def add(self, url, model_id, **model):
        endpoint, _, version = url.partition("/")
        self.endpoints[url] = {
            "engine_type": "triton",
            "serving_url": endpoint,
            "version": version,
            "model_id": model_id,
        }
        fields = {"name": "n", "uri": f"file:///{model_id}/net.onnx", "framework": "ONNX", **model}
        self.models[model_id] = ModelRecord(model_id, **fields)
        self.version += 1

    def drop(self, url):
        del self.endpoints[url]
        self.version += 1

    def marker(self):
        if self.fails:
            raise self.fails
        return str(self.version)

    def task(self):
        if self.fails:
            raise self.fails
        text = self.text if self.text is not None else json.dumps(self.endpoints)
        return ServingTask("t", "s", {"endpoints": text}, records={"load_request": dict(self.load_requests)})

    def records(self, model_ids):
        if self.fails:
            raise self.fails
        return {i: self.models[i] for i in model_ids if i in self.models}


class Cache:
    """One tiny ONNX file per model id, or an error."""

    def __init__(self, root):
        self._root = root
        self.errors = {}
        self.asked = []

    def learn(self, task):
        pass

    def hashes(self, record):
        return {"sha256": f"hash of {record.id}"} if (self._root / record.id).exists() else {}

    def keep(self, models):
        self.kept = {model.id for model in models}

    def model(self, record):
        self.asked.append(record.id)
        if record.id in self.errors:
            raise self.errors[record.id]
        folder = self._root / record.id
        if not folder.exists():
            folder.mkdir(parents=True)
            value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "xy"]
            graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
            onnx.save(helper.make_model(graph), folder / "net.onnx")
        return folder


class Triton:
    """Loads what is on disk unless it was told to fail."""

    def __init__(self, root):
        self._root = root
        self.states = {}
        self.errors = {}
        self.is_up = True
        self.refuses_key = False
        self.kills = ""
        """Loading a model with this in its name ends the server."""
        self.called = {}
        self.calls = []

    def _check(self, *, is_guarded=True):
        if not self.is_up:
            raise BackendUnavailable("no Triton answers")
        if self.refuses_key and is_guarded:
            raise BackendRefused("Triton refuses the key")

    def index(self):
        self._check()
        return dict(self.states)

    def load(self, name):
        self._check()
        self.calls.append(("load", name))
        assert (self._root / name / "config.pbtxt").exists()
        if self.kills and self.kills in name:
            self.is_up = False
            self.states.clear()
            self._check()
        errors = [error for part, error in self.errors.items() if part in name]
        if errors:
            self.states[name] = "failed"
            raise errors[0]
        self.states[name] = "ready"

    def unload(self, name):
        self._check()
        self.calls.append(("unload", name))
        self.states[name] = "absent"

    def is_ready(self, name):
        self._check(is_guarded=False)
        return self.states.get(name) == "ready"

    def last_inference(self):
        self._check()
        return self.called

    def restart(self):
        self.states.clear()

    def close(self):
        pass


@pytest.fixture
def world(tmp_path):
    """A sync with its surroundings; ``rounds(n)`` runs rounds a poll apart."""
    settings = SyncSettings(
        tmp_path / "state", tmp_path / "models", "triton:8001", engine="python", tuning=Tuning(instances=1)
    )
    w = SimpleNamespace(
        registry=Registry(),
        cache=Cache(tmp_path / "cache"),
        triton=Triton(tmp_path / "models"),
        now=1000.0,
        stubs={},
        settings=settings,
        repository=ModelRepository(tmp_path / "models"),
    )

    def start(pool=None, **changes):
        settings = replace(w.settings, **changes)
        w.sync = ModelSync(
            settings,
            w.registry,
            cache=w.cache,
            store=SpecStore(settings.state_dir / "sync"),
            triton=w.triton,
            repository=w.repository,
            clock=lambda: w.now,
            wall=lambda: w.now,
            pool=pool or Inline(),
            stubs=lambda _: w.stubs,
        )
        w.sync.open()

    def rounds(count=3, apart=2.0):
        for _ in range(count):
            w.sync.step()
            w.now += apart
        return {m["url"]: (m["state"], m["reason"] or m["doing"]) for m in w.sync.status()["models"]}

    w.start, w.rounds = start, rounds
    start()
    yield w
    w.sync.close()


def name_of(world, url):
    """Return the Triton name of an endpoint's model."""
    return next(m["name"] for m in world.sync.status()["models"] if m["url"] == url)


def test_a_wanted_model_is_written_loaded_ready_and_published(world):
    """The whole way. A custom endpoint needs no Triton."""
    world.registry.add("a/1", "m1")
    world.registry.add("custom", "m2")
    world.registry.endpoints["custom"]["engine_type"] = "custom"
    assert {"a/1": ("loaded", "")} == world.rounds()
    status = world.sync.status()
    assert ("loaded", "m1", "a/1") == tuple(status["models"][0][k] for k in ("state", "model", "url"))
    assert [("load", status["models"][0]["name"])] == world.triton.calls


def test_each_round_touches_the_file_that_a_supervisor_watches(world):
    """That is how `up` knows that it goes round."""
    world.registry.add("a/1", "m1")
    world.rounds(1)
    world.sync.close()
    stop = threading.Event()
    thread = threading.Thread(target=world.sync.run, args=(stop,))
    thread.start()
    until(world.settings.heartbeat.exists)
    stop.set()
    thread.join()


@pytest.mark.parametrize("breaks", ["record", "data", "download", "cpu", "build", "load"])
def test_a_model_that_fails_at_any_step_tells_why_and_harms_no_other(world, breaks):
    """Missing record, unfinished upload, failed download, a CPU without a feature, bad configuration, refused load."""
    world.registry.add("good", "m1")
    world.registry.add("bad", "m2")
    expected = {
        "record": "there is no model m2",
        "data": "has no data: its upload did not finish",
        "download": "the file store answers 404",
        "cpu": "needs a CPU with hypercubes, which this machine does not have",
        "build": 'has no field named "max_batchsize"',
        "load": "Protobuf parsing failed",
    }[breaks]
    match breaks:
        case "record":
            del world.registry.models["m2"]
        case "data":
            world.registry.models["m2"] = ModelRecord("m2", "n", "http://files/uploading_file", "ONNX")
        case "download":
            world.cache.errors["m2"] = RegistryRefused(expected)
        case "cpu":
            folder = world.cache.model(SimpleNamespace(id="m2"))
            needs = Execution("openvino", "bf16", needs=(("hypercubes",),))
            (folder / "runtime.json").write_text(encode(needs))
        case "build":
            world.registry.endpoints["bad"]["auxiliary_cfg"] = {"max_batchsize": 3}
        case "load":
            world.triton.errors["bad-"] = ModelNotReady(expected)
    told = world.rounds()
    assert ("loaded", "") == told["good"]
    assert ("failed" if breaks == "download" else "refused") == told["bad"][0]
    assert expected in told["bad"][1]


def test_another_release_writes_and_loads_its_models_again(world, monkeypatch):
    """Each once, under the same name. One that it cannot fetch says so, and serves on: the pod is ready."""
    world.registry.add("a", "m1")
    world.registry.add("b", "m2")
    world.rounds()
    recipes = {one.recipe for one in world.repository.models().values()}
    world.sync.close()
    world.triton.calls.clear()
    monkeypatch.setattr(build, "FORMAT", 99)
    world.cache.errors["m2"] = RegistryUnavailable("the file store does not answer")
    world.start()
    found = world.rounds(4)
    assert (("loaded", ""), "failed") == (found["a"], found["b"][0])
    assert [("load", name_of(world, "a"))] == world.triton.calls
    assert world.repository.models()[name_of(world, "a")].recipe not in recipes
    assert [] == Readiness().reasons(world.sync.status())
    world.triton.restart()
    world.rounds(1)
    assert Readiness().reasons(world.sync.status())


def test_a_failed_model_is_retried_with_growing_delays_and_recovers(world):
    """2 s, 4 s, 8 s …; the repair is found without anybody's help."""
    world.registry.add("a", "m1")
    world.cache.errors["m1"] = RegistryUnavailable("the file store does not answer")
    world.rounds(60, apart=1.0)
    assert 5 == len(world.cache.asked)  # at about 0, 2, 6, 14, 30 s
    del world.cache.errors["m1"]
    assert {"a": ("loaded", "")} == world.rounds(40)
    world.triton.calls.clear()
    world.triton.restart()
    world.triton.errors["a-"] = ModelNotReady("broken")
    world.rounds(8, apart=1.0)
    assert 2 == len(world.triton.calls), "it is a first failure again"


@pytest.mark.parametrize("repair", ["task", "triton"])
def test_what_failed_is_tried_at_once_when_something_changes(world, repair):
    """A user who repairs something does not wait for the delay; and a new Triton is empty."""
    world.registry.add("a", "m1")
    world.triton.errors["a-"] = ModelNotReady("broken")
    world.rounds(20, apart=10.0)
    world.triton.errors.clear()
    if repair == "task":
        world.registry.add("b", "m2")
    else:
        world.triton.is_up = False
        world.rounds(2)
        world.triton.is_up = True
    assert ("loaded", "") == world.rounds(3)["a"]


def test_an_upload_that_finishes_later_is_found(world):
    """The Task did not change, the model's record did."""
    world.registry.add("a", "m1", uri="http://files/uploading_file")
    world.rounds()
    world.registry.models["m1"] = replace(world.registry.models["m1"], uri="file:///m1/net.onnx")
    assert {"a": ("loaded", "")} == world.rounds(20)


def test_a_new_model_is_loaded_beside_the_old_one_which_leaves_after_grace(world):
    """However long that takes: it is what answers requests. Then its name is gone from Triton and disk."""
    world.registry.add("a", "m1")
    world.rounds()
    old = name_of(world, "a")
    world.cache.errors["m2"] = RegistryUnavailable("the file store does not answer")
    world.registry.add("a", "m2")
    world.rounds(30, apart=60.0)
    assert "ready" == world.triton.states[old]
    world.cache.errors.clear()
    world.rounds(200)
    assert ("absent", False) == (world.triton.states[old], (world.repository.root / old).exists())


def test_a_model_still_called_is_not_unloaded(world):
    """Triton's own statistics say that a gateway still uses it."""
    world.registry.add("a", "m1")
    world.rounds()
    old = name_of(world, "a")
    world.registry.drop("a")
    for _ in range(60):
        world.triton.called = {old: world.now - 1}
        world.rounds(1, apart=20.0)
    world.rounds(10)
    assert "ready" == world.triton.states[old], "that gateway may be starting again"
    world.rounds(60)
    assert "absent" == world.triton.states[old]


@pytest.mark.parametrize("trouble", ["registry", "section", "entry", "deleted"])
def test_nothing_is_unloaded_for_what_cannot_be_read(world, trouble):
    """Registry down, unparsable section, broken entry, model record deleted: what serves stays."""
    world.registry.add("a", "m1")
    world.rounds()
    match trouble:
        case "registry":
            world.registry.fails = RegistryUnavailable("nobody answers")
        case "section":
            world.registry.text = "a {{{ not hocon"
        case "entry":
            world.registry.endpoints["a"]["engine_type"] = "tritn"
        case "deleted":
            world.registry.models.clear()
    world.registry.version += 1
    world.rounds(30, apart=60.0)
    assert ["ready"] == list(world.triton.states.values())
    assert not any(call[0] == "unload" for call in world.triton.calls)
    world.triton.restart()
    world.rounds(2)
    assert ["ready"] == list(world.triton.states.values())


def test_a_triton_that_refuses_the_key_is_left_alone_and_said_so(world):
    """What it holds counts as held, nothing is tried; with the key the rest is loaded at once."""
    world.registry.add("a", "m1")
    world.rounds()
    calls = list(world.triton.calls)
    world.triton.refuses_key = True
    world.registry.add("b", "m2")
    told = world.rounds(5)
    assert ("loaded", "pending", calls) == (told["a"][0], told["b"][0], world.triton.calls)
    seen = world.sync.status()["triton"]
    assert (True, "Triton refuses the key") == (seen["answers"], seen["error"])
    world.triton.refuses_key = False
    assert {"a": ("loaded", ""), "b": ("loaded", "")} == world.rounds(3)
    assert "" == world.sync.status()["triton"]["error"]


def test_a_start_without_registry_serves_the_last_good_state(world):
    """A machine that comes back while ClearML is down; and a Triton that restarts, from disk, in the next round."""
    world.registry.add("a", "m1")
    world.rounds()
    world.sync.close()
    world.triton.restart()
    world.registry.fails = RegistryUnavailable("nobody answers", hint="check the address")
    world.cache.asked.clear()
    world.start()
    world.triton.is_up = False  # which the model is not blamed for
    assert {"a": ("pending", "Triton does not answer")} == world.rounds(20)
    world.triton.is_up = True
    assert {"a": ("loaded", "")} == world.rounds(2)
    assert "nobody answers; check the address" == world.sync.status()["registry"]["error"]
    world.triton.restart()
    assert ({"a": ("loaded", "")}, []) == (world.rounds(2), world.cache.asked)


def test_a_model_that_ends_triton_is_tried_less_and_less_often(world):
    """Every attempt costs all other models: they are served between two of them, and not suspected."""
    for url in ("a", "b", "killer"):
        world.registry.add(url, f"m-{url}")
    world.triton.kills = "killer"
    seen, served = [], 0
    for _ in range(120):
        seen = world.rounds(1)
        served += seen["a"][0] == seen["b"][0] == "loaded"
        world.triton.is_up = True  # its supervisor starts it again
    attempts = [name for kind, name in world.triton.calls if kind == "load" and "killer" in name]
    assert 3 <= len(attempts) <= 12
    assert served > 60
    assert ("failed", "Triton exited while loading this model (no Triton answers)") == seen["killer"]
    world.triton.kills = ""
    world.now += 300
    assert {"a": ("loaded", ""), "b": ("loaded", ""), "killer": ("loaded", "")} == world.rounds(5)


class Later(Inline):
    """Runs the steps of models when it is told to, and everything else at once."""

    def __init__(self):
        self.jobs = {}

    def submit(self, fn, /, *args, **kwargs):
        if len(args) != 3:  # the registry is asked
            return super().submit(fn, *args, **kwargs)
        future = Future()
        self.jobs[args[0].partition("-")[0]] = future, lambda: Inline().submit(fn, *args, **kwargs)
        return future

    def run(self, *urls):
        for url in urls:
            future, start = self.jobs.pop(url)
            done = start()
            if error := done.exception():
                future.set_exception(error)
            else:
                future.set_result(done.result())


def test_a_model_that_ended_triton_is_loaded_alone(world):
    """Neither beside others that are being loaded, nor others beside it: none of them is suspected or delayed."""
    world.sync.close()
    pool = Later()
    world.start(pool)
    for url in ("a", "b", "killer"):
        world.registry.add(url, f"m-{url}")
    world.triton.kills = "killer"
    world.rounds(2)
    pool.run("killer", "a", "b")
    world.triton.is_up = True
    world.now += 300
    world.rounds(2)
    assert {"a", "b"} == {*pool.jobs}
    pool.run("a", "b")
    world.triton.kills = ""
    world.rounds(1)
    assert {"killer"} == {*pool.jobs}
    world.triton.restart()
    world.rounds(2)
    assert {"killer"} == {*pool.jobs}
    pool.run("killer")
    world.rounds(2)
    assert {"a", "b"} == {*pool.jobs}


def test_dead_stub_processes_are_replaced(world):
    """Triton calls such a model READY for ever. Of another container no process is visible, which says nothing."""
    world.registry.add("a", "m1")
    world.registry.add("b", "m2")
    world.rounds(10)
    assert 2 == len(world.triton.calls)
    a, b = name_of(world, "a"), name_of(world, "b")
    world.stubs = {a: 1, b: 1}
    world.rounds()
    world.triton.calls.clear()
    world.stubs = {b: 1}
    world.rounds(2)
    world.stubs = {a: 1, b: 1}
    world.rounds(3)
    assert [("load", a)] == world.triton.calls


def test_a_restarted_triton_does_not_wait_for_the_next_look_at_the_task(world):
    """Looking at Triton and at the registry are two clocks: clearml-serving's minutes are only the registry's."""
    world.sync.close()
    world.start(poll_s=300.0)
    world.registry.add("a", "m1")
    world.rounds()
    world.registry.fails = AssertionError("the registry was asked")
    world.triton.restart()
    assert ({"a": ("loaded", "")}, "") == (world.rounds(2), world.sync.status()["registry"]["error"])


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (RegistryUnavailable("the file store does not answer"), False),
        (RegistryRefused("the file store answers 403"), False),
        (ArtifactCorrupt("the hash is wrong"), False),
        (SpecFault("it holds no files"), True),
        (ModelNotReady("no such operator"), True),
        (DeadlineExceeded("Triton did not load it in time"), True),
    ],
)
def test_what_is_refused_is_told_from_what_could_not_be_fetched(error, is_final):
    """A Triton without the second kind must not take the place of one that has it."""
    assert is_final == verdict_of(error).is_final


def test_a_model_that_is_loaded_stays_while_its_next_build_fails(world):
    """It is to be built differently, and that fails: what is loaded serves on."""
    world.registry.add("a", "m1")
    world.rounds()
    name = name_of(world, "a")
    world.sync.close()
    world.start(tuning=Tuning(instances=2))
    world.cache.errors["m1"] = SpecFault("it holds no files")
    assert "refused" == world.rounds()["a"][0]
    assert ("ready", True) == (world.triton.states[name], bool(world.repository.models()[name].recipe))


def on_pool(world, url, pool):
    """Configure what `--aux-config gateway.pool=…` writes."""
    world.registry.endpoints[url]["auxiliary_cfg"] = {"gateway": {"pool": pool}}
    world.registry.version += 1


def test_only_what_its_pool_serves_is_loaded(world):
    """By the endpoint's option or its model's tag; what names no pool is of the default one."""
    world.sync.close()
    world.start(pools=frozenset({"a10"}))
    world.registry.add("named", "m1")
    on_pool(world, "named", "a10,h100")
    world.registry.add("tagged", "m2", tags=["pool:a10"])
    world.registry.add("plain", "m3")
    world.registry.add("other", "m4", tags=["pool:a10"])
    on_pool(world, "other", "h100")
    assert {"named": ("loaded", ""), "tagged": ("loaded", "")} == world.rounds()
    assert {"m1", "m2"} == set(world.cache.asked)
    assert ["a10"] == world.sync.status()["pools"]
    world.sync.close()
    world.start(pools=frozenset({"*"}))
    assert {"named", "tagged", "plain", "other"} == set(world.rounds())


def test_what_moves_to_another_pool_stays_until_gateways_must_have_moved(world):
    """The other pool may load it for minutes, and nobody may call it meanwhile: gone is gone."""
    world.registry.add("a", "m1")
    assert {"a": ("loaded", "")} == world.rounds()
    on_pool(world, "a", "h100")
    assert {"a": "retiring"} == {url: state for url, (state, _) in world.rounds(100).items()}
    assert [] == [call for call in world.triton.calls if call[0] == "unload"]
    assert {} == world.rounds(250)
    assert ["unload"] == [kind for kind, _ in world.triton.calls if kind == "unload"]


def ask_to_load(world, name, at):
    """What a gateway writes when somebody asks for a model that is not there."""
    world.registry.load_requests[name] = {"at": at}
    world.registry.version += 1


def told(world):
    """What this model sync reports: url → phase, reason, and whether that is final."""
    return {
        one.url: (one.phase, one.reason, one.is_final) for found in reports.read(world.registry.reports.read()).values()
        for one in found
    }  # fmt: skip


def test_what_a_triton_has_and_why_not_is_reported(world):
    """On change, at most every ten seconds; hourly, or every minute while a model fails."""
    world.registry.add("a", "m-a")
    world.registry.add("b", "m-b")
    world.cache.errors["m-b"] = SpecFault("it holds no files")
    world.rounds(10)
    assert {"a": ("loaded", "", False), "b": ("pending", "it holds no files", True)} == told(world)
    writes = world.registry.reports.writes
    assert writes <= 2
    world.rounds(60)
    assert writes + 2 == world.registry.reports.writes
    world.cache.errors.clear()
    world.rounds(100)
    assert ("loaded", "", False) == told(world)["b"]
    writes = world.registry.reports.writes
    world.rounds(100)
    assert writes == world.registry.reports.writes
    world.rounds(6, apart=1000.0)
    assert writes < world.registry.reports.writes <= writes + 2
    world.registry.reports.is_up = False
    world.registry.drop("a")
    world.rounds(5)
    world.registry.reports.is_up = True
    world.rounds(10)
    assert "loaded" != told(world).get("a", ("gone",))[0]


COLD = "loaded", "idle; the next request loads it"


def cold_world(world):
    """One endpoint whose model may be unloaded, one whose may not; both are loaded."""
    for url in ("a", "b"):
        world.registry.add(url, f"m-{url}")
    world.registry.endpoints["a"]["auxiliary_cfg"] = {"gateway": {"unload_after": "60s"}}
    assert {"a": ("loaded", ""), "b": ("loaded", "")} == world.rounds()
    return name_of(world, "a")


def test_a_model_that_nobody_calls_is_unloaded_and_comes_back_when_asked_for(world):
    """It stays on disk; nothing is fetched again. What says nothing about it is never unloaded."""
    name = cold_world(world)
    for _ in range(40):  # requests are seen in Triton's own statistics, whoever makes them
        world.triton.called = {name: world.now - 5}
        world.rounds(2)
    world.rounds(20)
    assert [] == [call for call in world.triton.calls if call[0] == "unload"]
    found = world.rounds(15)
    assert (COLD, ("loaded", "")) == (found["a"], found["b"])
    assert [("unload", name)] == [call for call in world.triton.calls if call[0] == "unload"]
    before = len(world.triton.calls)
    world.rounds(20)
    assert before == len(world.triton.calls)
    ask_to_load(world, name, 5.0)
    assert ("loaded", "") == world.rounds()["a"]
    assert [("load", name)] == world.triton.calls[before:]
    assert ["m-a", "m-b"] == sorted(world.cache.asked)
    world.rounds(40)  # the same request again asks for nothing: it is unloaded for want of requests, and stays so
    assert COLD == world.rounds(20)["a"]
    ask_to_load(world, name, 6.0)
    assert ("loaded", "") == world.rounds()["a"]


def test_a_triton_that_restarts_keeps_cold_models_unloaded(world):
    """And its readiness does not wait for them."""
    cold_world(world)
    assert COLD == world.rounds(40)["a"]
    world.triton.restart()
    assert {"a": COLD, "b": ("loaded", "")} == world.rounds()
    assert [] == Readiness().reasons(world.sync.status())
