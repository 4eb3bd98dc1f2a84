"""Compares the serving Task with the last recorded state, and records the changes. The controller calls it.

The records are read before the Task, so that an old copy of the Task is not taken for a change. Failures must not reach
callers: the next look finds a change that could not be recorded.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

from deploy.controller.history import changes
from deploy.controller.history.changes import Entry, Fact, Thing
from deploy.controller.plain import read as read_plain
from gateway.registry import Record, RegistryWriter
from gateway.spec import ServingTask

T = TypeVar("T")
_log = logging.getLogger("triton_gateway.history")

KEPT: Final = 1000
"""Number of the newest entries that are kept."""
_BEGUN: Final = "begun"
"""Key of the record with the start of the history."""

_Records = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class History:
    """The entries, the oldest first, and since when all changes are among them (Unix seconds; 0: not yet)."""

    entries: tuple[Entry, ...] = ()
    since: float = 0.0


def look(store: RegistryWriter, *, clock: Callable[[], float] = time.time) -> dict[str, Entry]:
    """Record the changes since the last look, and return ``changes.lost``. Raises the registry's errors.

    The very first look records the current state without entries.
    """
    recorded, now = store.history.read(), clock()
    facts, found = _changes(store, recorded, now)
    for entry in found:
        if entry.restore:
            _log.warning("%s was lost: %s. To restore it: %s", entry.subject, entry.why, entry.restore)
    lost = changes.lost([*_entries(recorded), *found])
    if facts is None:
        return lost
    known = {(one.kind, one.subject): Fact(one.after, one.by, one.at) for one in found}
    records = [changes.record_of(entry) for entry in found]
    if not _since(recorded):
        known = {thing: replace(fact, by="", at=now) for thing, fact in facts.items()}
        records.append(Record("history_begun", _BEGUN, {"at": round(now, 3)}))
    records += [Record("history_now", " ".join(thing), asdict(fact)) for thing, fact in known.items()]
    if records:
        store.history.write(records)
    gone = [thing for thing, fact in _known(recorded).items() if not fact.fields and thing not in known]
    store.history.remove("history_now", [" ".join(thing) for thing in gone])
    store.history.remove("history", sorted(recorded.get("history", {}))[:-KEPT])
    return lost


def read(store: RegistryWriter, *, clock: Callable[[], float] = time.time) -> History:
    """Return the recorded history, and what has changed since. Raises the registry's errors."""
    recorded = store.history.read()
    entries = _entries(recorded)
    since = _since(recorded) if len(entries) < KEPT else entries[0].at
    return History((*entries, *_changes(store, recorded, clock())[1]), since)


class Observer:
    """Called by the controller with the serving Task after every look. One thread.

    Costs nothing while the Task is the same object, and no call to the registry while its contents are unchanged.
    """

    def __init__(self, store: RegistryWriter, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._task: ServingTask | None = None
        self._said: dict[Thing, changes.Fields] | None = None
        self._lost: dict[str, Mapping[str, Any]] | None = None

    def __call__(self, task: ServingTask) -> None:
        """Record the changes. Raises the registry's errors."""
        if task is self._task:
            return
        facts = changes.facts_of(task)
        says = None if facts is None else _said(facts)
        if says is not None and says != self._said:
            self._tell(look(self._store, clock=self._clock))
            self._said = says
        self._task = task

    def _tell(self, entries: Mapping[str, Entry]) -> None:
        """Put lost endpoints where gateways find them, for ``status``. Raises the registry's errors."""
        lost: dict[str, Mapping[str, Any]] = {
            subject: {"at": one.at, "restore": one.restore} for subject, one in entries.items()
        }
        if lost == self._lost:
            return
        if lost:
            self._store.reports.write([Record("leader", "lost", lost)])
        else:
            self._store.reports.remove("leader", ["lost"])
        self._lost = lost


def _changes(
    store: RegistryWriter, recorded: _Records, now: float
) -> tuple[Mapping[Thing, changes.Fact] | None, list[Entry]]:
    """Return the facts of the Task, and what has changed since ``recorded`` was written.

    The facts are None if the Task cannot be read completely. Before the first look, nothing has changed.
    """
    task = store.task()
    facts = changes.facts_of(task)
    if facts is None or not _since(recorded):
        return facts, []
    known = _known(recorded)
    user = task.changed_by
    user = store.user_name(user) if user and _said(facts) != _said(known) else user
    return facts, changes.changed(known, facts, now=now, user=user)


def _said(facts: Mapping[Thing, Fact]) -> dict[Thing, changes.Fields]:
    return {thing: fact.fields for thing, fact in facts.items() if fact.fields}


def _since(recorded: _Records) -> float:
    return float(recorded.get("history_begun", {}).get(_BEGUN, {}).get("at", 0.0))


def _known(recorded: _Records) -> dict[Thing, Fact]:
    return {
        (kind, subject): fact for key, fact in _read(Fact, recorded.get("history_now", {})).items()
        for kind, _, subject in [key.partition(" ")] if kind in changes.KINDS
    }  # fmt: skip


def _entries(recorded: _Records) -> list[Entry]:
    return sorted(_read(Entry, recorded.get("history", {})).values(), key=lambda entry: entry.at)


def _read(kind: type[T], stored: Mapping[str, Mapping[str, Any]]) -> dict[str, T]:
    """Return what is stored of ``kind``, by key; what cannot be read is left out."""
    found = {}
    for key, value in stored.items():
        with contextlib.suppress(ValueError):
            found[key] = read_plain(kind, value)
    return found
