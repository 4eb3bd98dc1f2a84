"""The history on a fake registry: each change is recorded once, with its author, whoever looks."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from deploy.controller.history import recorder
from deploy.controller.history.changes import CLIENT, LOST
from deploy.controller.history.recorder import Observer, look, read
from deploy.controller.rollouts import record
from deploy.controller.rollouts.steps import Rollout, after_command, begun
from gateway.callers.keys import Key, records_of, written
from gateway.registry import Record, RegistryUnavailable
from gateway.spec import ShadowSpec
from tests.fakes import FakeRegistry

A, B = "a" * 32, "b" * 32


@pytest.fixture
def clock() -> Callable[[], float]:
    now: Iterator[float] = iter(range(1000, 10**6))
    return lambda: float(next(now))


@pytest.fixture
def store() -> FakeRegistry:
    found = FakeRegistry()
    found.add_endpoint("e", A, version="1")
    return found


def _told(store: FakeRegistry) -> list[tuple[str, str, str, str]]:
    return [(one.kind, one.subject, _of(one.before), _of(one.after)) for one in read(store).entries]


def _of(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items() if name not in ("engine_type", "version"))


def test_what_is_there_at_the_first_look_is_no_change(store: FakeRegistry, clock: Callable[[], float]) -> None:
    look(store, clock=clock)
    assert ([], 1000.0) == (_told(store), read(store).since)


def test_what_stock_tools_change_is_told_once_with_what_it_was(store: FakeRegistry, clock: Callable[[], float]) -> None:
    look(store, clock=clock)
    store.add_endpoint("e", B, version="2")
    store.settings["metric_logging_freq"] = "1.0"
    look(store, clock=clock)
    look(store, clock=clock)
    store.add_endpoint("e", A, version="2")
    look(store, clock=clock)
    del store.endpoints["e/2"]
    look(store, clock=clock)
    a, b = f"model_id {A}", f"model_id {B}"
    assert [
        ("endpoint", "e/2", "", b), ("setting", "metric_logging_freq", "", "value 1.0"),
        ("endpoint", "e/2", b, a), ("endpoint", "e/2", a, ""),
    ] == _told(store)  # fmt: skip
    assert {(CLIENT, True)} == {(one.by, one.is_seen) for one in read(store).entries}


def test_the_user_that_the_task_names_is_told_by_name(
    store: FakeRegistry, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    look(store, clock=clock)
    store.users["4b1f"] = "Ann Smith"
    for user, version in (("4b1f", "2"), ("unknown", "3")):
        store.add_endpoint("e", B, version=version)
        task = FakeRegistry.task(store)
        monkeypatch.setattr(store, "task", lambda task=task, user=user: replace(task, changed_by=user))
        look(store, clock=clock)
    assert [f"{CLIENT} (user Ann Smith)", f"{CLIENT} (user unknown)"] == [one.by for one in read(store).entries]


def test_what_the_controller_has_not_noticed_yet_is_shown_and_not_written(
    store: FakeRegistry, clock: Callable[[], float]
) -> None:
    look(store, clock=clock)
    store.add_endpoint("e", B, version="2")
    writes = store.history.writes
    assert [("endpoint", "e/2", "", f"model_id {B}")] == _told(store)
    assert writes == store.history.writes
    look(store, clock=clock)
    assert [("endpoint", "e/2", "", f"model_id {B}")] == _told(store)


def test_an_observer_with_an_old_task_takes_nothing_for_changed_back(
    store: FakeRegistry, clock: Callable[[], float]
) -> None:
    slow = Observer(store, clock=clock)
    slow(store.task())
    old = store.task()
    store.add_endpoint("e", B, version="2")
    look(store, clock=clock)
    slow(replace(old))
    slow(store.task())
    assert 1 == len(_told(store))


def _lost(store: FakeRegistry) -> dict[str, str]:
    """What the controller has put where gateways read it."""
    found = store.reports.read().get("leader", {}).get("lost", {})
    return {subject: one["restore"] for subject, one in found.items()}


@pytest.mark.parametrize("change", ["added", "weights", "setting"])
def test_an_endpoint_that_a_stale_write_takes_away_is_reported_with_the_command_that_restores_it(
    store: FakeRegistry, change: str
) -> None:
    """Two stock clients at once: the second writes back what it had read before the first, and a change of its own."""
    now = [5000.0]
    observer = Observer(store, clock=lambda: now[0])
    store.add_endpoint("old", B)
    observer(store.task())
    now[0] += 1000
    read_before = dict(store.endpoints)
    store.add_endpoint("lost", A, version="3", input_name=["x"], input_type=["float32"], input_size=[[4]])
    observer(store.task())
    now[0] += 20
    store.endpoints.clear()
    store.endpoints.update(read_before)
    if change == "added":
        store.add_endpoint("new", B)
    elif change == "weights":
        store.write(record.with_weights(store.task(), "canary", {"old": 1.0}))
    else:
        store.settings["metric_logging_freq"] = "1.0"
    observer(store.task())
    fields = {"engine_type": "triton", "version": "3", "model_id": A, "input_name": ["x"], "input_type": ["float32"],
              "input_size": [[4]]}  # fmt: skip
    command = _lost(store)["lost/3"]
    document = shlex.split(command)[2]
    assert f"printf %s {shlex.quote(document)} | triton-gateway apply -f -" == command
    assert {"version": 1, "endpoints": {"lost/3": fields}} == json.loads(document)
    (entry,) = (one for one in read(store).entries if one.restore)
    assert ("lost/3", {}, LOST, command) == (entry.subject, entry.after, entry.why, entry.restore)
    Observer(store, clock=lambda: now[0])(store.task())
    assert {"lost/3": command} == _lost(store), "the next controller goes on saying so"

    now[0] += 20
    store.add_endpoint("lost", A, version="3")
    observer(store.task())
    assert {} == _lost(store), "somebody has restored it"


@pytest.mark.parametrize("how", ["alone", "late"])
def test_an_endpoint_that_is_removed_on_purpose_is_not_lost(store: FakeRegistry, how: str) -> None:
    """`model remove` changes nothing else; what was there for long is in every copy."""
    now = [5000.0]
    observer = Observer(store, clock=lambda: now[0])
    observer(store.task())
    store.add_endpoint("gone", B)
    observer(store.task())
    now[0] += 1000 if how == "late" else 20
    del store.endpoints["gone"]
    if how != "alone":
        store.add_endpoint("new", B)
    observer(store.task())
    assert ("gone", {}) in [(one.subject, one.after) for one in read(store).entries]
    assert {} == _lost(store)


def test_steps_of_a_rollout_are_told_with_their_reason(store: FakeRegistry, clock: Callable[[], float]) -> None:
    """Its last step too, which leaves no canary, and was decided in the same millisecond."""
    store.add_endpoint("e", B, version="2")
    look(store, clock=clock)
    rollout = begun(Rollout("e", "e/2", "e/1", steps=(5.0, 100.0)), "r1", 1000.5001)
    for one in (rollout, after_command(rollout, "promote", "r2", 1000.5004, "ann")):
        shares = record.wanted_weights(store.spec(), one)
        assert shares is not None
        store.write(record.with_weights(store.task(), "e", shares), [record.stored(one)])
        look(store, clock=clock)
    five = "e/1 95 %, e/2 5 %"
    assert [("canary", "e", "", five), ("canary", "e", five, "")] == _told(store)
    assert [("the controller", "start: e/2 beside e/1"), ("the controller", "promote: requested by ann")] == [
        (one.by, one.why) for one in read(store).entries
    ]


def test_weights_that_are_not_those_of_the_rollout_are_somebody_elses(store: FakeRegistry) -> None:
    """And are told as shares, whatever they add up to."""
    store.add_endpoint("e", B, version="2")
    look(store)
    rollout = begun(Rollout("e", "e/2", "e/1", steps=(5.0, 100.0)), "r1", time.time())
    store.ledger.write([record.stored(rollout)])
    for weights in ({"e/2": 1.0, "e/1": 9.0}, {"e/2": 5.0, "e/1": 5.0}):
        store.write(record.with_weights(store.task(), "e", weights))
        look(store)
    ten, half = "e/1 90 %, e/2 10 %", "e/1 50 %, e/2 50 %"
    assert [("canary", "e", "", ten), ("canary", "e", ten, half)] == _told(store)
    assert [CLIENT, CLIENT] == [one.by for one in read(store).entries]


def test_keys_are_told_by_whoever_made_and_ended_them_and_never_shown(store: FakeRegistry) -> None:
    key = Key("k1", "0" * 64, "acme", created=written(5), by="ann")
    ended = Key("k1", "0" * 64, "acme", created=written(5), by="ann", revoked=written(6))
    look(store)
    for before, after, by in (([], [key], "ann"), ([key], [ended], "bob")):
        store.ledger.write(records_of(before, after, by))
        look(store)
    says = "tenant acme, priority default, operations infer,metadata, endpoints *"
    assert [("key", "k1", "", says), ("key", "k1", says, "")] == _told(store)
    assert ["ann", "bob"] == [one.by for one in read(store).entries]
    assert "0" * 64 not in json.dumps(store.history.read())


def test_a_shadow_is_told_when_it_begins_and_ends(store: FakeRegistry) -> None:
    store.add_endpoint("e", B, version="2")
    look(store)
    for wanted in (ShadowSpec("e", "e/2", 5.0), None):
        store.write({}, [record.shadow("e", wanted, "ann")])
        look(store)
    assert [("to e/2, percent 5.0", "ann"), ("", "ann")] == [(_of(one.after), one.by) for one in read(store).entries]


def test_what_nobody_can_read_is_not_told_as_removed(store: FakeRegistry, clock: Callable[[], float]) -> None:
    look(store, clock=clock)
    store.sections["endpoints"] = "{ broken"
    look(store, clock=clock)
    del store.sections["endpoints"]
    look(store, clock=clock)
    assert [] == _told(store)


def test_a_registry_that_is_away_loses_no_change(store: FakeRegistry) -> None:
    """What was found together is told in one order."""
    look(store)
    store.history.is_up = False
    store.add_endpoint("e", B, version="2")
    store.write(record.with_weights(store.task(), "e", {"e/2": 1.0}))
    observer, task = Observer(store), store.task()
    with pytest.raises(RegistryUnavailable):
        observer(task)
    store.history.is_up = True
    observer(task)
    assert [("canary", CLIENT), ("endpoint", CLIENT)] == [(one.kind, one.by) for one in read(store).entries]


def test_the_newest_are_kept(store: FakeRegistry, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was removed long ago is forgotten."""
    monkeypatch.setattr(recorder, "KEPT", 10)
    look(store, clock=clock)
    models = [f"{number:032x}" for number in range(30)]
    for model in models:
        store.add_endpoint(model, model)
        look(store, clock=clock)
        del store.endpoints[model]
    look(store, clock=clock)
    told = read(store, clock=clock)
    assert 10 <= len(told.entries) <= 12
    assert models[-1] == told.entries[-1].subject
    assert 1000.0 < told.since == told.entries[0].at
    assert len(store.history.read()["history_now"]) < 5


def test_entries_that_somebody_made_unreadable_are_left_out(store: FakeRegistry, clock: Callable[[], float]) -> None:
    look(store, clock=clock)
    store.history.write([Record("history", "x", {"kind": 1}), Record("history_now", "y", {"kind": "canary"})])
    store.add_endpoint("e", B, version="2")
    look(store, clock=clock)
    assert 1 == len(_told(store))


def test_an_observer_asks_nothing_while_nothing_is_said_anew(store: FakeRegistry) -> None:
    observer = Observer(store)
    observer(task := store.task())
    store.history.is_up = store.is_up = False
    observer(task)
    observer(replace(task))
    with pytest.raises(RegistryUnavailable):
        look(store)
