"""Compares the serving Task with the last recorded state, and records the changes.

Several processes may do so at once. The records are read before the Task, so that an old copy of the Task is not taken
for a change. Two processes that find the same change write the same entry. Failures must not reach callers: the next
look finds a change that could not be recorded.
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
"""Number of the newest entries that are always kept."""
BLOCK: Final = 200
"""Number of the oldest entries that are dropped together, so that several processes drop the same ones."""
_DOING_S: Final = 900.0
"""Seconds for which a note about a change in progress is valid."""
_BEGUN: Final = "begun"
"""Key of the record with the start of the history."""

_Records = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class History:
    """The recorded entries, the oldest first, and how many were dropped. Times in Unix seconds; 0: none."""

    entries: tuple[Entry, ...] = ()
    since: float = 0.0
    dropped: int = 0
    dropped_until: float = 0.0


def look(store: changes.Store, *, clock: Callable[[], float] = time.time) -> None:
    """Record the changes since the last look of any process. Raises the registry's errors.

    The very first look records the current state without entries.
    """
    recorded = store.history.read()
    task = store.task()
    facts = changes.facts_of(task)
    if facts is None:
        return  # the Task cannot be read completely
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
    has_changed = {thing: fact.says for thing, fact in facts.items()} != {t: one.says for t, one in known.items()}
    user = store.user_name(user) if user and has_changed else user
    for entry in changes.changed(known, facts, doing, now=now, latest=latest, user=user):
        if entry.key not in entries:
            records.append(changes.record_of(entry))
            entries[entry.key] = entry
        records.append(_record_of(changes.known_after(entry)))
    if records:
        store.history.write(records)
    _drop(store, entries, known)


def read(store: changes.Store) -> History:
    """Return the recorded history. Raises the registry's errors."""
    recorded = store.history.read()
    entries = tuple(sorted(_entries(recorded).values(), key=lambda entry: entry.order))
    dropped = list(recorded.get("history_dropped", {}).values())
    begun = recorded.get("history_begun", {}).get(_BEGUN, {})
    return History(
        entries, float(begun.get("at", 0.0)), sum(int(one.get("count", 0)) for one in dropped),
        max((float(one.get("until", 0.0)) for one in dropped), default=0.0),
    )  # fmt: skip


@contextlib.contextmanager
def recorded(store: changes.Store, *, endpoints: Iterable[str] = (), by: str = "", why: str = "") -> Iterator[None]:
    """Record the changes made in the context, and before them those made earlier.

    ``by`` and ``why``: author and reason of changes to ``endpoints`` by a tool that records neither. If recording
    fails, that is logged and nothing else happens.
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
    """Called by model sync with the serving Task after every read: notices changes by others. One thread.

    Costs nothing while the Task is the same object, and no call to the registry while its contents are unchanged.
    """

    def __init__(self, store: changes.Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._task: Mapping[str, Any] | None = None
        self._said: dict[Thing, str] | None = None
        self._problem = ""

    def __call__(self, task: Mapping[str, Any]) -> bool:
        """Record the changes. Always returns False: the Task itself is never changed."""
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
        _log.warning("this change could not be recorded in `triton-gateway history` yet: %s", error.message)


def _drop(store: changes.Store, entries: Mapping[str, Entry], known: Mapping[Thing, Known]) -> None:
    """Drop the oldest entries in whole blocks. Their number is recorded before they are removed."""
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
