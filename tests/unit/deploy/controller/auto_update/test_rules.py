"""Auto-update's numbers: given once, never changed, never given again, whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.controller.auto_update import AutoUpdate
from deploy.controller.auto_update.rules import SERVED, update
from deploy.controller.wanted import carry_out
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway import hocon
from gateway.errors import RegistryRefused
from gateway.spec import ArtifactRef, ServingTask, decode
from gateway.version_numbers import KIND
from tests.fakes import FakeRegistry

RULE = {
    "base_serving_url": "auto", "engine_type": "triton", "monitor_project": "p", "monitor_tags": [],
    "only_published": True, "max_versions": 2, "input_name": ["x"], "input_type": ["float32"], "input_size": [[4]],
    "preprocess_artifact": "py_code_auto", "auxiliary_cfg": {"platform": '"onnxruntime_onnx"', "max_batch_size": 16},
}  # fmt: skip


def serving_task(rules, **texts):
    """A serving Task with rules by endpoint and further sections as text."""
    found = {"model_monitoring": sections.render(rules), **texts}
    code = {key: ArtifactRef(key, "u", "h", is_archive=False) for key in ("py_code_auto", "py_new")}
    return ServingTask("t", sections=found, artifacts=code)


def after(task, changed, records=()):
    """The Task with sections replaced and records added."""
    kept = {**task.records.get(KIND, {}), **{record.key: record.value for record in records}}
    return replace(task, sections={**task.sections, **changed}, records={**task.records, KIND: kept})


def applied(task, found, **more):
    """The Task after everything was written that there is to write."""
    for _ in range(10):
        wanted = update(task, found, **more)
        if not wanted.records and not wanted.sections:
            return task
        task = after(task, wanted.sections, wanted.records)
    raise AssertionError("it never settles")


def served(task):
    """Url to model id, as gateways and model sync read them."""
    return {url: e.model_id for url, e in decode(task).endpoints.items() if e.is_auto}


def copied(task):
    """The same as a stock reader finds it."""
    eps = hocon.parse(task.sections.get(SERVED) or "{}")
    return {key: entry["model_id"] for key, entry in eps.items()}


def stock(url, **fields):
    """A section with one endpoint."""
    endpoint, _, version = url.rpartition("/")
    return sections.render({url: {"serving_url": endpoint, "version": version, "engine_type": "triton", **fields}})


ONE_RULE = sections.render({"auto": RULE})
PREFIX = {"endpoint": "auto", "weights": [0.2, 0.8], "load_endpoint_prefix": "auto/"}


@pytest.mark.parametrize(
    ("texts", "stages", "found"),
    [
        pytest.param({}, ["cba"], {1: "b", 2: "c"}, id="the newest models, the newest of them with the highest number"),
        pytest.param({}, ["ba", "ca"], {1: "a", 3: "c"}, id="a number is not given again when its model is deleted"),
        pytest.param({}, ["ba", "a", "ba"], {1: "a", 2: "b"}, id="a model that comes back has its old number"),
        pytest.param({}, ["a", None, ""], {1: "a"}, id="a rule that cannot be asked or matches nothing keeps them"),
        pytest.param({"endpoints": stock("auto/1")}, ["a"], {2: "a"}, id="numbers of `model add` are left out"),
        pytest.param({SERVED: stock("auto/7", model_id="a")}, ["ba", "ba"], {7: "a", 8: "b"}, id="stock's stay"),
        pytest.param({"canary": sections.render({"auto": PREFIX})}, ["ba", "cba"], {2: "b", 3: "c"},
                     id="a route over a prefix names no version: the limit decides"),
        pytest.param({}, ["ba", {"model_monitoring": "{}"}], {}, id="versions of a removed rule leave"),
        pytest.param({}, ["ba", {"model_monitoring": "{}"}, {"model_monitoring": ONE_RULE}, "cb"], {2: "b", 3: "c"},
                     id="the numbers of a removed rule stay"),
        pytest.param({}, ["ba", {SERVED: stock("auto/1", model_id="b")}, "ba"], {1: "a", 2: "b"},
                     id="the stock CLI writes a stale copy of the section back"),
        pytest.param({"model_monitoring": sections.render({"auto": {**RULE, "engine_type": "sklearn"}})},
                     ["ba", "cba"], {2: "b", 3: "c"}, id="only gateways know if other engines work: the limit decides"),
    ],
)  # fmt: skip
def test_models_become_versions(texts, stages, found):
    """As clearml-serving numbers them, two at most; what stock readers find is the same. A stage: models or a write."""
    task = serving_task({"auto": RULE}, **texts)
    for stage in stages:
        is_write = isinstance(stage, dict)
        task = after(task, stage) if is_write else task
        models = {} if is_write or stage is None else {"auto": list(stage)}
        task = applied(task, models, is_good=lambda *_: "model_monitoring" not in texts)
    assert {f"auto/{number}": model for number, model in found.items()} == served(task) == copied(task)


def restarted(newest):
    """What a container of clearml-serving 1.3.5 writes that has just started: it counts from 1, the oldest first."""
    fields = {"engine_type": "triton", "serving_url": "auto"}
    return {SERVED: sections.render({
        f"auto/{number}": {**fields, "model_id": model, "version": str(number)}
        for number, model in enumerate(reversed(newest), start=1)
    })}  # fmt: skip


EVENTS = st.lists(st.tuples(st.sampled_from(["publish", "withdraw", "stock"]), st.integers(0, 9)), max_size=8)


@settings(max_examples=10, deadline=None)
@given(EVENTS, st.integers(1, 4))
def test_numbers_are_stable_under_any_order_of_events(events, most):
    """Each number names one model for ever, whatever clearml-serving writes; a second look changes nothing."""
    task = serving_task({"auto": {**RULE, "max_versions": most}})
    models, names = {}, {}
    for age, (kind, which) in enumerate(events):
        if kind == "publish":
            models[f"m{which}"] = age
        elif kind == "withdraw":
            models.pop(f"m{which}", None)
        newest = sorted(models, key=lambda m: -models[m])
        if kind == "stock":
            task = after(task, restarted(newest[: which % 4]))
            assert served(task).items() <= names.items() or not names
        task = applied(task, {"auto": newest})
        assert not newest or set(newest[:most]) <= set(served(task).values())
        for url, model in served(task).items():
            assert model == names.setdefault(url, model)


def test_the_written_endpoints_are_what_gateways_read():
    """Every field of the rule arrives; ClearML's names, the number as text. Also of a name with slashes, on which
    clearml-serving's own loop fails for ever.
    """
    rule = {**RULE, "base_serving_url": "grp/auto"}
    task = applied(serving_task({"grp/auto": rule}, endpoints="{}"), {"grp/auto": ["b", "a"]})
    spec = decode(task)
    assert () == spec.faults
    endpoint = spec.endpoints["grp/auto/2"]
    assert ("triton", "b", "2", True) == (endpoint.engine, endpoint.model_id, endpoint.version, endpoint.is_auto)
    assert "py_code_auto" == endpoint.preprocess.key
    assert {"platform": '"onnxruntime_onnx"', "max_batch_size": 16} == endpoint.auxiliary_pairs
    assert spec.endpoints == decode(replace(task, records={})).endpoints, "a stock reader finds the same in the copy"
    task = after(task, {"model_monitoring": sections.render({"grp/auto": {**rule, "preprocess_artifact": "py_new"}})})
    assert "py_new" == decode(task).endpoints["grp/auto/1"].preprocess.key, "new code of the rule reaches its versions"
    task = applied(task, {"grp/auto": ["a"]})
    assert "py_new" == hocon.parse(task.sections[SERVED])["grp/auto/1"]["preprocess_artifact"]


def test_a_rule_that_matches_nothing_any_more_is_a_fault_until_it_matches_again():
    """Its project was renamed: every reader of the Task says so. A rule that waits for its first model is none."""
    new = applied(serving_task({"auto": RULE}), {"auto": []})
    assert () == decode(new).faults
    task = applied(new, {"auto": ["a"]})
    lost = applied(task, {"auto": []})
    (fault,) = decode(lost).faults
    assert ("auto-update auto", True) == (fault.subject, fault.message.startswith("matches no model any more"))
    assert {"auto/1": "a"} == served(lost)
    assert () == decode(applied(lost, {"auto": ["b", "a"]})).faults
    assert () == decode(after(lost, {"model_monitoring": "{}"})).faults


def test_a_version_stays_until_a_newer_one_works():
    """An empty model is published under `--max-versions 1`: it does not take the place of one that answers."""
    task = applied(serving_task({"auto": {**RULE, "max_versions": 1}}), {"auto": ["good"]})
    works = {"good"}

    def published(task, *models):
        return applied(task, {"auto": models}, is_good=lambda url, model: model in works)

    task = published(task, "empty", "good")
    assert {"auto/1": "good", "auto/2": "empty"} == served(task)
    task = published(task, "broken", "empty", "good")
    assert {"auto/1": "good", "auto/3": "broken"} == served(task)
    # Triton was restarted: nothing is known to work, so nothing goes.
    works.clear()
    task = published(task, "new", "broken", "empty", "good")
    assert {"auto/1": "good", "auto/3": "broken", "auto/4": "new"} == served(task)
    works |= {"good", "new"}
    assert {"auto/4": "new"} == served(published(task, "new", "broken", "empty", "good"))
    # What was withdrawn on purpose does not stay for it.
    assert {"auto/2": "empty"} == served(published(task, "empty"))


CANARY = {"endpoint": "auto", "weights": [1, 0], "load_endpoints": ["auto/2", "auto/1"]}


@pytest.mark.parametrize(
    "route",
    [
        {"canary": sections.render({"auto": CANARY})},
        {"rollout": {"auto": {"endpoint": "auto", "stable": "auto/1"}}},
        {"shadow": {"auto": {"endpoint": "auto", "to": "auto/1", "percent": 5, "tolerance": 0.1}}},
    ],
    ids=["canary of weight 0", "rollout", "shadow"],
)
def test_versions_that_a_route_names_stay_whatever_the_limit(route):
    """A third model is published under `--max-versions 2`: the stable version of a live canary must not go. Also when
    it is not published any more, and until the route names others.
    """
    task = serving_task({"auto": RULE})
    task = after(task, route) if "canary" in route else replace(task, records=route)
    for models in ("ba", "cba"):
        task = applied(task, {"auto": [*models]})
    assert {"auto/1": "a", "auto/2": "b", "auto/3": "c"} == served(task)
    task = applied(task, {"auto": ["d", "c", "b"]})
    assert "a" == served(task)["auto/1"]
    task = replace(after(task, {"canary": "{}"}), records={KIND: task.records[KIND]})
    assert {"auto/3": "c", "auto/4": "d"} == served(applied(task, {"auto": ["d", "c", "b", "a"]}))


def test_an_unreadable_section_stops_auto_update_and_nothing_else():
    """What cannot be read is not overwritten."""
    task = applied(serving_task({"auto": RULE}), {"auto": ["a"]})
    with pytest.raises(DeployError):
        update(after(task, {SERVED: "a {{{"}), {"auto": ["b", "a"]})


class Store(FakeRegistry):
    """A serving Task with several writers, models of which only the order counts, and a clock by hand."""

    def __init__(self, most=2):
        super().__init__()
        task = serving_task({"auto": {**RULE, "max_versions": most}})
        self.sections, self.artifacts = dict(task.sections), task.artifacts
        self.now, self.newest, self.asked, self.loaded = 0.0, ["a"], 0, set()

    def find_models(self, query):
        self.asked += not query.ids
        self.followed()  # raises where it is away
        return [m for m in self.newest if not query.ids or m in query.ids][: query.most]

    def auto(self, **more):
        """A controller's auto-update."""
        return AutoUpdate(self, lambda: self.loaded, clock=lambda: self.now, **more)

    def settle(self, *writers, later=10.0):
        """Let all look, until none changes anything; return the models that are served."""
        self.now += later
        while any(carry_out(self, self.task(), writer) for writer in writers):
            pass
        return served(self.task())


@pytest.mark.parametrize("lost", ["write", "reply"])
def test_a_controller_that_is_killed_at_any_step_is_continued(lost):
    """Before the write nothing has happened, after it everything; its memory decides nothing."""
    store, straight = Store(), Store()
    for newest in (["a"], ["b", "a"], ["d", "c", "b"], ["e"]):
        store.newest = straight.newest = newest
        if lost == "write":
            store.write = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                carry_out(store, store.task(), store.auto())
            del store.write
        else:
            carry_out(store, store.task(), store.auto())
        assert store.settle(store.auto()) == straight.settle(straight.auto())


def test_the_registry_is_asked_when_it_is_due_or_the_rules_changed():
    """One small call per rule and period."""
    store = Store()
    auto = store.auto(every_s=5.0)
    store.settle(auto)
    changed = {"model_monitoring": sections.render({"auto": {**RULE, "max_versions": 1}})}
    for later, write, asked in ((4.9, {}, 1), (0.1, {}, 2), (0.0, {}, 2), (0.0, changed, 3)):
        store.write(write)
        store.settle(auto, later=later)
        assert asked == store.asked


@pytest.mark.parametrize("away", ["is_up", "ledger"])
def test_a_registry_that_is_away_or_takes_no_records_changes_nothing(away):
    """And is asked again: a number that could not be recorded is not served."""
    store = Store()
    store.settle(store.auto())
    before, store.newest = store.task(), ["b", "a"]
    if away == "ledger":
        store.ledger.is_read_only = True
        with pytest.raises(RegistryRefused):
            carry_out(store, before, store.auto())
    else:
        store.is_up = False
        assert not carry_out(store, before, store.auto())
    store.is_up = True
    assert before == store.task()


def test_the_copy_is_left_to_a_stock_container_that_lives_and_taken_back_after_it():
    """It restarts and counts from 1: no version is renumbered. Its own Triton helper must find the container's numbers,
    or it loads other models.
    """
    store = Store()
    auto = store.auto(settle_s=0.0)
    for newest in (["b", "a"], ["c", "b", "a"]):
        store.newest = newest
        store.loaded = set(store.settle(auto).items())
    store.containers = ["a container"]
    store.write(restarted(store.newest[:2]))
    stock = copied(store.task())
    for _ in range(2):
        assert {"auto/2": "b", "auto/3": "c"} == store.settle(auto)
    assert stock == copied(store.task()) == {"auto/1": "b", "auto/2": "c"}
    (fault,) = decode(store.task()).faults
    assert ("auto-update auto", True) == (fault.subject, "auto/1 is model b there" in fault.message)
    store.containers = []
    assert copied(store.task()) != store.settle(auto) == copied(store.task())
    assert () == decode(store.task()).faults


def test_a_retired_version_goes_when_the_new_one_was_loaded_for_a_while():
    """Gateways look at their own pace: between the two there is always one that answers."""
    store = Store(1)
    auto = store.auto(settle_s=30.0)
    store.settle(auto)
    store.loaded = {("auto/1", "a")}
    store.newest = ["b", "a"]
    assert {"auto/1": "a", "auto/2": "b"} == store.settle(auto)
    store.loaded.add(("auto/2", "b"))
    for later, there in ((10.0, {"a", "b"}), (24.0, {"a", "b"}), (6.0, {"b"})):
        assert there == set(store.settle(auto, later=later).values())
