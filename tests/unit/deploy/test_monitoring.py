"""Auto-update's numbers: given once, never changed, never given again, whatever happens in whatever order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.auto_update import AutoUpdate
from deploy.controlplane import sections
from deploy.monitoring import LEDGER, SERVED, assign, update
from gateway.errors import RegistryUnavailable
from gateway.spec import decode

RULE = {
    "base_serving_url": "auto", "engine_type": "triton", "monitor_project": "p", "monitor_tags": [],
    "only_published": True, "max_versions": 2, "input_name": ["x"], "input_type": ["float32"], "input_size": [[4]],
    "preprocess_artifact": "py_code_auto", "auxiliary_cfg": {"platform": '"onnxruntime_onnx"', "max_batch_size": 16},
}  # fmt: skip


def serving_task(rules, **texts):
    """A serving Task with rules by endpoint and further sections as text."""
    found = {"model_monitoring": sections.render(rules), **texts}
    code = [{"key": key, "uri": "u", "hash": "h"} for key in ("py_code_auto", "py_new")]
    items = {name: {"name": name, "value": text} for name, text in found.items()}
    return {"id": "t", "configuration": items, "execution": {"artifacts": code}}


def after(task, changed):
    """The Task with sections replaced."""
    items = {name: {"name": name, "value": text} for name, text in changed.items()}
    return {**task, "configuration": {**task["configuration"], **items}}


def served(task):
    """Version number to model id, as a gateway reads them."""
    eps = sections.parse(task["configuration"].get(SERVED, {}).get("value") or "{}")
    return {key: entry["model_id"] for key, entry in eps.items()}


def test_the_newest_models_are_served_and_the_newest_has_the_highest_number():
    """As clearml-serving numbers them."""
    versions, ledger = assign({}, ["c", "b", "a"], most=2)
    assert {1: "b", 2: "c"} == versions
    assert {"b": 1, "c": 2} == ledger


def test_a_number_is_not_given_again_when_its_model_is_gone():
    """The newest model is deleted, another one published: it does not inherit the number."""
    _, ledger = assign({}, ["b", "a"], most=2)
    versions, _ = assign(ledger, ["c", "a"], most=2)
    assert {1: "a", 3: "c"} == versions


def test_a_model_that_comes_back_has_its_old_number():
    """Unpublished and published again."""
    _, ledger = assign({}, ["b", "a"], most=2)
    _, ledger = assign(ledger, ["a"], most=2)
    versions, _ = assign(ledger, ["b", "a"], most=2)
    assert {1: "a", 2: "b"} == versions


def test_numbers_of_fixed_endpoints_are_left_out():
    """`model add --endpoint auto --version 1` exists: the rule starts at 2."""
    versions, _ = assign({}, ["a"], most=1, taken={1})
    assert {2: "a"} == versions


EVENTS = st.lists(st.tuples(st.sampled_from(["publish", "withdraw"]), st.integers(0, 9)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(EVENTS, st.integers(1, 4), st.sets(st.integers(1, 6)))
def test_numbers_are_stable_under_any_order_of_events(events, most, taken):
    """Each number names one model for ever, the newest models are served, a second look changes nothing."""
    models, names, ledger = {}, {}, {}
    for age, (kind, which) in enumerate(events):
        if kind == "publish":
            models[f"m{which}"] = age
        else:
            models.pop(f"m{which}", None)
        newest = sorted(models, key=lambda m: -models[m])
        versions, ledger = assign(ledger, newest, most=most, taken=taken)
        assert (versions, ledger) == assign(dict(ledger), newest, most=most, taken=taken)
        assert set(newest[:most]) == set(versions.values())
        assert not taken & set(versions)
        for number, model in versions.items():
            assert model == names.setdefault(number, model)


@settings(max_examples=5, deadline=None)
@given(st.permutations([("publish", 1), ("publish", 2), ("publish", 3), ("withdraw", 1), ("withdraw", 3)]))
def test_numbers_survive_in_the_serving_task(events):
    """The same over the sections of the Task: nothing else is remembered between two looks."""
    task = serving_task({"auto": RULE})
    models, names = {}, {}
    for age, (kind, which) in enumerate(events):
        if kind == "publish":
            models[f"m{which}"] = age
        else:
            models.pop(f"m{which}", None)
        newest = sorted(models, key=lambda m: -models[m])
        task = after(task, update(task, {"auto": newest}).sections)
        assert {} == update(task, {"auto": newest}).sections
        for url, model in served(task).items():
            assert model == names.setdefault(url, model)


def test_the_written_endpoints_are_what_gateways_read():
    """Every field of the rule arrives; ClearML's names, the number as text."""
    task = serving_task({"auto": RULE}, endpoints="{}")
    task = after(task, update(task, {"auto": ["b", "a"]}).sections)
    spec = decode(task)
    assert () == spec.faults
    endpoint = spec.endpoints["auto/2"]
    assert ("triton", "b", "2", True) == (endpoint.engine, endpoint.model_id, endpoint.version, endpoint.is_auto)
    assert "py_code_auto" == endpoint.preprocess.key
    assert {"platform": '"onnxruntime_onnx"', "max_batch_size": 16} == endpoint.auxiliary_pairs
    assert {"auto": {"a": 1, "b": 2}} == sections.parse(task["configuration"][LEDGER]["value"])


def test_numbers_written_by_clearml_serving_itself_are_taken_over():
    """A service that ran on the stock inference containers keeps its urls."""
    eps = json.dumps({"auto/7": {"serving_url": "auto", "version": "7", "model_id": "a", "engine_type": "triton"}})
    task = serving_task({"auto": RULE}, **{SERVED: eps})
    task = after(task, update(task, {"auto": ["b", "a"]}).sections)
    assert {"auto/7": "a", "auto/8": "b"} == served(task)


def test_an_endpoint_name_with_slashes_works():
    """clearml-serving's own loop fails on it for ever."""
    task = serving_task({"grp/mdl": {**RULE, "base_serving_url": "grp/mdl"}})
    task = after(task, update(task, {"grp/mdl": ["a"]}).sections)
    assert {"grp/mdl/1": "a"} == served(task)
    assert {} == update(task, {"grp/mdl": ["a"]}).sections


def test_a_rule_that_cannot_be_asked_or_matches_nothing_keeps_its_versions():
    """Nothing is taken out of service by an accident."""
    task = serving_task({"auto": RULE})
    task = after(task, update(task, {"auto": ["a"]}).sections)
    assert {} == update(task, {}).sections
    nothing = update(task, {"auto": []})
    assert {} == nothing.sections
    assert 1 == len(nothing.notes)


def test_versions_of_a_removed_rule_leave_and_its_numbers_stay():
    """`model remove --endpoint auto`, and the same rule added again."""
    task = serving_task({"auto": RULE})
    task = after(task, update(task, {"auto": ["b", "a"]}).sections)
    gone = after(task, {"model_monitoring": "{}"})
    gone = after(gone, update(gone, {}).sections)
    assert {} == served(gone)
    back = after(gone, {"model_monitoring": sections.render({"auto": RULE})})
    back = after(back, update(back, {"auto": ["c", "b"]}).sections)
    assert {"auto/2": "b", "auto/3": "c"} == served(back)


CANARY = {"endpoint": "auto", "weights": [0.2, 0.8], "load_endpoints": ["auto/2", "auto/1"]}
ROLLOUT = json.dumps({"endpoint": "auto", "stable": "auto/1"})
SHADOW = json.dumps({"endpoint": "auto", "to": "auto/1", "percent": 5, "tolerance": 0.1})


@pytest.mark.parametrize(
    "route",
    [
        {"canary": sections.render({"auto": CANARY})},
        {"canary": sections.render({"auto": {**CANARY, "weights": [1, 0]}})},
        {"triton_gateway_rollout_auto": ROLLOUT},
        {"triton_gateway_shadow_auto": SHADOW},
    ],
    ids=["canary", "canary of weight 0", "rollout", "shadow"],
)
def test_versions_that_a_route_names_stay_whatever_the_limit(route):
    """A third model is published under `--max-versions 2`: the stable version of a live canary must not go."""
    task = serving_task({"auto": RULE}, **route)
    task = after(task, update(task, {"auto": ["b", "a"]}).sections)
    task = after(task, update(task, {"auto": ["c", "b", "a"]}).sections)
    assert {"auto/1": "a", "auto/2": "b", "auto/3": "c"} == served(task)
    # Also when it is not published any more, and until the route names others.
    task = after(task, update(task, {"auto": ["d", "c", "b"]}).sections)
    assert "a" == served(task)["auto/1"]
    task = after(task, dict.fromkeys(route, "{}"))
    task = after(task, update(task, {"auto": ["d", "c", "b", "a"]}).sections)
    assert {"auto/3": "c", "auto/4": "d"} == served(task)


def test_a_route_over_a_prefix_names_no_version():
    """It takes the newest, whichever they are: the limit decides."""
    route = {"endpoint": "auto", "weights": [0.2, 0.8], "load_endpoint_prefix": "auto/"}
    task = serving_task({"auto": RULE}, canary=sections.render({"auto": route}))
    for newest in (["b", "a"], ["c", "b", "a"]):
        task = after(task, update(task, {"auto": newest}).sections)
    assert {"auto/2": "b", "auto/3": "c"} == served(task)


def test_a_changed_rule_changes_its_versions():
    """New preprocess code for the rule reaches the versions it already made."""
    task = serving_task({"auto": RULE})
    task = after(task, update(task, {"auto": ["a"]}).sections)
    task = after(task, {"model_monitoring": sections.render({"auto": {**RULE, "preprocess_artifact": "py_new"}})})
    eps = sections.parse(update(task, {"auto": ["a"]}).sections[SERVED])
    assert "py_new" == eps["auto/1"]["preprocess_artifact"]


def test_an_unreadable_section_stops_auto_update_and_nothing_else():
    """What cannot be read is not overwritten."""
    task = after(serving_task({"auto": RULE}), {SERVED: "a {{{"})
    held = update(task, {"auto": ["a"]})
    assert {} == held.sections
    assert 1 == len(held.notes)


class Store:
    """A serving Task with several writers; sections of a call are written together."""

    def __init__(self):
        self.state = serving_task({"auto": RULE})
        self.newest = []
        self.is_up = True
        self.asked = 0

    def task(self):
        return self.state

    def models(self, query):
        self.asked += 1
        if not self.is_up:
            raise RegistryUnavailable("away")
        return self.newest[: query.most]

    def write(self, changed, records=()):
        self.state = after(self.state, changed)


def settle(*writers, store):
    """Let every writer look until none of them changes anything."""
    changed = True
    while changed:
        changed = False
        for writer in writers:
            changed = writer(store.task()) or changed


def test_writers_that_raced_with_different_views_agree_in_the_end():
    """Both gave out number 1 from an old copy of the Task; the one that lost takes over what the Task says."""
    store = Store()
    one, two = (AutoUpdate(store, clock=lambda: 0.0) for _ in range(2))
    old = store.task()
    store.newest = ["a"]
    assert one(old)
    store.newest = ["b", "a"]
    assert two(old)
    settle(one, two, store=store)
    found = served(store.task())
    assert {"a", "b"} == set(found.values())
    settle(AutoUpdate(store, clock=lambda: 0.0), store=store)
    assert found == served(store.task())


def test_the_registry_is_asked_when_it_is_due_or_the_rules_changed():
    """One small call per rule and period."""
    store, now = Store(), [0.0]
    store.newest = ["a"]
    auto = AutoUpdate(store, clock=lambda: now[0], every_s=5.0)
    settle(auto, store=store)
    asked = store.asked
    assert not auto(store.task())
    assert asked == store.asked
    now[0] = 6.0
    assert not auto(store.task())
    assert asked + 1 == store.asked
    store.write({"model_monitoring": sections.render({"auto": {**RULE, "max_versions": 1}})})
    auto(store.task())
    assert asked + 2 == store.asked


def test_a_registry_that_is_away_changes_nothing():
    """And is asked again."""
    store = Store()
    store.newest = ["a"]
    settle(AutoUpdate(store, clock=lambda: 0.0), store=store)
    before = store.task()
    store.is_up = False
    assert not AutoUpdate(store, clock=lambda: 0.0)(store.task())
    assert before == store.task()
