"""The history on a fake registry: each change is recorded once, with its author, whoever looks."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from deploy.controller.history import recorder
from deploy.controller.history.changes import LOST, STOCK
from deploy.controller.history.recorder import Observer, announced, look, read
from deploy.controller.rollouts import record
from deploy.controller.rollouts.steps import Rollout, after_command, begun
from gateway.callers import Key, records_of, written
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


def _set(store: FakeRegistry, *weights: float, by: str = "") -> None:
    """Set weights as `canary set` does, or as the stock CLI does, which names nobody."""
    shares = {f"e/{len(weights) - place}": weight for place, weight in enumerate(weights)}
    with announced(store, ["e"], by=by, why="canary set") if by else contextlib.nullcontext():
        store.write(record.with_weights(store.task(), "e", shares))


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
    assert {("clearml-serving or ClearML's pages", True)} == {(one.by, one.is_seen) for one in read(store).entries}


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
    stock = "clearml-serving or ClearML's pages"
    assert [f"{stock} (user Ann Smith)", f"{stock} (user unknown)"] == [one.by for one in read(store).entries]


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


@pytest.mark.parametrize("change", ["added", "deployed", "weights", "setting"])
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
    elif change == "deployed":  # `triton-gateway deploy` runs the stock command, too
        store.add_endpoint("new", B)
        with announced(store, ["new"], by="ann", why="deploy"):
            pass
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


@pytest.mark.parametrize("how", ["alone", "late", "ours"])
def test_an_endpoint_that_is_removed_on_purpose_is_not_lost(store: FakeRegistry, how: str) -> None:
    """`model remove` changes nothing else; what was there for long is in every copy; our own commands say who it is."""
    now = [5000.0]
    observer = Observer(store, clock=lambda: now[0])
    observer(store.task())
    store.add_endpoint("gone", B)
    observer(store.task())
    now[0] += 1000 if how == "late" else 20
    is_ours = how == "ours"
    by = announced(store, ["gone", "new"], by="ann", why="apply") if is_ours else contextlib.nullcontext()
    del store.endpoints["gone"]
    if how != "alone":
        store.add_endpoint("new", B)
    with by:
        observer(store.task())
    assert ("gone", {}) in [(one.subject, one.after) for one in read(store).entries]
    assert {} == _lost(store)


def test_weights_are_told_by_whoever_set_them(store: FakeRegistry) -> None:
    store.add_endpoint("e", B, version="2")
    look(store)
    for weights, by in (((1, 9), "ann@laptop"), ((5, 5), "bob")):
        _set(store, *weights, by=by)
        Observer(store)(store.task())
    ten, half = "e/1 90 %, e/2 10 %", "e/1 50 %, e/2 50 %"
    assert [("canary", "e", "", ten), ("canary", "e", ten, half)] == _told(store)
    assert [("canary set", False)] * 2 == [(one.why, one.is_seen) for one in read(store).entries]
    assert ["ann@laptop", "bob"] == [one.by for one in read(store).entries]


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
    store.add_endpoint("e", B, version="2")
    look(store)
    rollout = begun(Rollout("e", "e/2", "e/1", steps=(5.0, 100.0)), "r1", time.time())
    store.ledger.write([record.stored(rollout)])
    _set(store, 3, 7)
    look(store)
    assert [STOCK] == [one.by for one in read(store).entries]


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


@pytest.mark.parametrize("is_noticed", ["within", "after"])
def test_a_tool_that_names_nobody_is_told_by_who_runs_it(
    store: FakeRegistry, monkeypatch: pytest.MonkeyPatch, is_noticed: str
) -> None:
    now = [5000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    clock = lambda: now[0]  # noqa: E731 - as short as that
    look(store, clock=clock)
    with announced(store, ["e/2"], by="ann", why="deploy"):
        store.add_endpoint("e", B, version="2")
        store.add_endpoint("other", B)
        if is_noticed == "within":
            look(store, clock=clock)
    now[0] += 30
    look(store, clock=clock)
    now[0] += 300
    store.add_endpoint("e", A, version="2")
    look(store, clock=clock)
    assert {} == store.history.read()["history_doing"]
    stock = "clearml-serving or ClearML's pages"
    assert [("e/2", "ann"), ("other", stock), ("e/2", stock)] == [(e.subject, e.by) for e in read(store).entries]


def test_what_nobody_can_read_is_not_told_as_removed(store: FakeRegistry, clock: Callable[[], float]) -> None:
    look(store, clock=clock)
    store.sections["endpoints"] = "{ broken"
    look(store, clock=clock)
    del store.sections["endpoints"]
    look(store, clock=clock)
    assert [] == _told(store)


def test_a_registry_that_is_away_neither_stops_a_change_nor_loses_it(store: FakeRegistry) -> None:
    look(store)
    store.history.is_up = False
    store.add_endpoint("e", B, version="2")
    with announced(store, ["e/2"], by="ann", why="deploy"):
        pass
    _set(store, 1, 9)
    observer = Observer(store)
    task = store.task()
    with pytest.raises(RegistryUnavailable):
        observer(task)
    store.history.is_up = True
    observer(task)
    assert [("canary", STOCK), ("endpoint", STOCK)] == [
        (one.kind, one.by) for one in sorted(read(store).entries, key=lambda one: one.place)
    ]


def test_the_oldest_are_dropped_in_blocks(
    store: FakeRegistry, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "KEPT", 10)
    monkeypatch.setattr(recorder, "BLOCK", 4)
    look(store, clock=clock)
    models = [f"{number:032x}" for number in range(30)]
    for model in models:
        store.add_endpoint("e", model, version="1")
        look(store, clock=clock)
    told = read(store, clock=clock)
    assert 10 <= len(told.entries) < 14
    assert models[-1] == told.entries[-1].after["model_id"]
    assert 1000.0 < told.since < told.entries[0].at


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
