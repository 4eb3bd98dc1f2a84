"""The history on a fake registry: each change is recorded once, with its author, whoever looks."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from deploy.controller.history import recorder
from deploy.controller.history.changes import CLIENT, LOST
from deploy.controller.history.recorder import Observer, look, read
from deploy.controller.rollouts import record
from deploy.controller.rollouts.steps import Rollout, after_command, begun
from gateway.callers.keys import Key, records_of, written
from gateway.errors import RegistryUnavailable
from gateway.registry import Record
from gateway.spec import ShadowSpec
from tests.fakes import FakeRegistry

A, B = "a" * 32, "b" * 32


class Seen(FakeRegistry):
    """A serving Task with one version, at which a recorder has looked, and a clock that goes on with each look."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.add_endpoint("e", A, version="1")
        self.add_endpoint("f", A)
        self.look()

    def look(self) -> None:
        """Let the controller record what has changed."""
        look(self, clock=lambda: self.now)
        self.now += 1

    @property
    def told(self) -> list[tuple[str, str, str, str]]:
        """Kind and subject of each entry, what it was and what it is."""
        return [(one.kind, one.subject, _of(one.before), _of(one.after)) for one in read(self).entries]

    @property
    def authors(self) -> list[str]:
        """Who made each change."""
        return [one.by for one in read(self).entries]


@pytest.fixture
def store() -> Seen:
    return Seen()


def _of(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items() if name not in ("engine_type", "version"))


def test_what_stock_tools_change_is_told_once_with_what_it_was(store: Seen) -> None:
    """What is there at the first look is no change. Also told is what the controller has not noticed yet."""
    assert ([], 1000.0) == (store.told, read(store).since)
    store.add_endpoint("e", B, version="2")
    store.settings["metric_logging_freq"] = "1.0"
    a, b, writes = f"model_id {A}", f"model_id {B}", store.history.writes
    expected = [("endpoint", "e/2", "", b), ("setting", "metric_logging_freq", "", "value 1.0")]
    assert (expected, writes) == (store.told, store.history.writes)
    for model in (B, A, None):
        store.endpoints.pop("e/2")
        if model is not None:
            store.add_endpoint("e", model, version="2")
        store.settings["metric_logging_freq"] = "1.0" if model else "x" * 1000
        store.look()
    assert [*expected, ("endpoint", "e/2", b, a), ("endpoint", "e/2", a, "")] == store.told[:-1]
    assert len(store.told[-1][3]) < 400, "what is long is shortened"
    assert {(CLIENT, True)} == {(one.by, one.is_seen) for one in read(store).entries}


def test_the_user_that_the_task_names_is_told_by_name(store: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    store.users["4b1f"] = "Ann Smith"
    for user, version in (("4b1f", "2"), ("unknown", "3")):
        store.add_endpoint("e", B, version=version)
        task = FakeRegistry.task(store)
        monkeypatch.setattr(store, "task", lambda task=task, user=user: replace(task, changed_by=user))
        store.look()
    assert [f"{CLIENT} (user Ann Smith)", f"{CLIENT} (user unknown)"] == store.authors


def test_an_observer_with_an_old_task_takes_nothing_for_changed_back(store: Seen) -> None:
    slow = Observer(store, clock=lambda: store.now)
    slow(old := store.task())
    store.add_endpoint("e", B, version="2")
    store.look()
    slow(replace(old))
    slow(store.task())
    assert 1 == len(store.told)


def _lost(store: FakeRegistry) -> dict[str, str]:
    """What the controller has put where gateways read it."""
    found = store.reports.read().get("leader", {}).get("lost", {})
    return {subject: one["restore"] for subject, one in found.items()}


@pytest.mark.parametrize("is_added", [True, False])
def test_an_endpoint_that_a_stale_write_takes_away_is_reported_with_the_command_that_restores_it(
    store: Seen, is_added: bool
) -> None:
    """Two stock clients at once: the second writes back what it had read before the first, and a change of its own."""
    observer = Observer(store, clock=lambda: store.now)
    observer(store.task())
    store.now += 1000
    read_before = dict(store.endpoints)
    store.add_endpoint("lost", A, version="3", input_name=["x"], input_type=["float32"], input_size=[[4]])
    observer(store.task())
    store.now += 20
    store.endpoints.clear()
    store.endpoints.update(read_before)
    if is_added:
        store.add_endpoint("new", B)
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
    Observer(store, clock=lambda: store.now)(store.task())
    assert {"lost/3": command} == _lost(store), "the next controller goes on saying so"

    store.now += 20
    store.add_endpoint("lost", A, version="3")
    observer(store.task())
    assert {} == _lost(store), "somebody has restored it"


@pytest.mark.parametrize(("later", "others"), [(20, ()), (1000, ("new",))])
def test_an_endpoint_that_is_removed_on_purpose_is_not_lost(store: Seen, later: float, others: tuple[str, ...]) -> None:
    """`model remove` changes nothing else; what was there for long is in every copy."""
    observer = Observer(store, clock=lambda: store.now)
    store.add_endpoint("gone", B)
    observer(store.task())
    store.now += later
    del store.endpoints["gone"]
    for name in others:
        store.add_endpoint(name, B)
    observer(store.task())
    assert ("endpoint", "gone", f"model_id {B}", "") in store.told
    assert {} == _lost(store)


def test_steps_of_a_rollout_are_told_with_their_reason_and_other_weights_are_somebody_elses(store: Seen) -> None:
    """Its last step too, which leaves no canary, and was decided in the same millisecond."""
    store.add_endpoint("e", B, version="2")
    store.look()
    rollout = begun(Rollout("e", "e/2", "e/1", steps=(5.0, 100.0)), "r1", 1001.5001)
    for one in (rollout, after_command(rollout, "promote", "r2", 1001.5004, "ann")):
        shares = record.wanted_weights(store.spec(), one)
        assert shares is not None
        store.write(record.with_weights(store.task(), "e", shares), [record.stored(one)])
        store.look()
    store.write(record.with_weights(store.task(), "e", {"e/2": 3.0, "e/1": 7.0}))
    five = "e/1 95 %, e/2 5 %"
    assert [
        ("canary", "e", "", five), ("canary", "e", five, ""), ("canary", "e", "", "e/1 70 %, e/2 30 %")
    ] == store.told[1:]  # fmt: skip
    assert [
        ("the controller", "start: e/2 beside e/1"), ("the controller", "promote: requested by ann"), (CLIENT, ""),
    ] == [(one.by, one.why) for one in read(store).entries[1:]]  # fmt: skip


KEY = Key("k1", "0" * 64, "acme", created=written(5), by="ann")
SAYS = "tenant acme, priority default, operations infer,metadata, endpoints *"


def test_records_are_told_by_whoever_made_and_ended_them(store: Seen) -> None:
    """A key is never shown."""
    shadow = "to f, percent 5.0"
    for records in (
        [*records_of([], [KEY], "ann"), record.shadow("e/1", ShadowSpec("e/1", "f", 5.0), "ann")],
        [*records_of([KEY], [replace(KEY, revoked=written(6))], "bob"), record.shadow("e/1", None, "bob")],
    ):
        store.ledger.write(records)
        store.look()
    assert [
        ("shadow", "e/1", "", shadow), ("key", "k1", "", SAYS), ("shadow", "e/1", shadow, ""), ("key", "k1", SAYS, ""),
    ] == store.told  # fmt: skip
    assert ["ann", "ann", "bob", "bob"] == store.authors
    assert "0" * 64 not in json.dumps(store.history.read())


def test_what_nobody_can_read_is_not_told_as_removed_and_unreadable_entries_are_left_out(store: Seen) -> None:
    store.history.write([Record("history", "x", {"kind": 1}), Record("history_now", "y", {"kind": "canary"})])
    store.sections["endpoints"] = "{ broken"
    store.look()
    del store.sections["endpoints"]
    store.look()
    assert [] == store.told


def test_a_registry_that_is_away_loses_no_change_and_is_not_asked_while_nothing_is_said_anew(store: Seen) -> None:
    """What was found together is told in one order."""
    observer = Observer(store)
    observer(task := store.task())
    store.history.is_up = False
    observer(task)
    observer(replace(task))
    store.add_endpoint("e", B, version="2")
    store.write(record.with_weights(store.task(), "e", {"e/2": 1.0}))
    task = store.task()
    with pytest.raises(RegistryUnavailable):
        observer(task)
    store.history.is_up = True
    observer(task)
    assert [("canary", CLIENT), ("endpoint", CLIENT)] == [(one.kind, one.by) for one in read(store).entries]


def test_the_newest_are_kept(store: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was removed long ago is forgotten."""
    monkeypatch.setattr(recorder, "KEPT", 10)
    models = [f"{number:032x}" for number in range(30)]
    for model in models:
        store.add_endpoint(model, model)
        store.look()
        del store.endpoints[model]
    store.look()
    told = read(store)
    assert 10 <= len(told.entries) <= 12
    assert models[-1] == told.entries[-1].subject
    assert 1000.0 < told.since == told.entries[0].at
    assert len(store.history.read()["history_now"]) < 5
