"""Looks at the serving Task, compares it with what was recorded last, and records what has changed since.

Any number of processes may do so at once. What was recorded is read before the Task, so that nobody takes an old Task
for a change back; two that find the same write the same entry. Nothing here may make who calls it fail: a change that
could not be recorded is found by the next look.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from deploy.history import changes
from deploy.history.changes import Doing, Entry, Known, Thing
from deploy.tools.errors import GatewayError

_log = logging.getLogger("triton_gateway.history")

KEPT: Final = 1000
"""So many of the newest entries are kept at least."""
BLOCK: Final = 200
"""So many of the oldest are dropped at a time: whoever drops some finds the same ones."""
_DOING_S: Final = 900.0
_BEGUN: Final = "begun"

_Records = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Told:
    """What is recorded: the oldest first, and what was dropped. Times in Unix seconds, 0 for none."""

    entries: tuple[Entry, ...] = ()
    since: float = 0.0
    dropped: int = 0
    dropped_until: float = 0.0


def look(store: changes.Store, *, clock: Callable[[], float] = time.time) -> None:
    """Record what has changed since anybody looked last. Raises the registry's errors.

    The first look of all records what there is as it is, without an entry.
    """
    recorded = store.history.read()
    task = store.task()
    facts = changes.facts_of(task)
    if facts is None:
        return  # nobody knows what it says
    now = clock()
    known, entries = _known(recorded), _entries(recorded)
    records: list[changes.Record] = []
    if _BEGUN not in recorded.get("history_begun", {}):
        records.append(changes.Record("history_begun", _BEGUN, {"at": round(now, 3)}))
        first = [Known(*thing, fact.says, "", now) for thing, fact in facts.items() if thing not in known]
        records += [_record_of(one) for one in first]
        known |= {(one.kind, one.subject): one for one in first}
    doing = _doing(recorded)
    latest = max((entry.at for entry in entries.values()), default=0.0)
    user = str(task.get("last_changed_by") or "")
    for entry in changes.changed(known, facts, doing, now=now, latest=latest, user=user):
        if entry.key not in entries:
            records.append(changes.record_of(entry))
            entries[entry.key] = entry
        records.append(_record_of(changes.known_after(entry)))
    if records:
        store.history.write(records)
    _drop(store, entries, known)


def read(store: changes.Store) -> Told:
    """Return what is recorded. Raises the registry's errors."""
    recorded = store.history.read()
    entries = tuple(sorted(_entries(recorded).values(), key=lambda entry: entry.order))
    dropped = list(recorded.get("history_dropped", {}).values())
    begun = recorded.get("history_begun", {}).get(_BEGUN, {})
    return Told(
        entries, float(begun.get("at", 0.0)), sum(int(one.get("count", 0)) for one in dropped),
        max((float(one.get("until", 0.0)) for one in dropped), default=0.0),
    )  # fmt: skip


@contextlib.contextmanager
def recorded(store: changes.Store, *, endpoints: Iterable[str] = (), by: str = "", why: str = "") -> Iterator[None]:
    """Record what is changed within, after what was changed before it.

    ``by`` and ``why`` are for changes of these ``endpoints`` by a tool that does not say who uses it. A failure of
    recording is told in the log and stops nothing.
    """
    marks = [changes.Record("history_doing", url, asdict(Doing(by, why, time.time() + _DOING_S))) for url in endpoints]
    with _harmless():
        look(store)
        store.history.write(marks)
    try:
        yield
        with _harmless():
            look(store)
    finally:
        if marks:
            with _harmless():
                store.history.remove("history_doing", [mark.key for mark in marks])


class Observer:
    """Called by model sync with the serving Task after every look at it: notices what others have changed.

    One thread. Costs nothing while the Task is the same object, and no call of the registry while it says the same.
    """

    def __init__(self, store: changes.Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._task: Mapping[str, Any] | None = None
        self._said: dict[Thing, str] | None = None
        self._problem = ""

    def __call__(self, task: Mapping[str, Any]) -> bool:
        """Record what has changed; False: the Task itself is never changed."""
        if task is self._task:
            return False
        facts = changes.facts_of(task)
        says = None if facts is None else {thing: fact.says for thing, fact in facts.items()}
        if says is not None and says != self._said:
            try:
                look(self._store, clock=self._clock)
            except GatewayError as error:
                if error.message != self._problem:
                    _log.warning("changes cannot be recorded: %s", error.message)
                self._problem = error.message
                return False
            self._said, self._problem = says, ""
        self._task = task
        return False


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except GatewayError as error:
        _log.warning("this change is not in `triton-gateway history` yet: %s", error.message)


def _drop(store: changes.Store, entries: Mapping[str, Entry], known: Mapping[Thing, Known]) -> None:
    """Drop the oldest entries in whole blocks, and say how many before they are gone."""
    if len(entries) < KEPT + BLOCK:
        return
    ordered = sorted(entries.values(), key=lambda entry: entry.order)
    oldest = [entry.key for entry in ordered[:BLOCK]]
    until = ordered[BLOCK - 1].at
    name = hashlib.sha256(" ".join(oldest).encode()).hexdigest()[:32]
    store.history.write([changes.Record("history_dropped", name, {"count": BLOCK, "until": until})])
    store.history.remove("history", oldest)
    gone = [_name_of(thing) for thing, one in known.items() if not one.says and one.at <= until]
    store.history.remove("history_now", gone)


def _known(recorded: _Records) -> dict[Thing, Known]:
    found = {}
    for value in recorded.get("history_now", {}).values():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            one = Known(
                str(value["kind"]), str(value["subject"]), str(value["says"]), str(value.get("key", "")),
                float(value.get("at", 0.0)), str(value.get("by", "")),
            )  # fmt: skip
            if one.kind in changes.KINDS:
                found[one.kind, one.subject] = one
    return found


def _entries(recorded: _Records) -> dict[str, Entry]:
    found = {}
    for key, value in recorded.get("history", {}).items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[key] = changes.from_json(value)
    return found


def _doing(recorded: _Records) -> dict[str, Doing]:
    found = {}
    for url, value in recorded.get("history_doing", {}).items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[url] = Doing(str(value["by"]), str(value.get("why", "")), float(value["until"]))
    return found


def _record_of(known: Known) -> changes.Record:
    return changes.Record("history_now", _name_of((known.kind, known.subject)), asdict(known))


def _name_of(thing: Thing) -> str:
    return f"{thing[0]} {thing[1]}"
