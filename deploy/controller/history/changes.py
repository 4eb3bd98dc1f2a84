"""What the serving Task says, as entries with fields, and the history's entries of what has changed in it. Pure.

The same entries are what ``export`` writes and ``apply`` reads: an endpoint that a stale write has lost is restored by
applying its last fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from deploy.controller.rollouts import record
from deploy.tools.errors import DeployError
from gateway import default_version, objectives, spec
from gateway.callers import keys as callers
from gateway.registry import Record
from gateway.spec import ServingTask

SECTIONS: Final = {
    "endpoints": "endpoints", "auto_update": "model_monitoring", "canaries": "canary", "metrics": "metric_logging",
}  # fmt: skip
"""Kind of entry → the section of the serving Task that holds it."""
KEY_FIELD: Final = {"endpoints": "serving_url", "auto_update": "base_serving_url", "canaries": "endpoint",
                    "metrics": "endpoint"}  # fmt: skip
"""The field of such an entry that names it."""
NAMED: Final = {"endpoints": "endpoint", "auto_update": "auto-update", "canaries": "canary", "metrics": "metrics",
                "defaults": "default", "objectives": "objective"}  # fmt: skip
"""Each kind of entry, as people are told of one."""
_BY_STOCK_TOOLS: Final = ("canary", "endpoint", "auto-update", "metrics", "setting")
KINDS: Final = (*_BY_STOCK_TOOLS, "shadow", "default", "objective", "key")
"""Kinds of what can change, in the order in which changes are told that were found together."""

CLIENT: Final = "a ClearML client"
AUTO: Final = "the controller, by the auto-update rule"
LOST: Final = "another ClearML client wrote back a copy of the Task that it had read before"

_FRESH_S: Final = 300.0
"""An endpoint that disappears so soon after its last change, beside another change, is lost: see ``_lost``."""
_MAX_TEXT: Final = 300
_SLACK_S: Final = 2.0
"""Tolerance when times are compared: the times of keys are whole seconds."""

Fields = Mapping[str, Any]
Thing = tuple[str, str]
"""Kind and name of something that can change: ``("canary", "sentiment")``."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The fields of a thing, now or as they were recorded last; empty: there is none.

    ``by``: who set it, if recorded. ``at``: when (Unix seconds); 0 if unknown.
    """

    fields: Fields = field(default_factory=dict)
    by: str = ""
    at: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change. ``before`` is empty for a new thing, ``after`` for a removed one."""

    kind: str
    subject: str
    before: Fields
    after: Fields
    at: float
    """When the change was noticed (Unix seconds)."""
    by: str
    why: str = ""
    is_seen: bool = False
    """True if its author is known only as far as ClearML tells."""
    restore: str = ""
    """The command that restores an endpoint that a stale write has lost."""

    @property
    def key(self) -> str:
        """The key of the entry's record; keys are in the order of entries."""
        return f"{1_000_000 * self.at:019.0f} {self.kind} {self.subject}"


def entries(task: ServingTask, kind: str) -> dict[str, dict[str, Any]]:
    """Return the entries of one of ``SECTIONS`` by name. Raises ``DeployError`` if the section cannot be read."""
    return {
        key.strip("/"): said({name: value for name, value in fields.items() if name != KEY_FIELD[kind]})
        for key, fields in sorted(record.section(task, SECTIONS[kind]).items()) if isinstance(fields, Mapping)
    }  # fmt: skip


def said(fields: Fields) -> dict[str, Any]:
    """Return the fields that are not empty; a version becomes text, even if it was written as a number."""
    found = {str(name): value for name, value in fields.items() if value not in (None, "", [], {})}
    return {name: str(value) if name == "version" else value for name, value in found.items()}


def facts_of(task: ServingTask) -> dict[Thing, Fact] | None:
    """Return the facts of the serving Task and of our records beside it; None if a part cannot be read."""
    serving = spec.decode(task)
    if task.problem or serving.unreadable:
        return None
    found: dict[Thing, Fact] = {}
    for kind in SECTIONS:
        for name, fields in entries(task, kind).items():
            code = task.artifacts.get(str(fields.get("preprocess_artifact")))
            found[NAMED[kind], name] = Fact(
                fields if code is None else {**fields, "code": _hash(code.sha256 or code.uri)}
            )
    found |= {("canary", name): Fact(_shares(route)) for name, route in serving.canaries.items()}
    for url, one in serving.endpoints.items():
        if one.is_auto:
            found["endpoint", url] = Fact({"model_id": one.model_id}, AUTO)
    found |= {("setting", name): Fact({"value": value}) for name, value in serving.settings.items()}
    for name, choice in default_version.read(spec.records_of(task, default_version.KIND)).items():
        if choice.by:  # a default that nobody chose follows from the endpoints
            found["default", name] = Fact({"version": choice.url}, choice.by, choice.at, choice.why)
    for name, stated in spec.records_of(task, spec.OBJECTIVES).items():
        parts = objectives.parts(stated)
        found["objective", name] = Fact(parts, str(stated.get("by", "")), float(stated.get("at") or 0))
    for name, stated in spec.records_of(task, spec.SHADOW).items():
        shadow = serving.shadows.get(name)
        fields = {"to": shadow.to, "percent": shadow.percent} if shadow is not None else {}
        found["shadow", name] = Fact(fields, str(stated.get("by", "")))
    for name, fact in _decided_weights(task, serving).items():
        found["canary", name] = replace(fact, fields=found.get(("canary", name), Fact()).fields)
    return found | _keys(task)


def changed(
    known: Mapping[Thing, Fact], facts: Mapping[Thing, Fact], *, now: float, user: str = ""
) -> list[Entry]:  # fmt: skip
    """Return the changes since ``known``, in a stable order. Later ones are some microseconds later.

    ``user``: ClearML's name of the user who changed the Task last.
    """
    found: list[Entry] = []
    client = f"{CLIENT} (user {user})" if user else CLIENT
    for thing in sorted({*known, *facts}, key=lambda one: (KINDS.index(one[0]), one[1])):
        kind, subject = thing
        last, fact = known.get(thing, Fact()), facts.get(thing, Fact())
        if last.fields == fact.fields:
            continue
        by = AUTO if not fact.fields and last.by == AUTO else ""
        is_told = bool(fact.by) and (not fact.at or fact.at >= last.at - _SLACK_S)
        by, why = (fact.by, fact.why) if is_told else (by, "")
        at = round(now + len(found) / 1e6, 6)
        found.append(Entry(kind, subject, last.fields, fact.fields, at, by or client, why, is_seen=not by))
    return [_lost(one, known, found, now) for one in found]


def _lost(entry: Entry, known: Mapping[Thing, Fact], found: Iterable[Entry], now: float) -> Entry:
    """Return ``entry``, with the command that restores its endpoint if it was probably lost.

    `model remove` changes nothing else. A client that writes back what it read before the endpoint was added takes it
    away together with its own change.
    """
    last = known.get((entry.kind, entry.subject), Fact())
    kind = next((kind for kind in ("endpoints", "auto_update") if NAMED[kind] == entry.kind), "")
    if not kind or entry.after or not entry.is_seen or now - last.at >= _FRESH_S:
        return entry
    others = (one for one in found if one is not entry and one.by not in (AUTO, record.CONTROLLER))
    if not any(one.kind in _BY_STOCK_TOOLS for one in others):
        return entry
    fields = {name: value for name, value in entry.before.items() if name != "code"}
    document = json.dumps({"version": 1, kind: {entry.subject: fields}}, ensure_ascii=False)
    return replace(entry, why=LOST, restore=f"printf %s {shlex.quote(document)} | triton-gateway apply -f -")


def concerns(entry: Entry, endpoint: str) -> bool:
    """Return True if an entry is about ``endpoint``: itself, its versions, its route, its rule or its shadow."""
    is_one = entry.kind not in ("setting", "key")
    return is_one and (entry.subject == endpoint or entry.subject.startswith(f"{endpoint}/"))


def _shares(route: spec.CanarySpec) -> dict[str, str]:
    """Return the normalised shares of a route by url, without zeros, so that equal routes have equal fields."""
    total = sum(route.weights)
    if not total > 0 or route.prefix:
        return {"weights": spec.described_weights(route)}
    shares = sorted((url, weight / total) for url, weight in zip(route.load_endpoints, route.weights, strict=False))
    return {url: f"{round(100 * share, 2):g} %" for url, share in shares if share}


def _decided_weights(task: ServingTask, serving: spec.ServingSpec) -> dict[str, Fact]:
    """Return the routes whose weights are those of a rollout, with its last decision."""
    found = {}
    for name in spec.records_of(task, spec.ROLLOUT):
        with contextlib.suppress(DeployError):
            if (rollout := record.read(task, name)) is None or not rollout.history:
                continue
            wanted, last = record.wanted_weights(serving, rollout), rollout.history[-1]
            if wanted is not None and record.are_equal(wanted, record.weights(serving, name) or {}):
                found[name] = Fact({}, record.CONTROLLER, last.at, f"{last.what}: {last.why}")
    return found


def _keys(task: ServingTask) -> dict[Thing, Fact]:
    found: dict[Thing, Fact] = {}
    for name, value in spec.records_of(task, callers.KEY).items():
        try:
            (key,) = callers.keys_in({callers.KEY: {name: value}})
        except ValueError:
            continue  # the key is unusable; gateways report it
        fields = {"tenant": key.tenant, "priority": key.priority, "operations": ",".join(key.operations),
                  "endpoints": ",".join(key.endpoints), "expires": key.expires}  # fmt: skip
        found["key", key.id] = Fact({} if key.revoked else said(fields), str(value.get("changed_by", "")) or key.by)
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def record_of(entry: Entry) -> Record:
    """Return the record of an entry. It shortens what is long; the command that restores it has all."""
    before, after = ({name: _short(value) for name, value in one.items()} for one in (entry.before, entry.after))
    return Record("history", entry.key, asdict(replace(entry, before=before, after=after)))


def _short(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}… ({len(text)} characters)"


def lost(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the last entry of each endpoint that a stale write has lost and that is still away."""
    last = {(one.kind, one.subject): one for one in sorted(entries, key=lambda one: one.at)}
    return {one.subject: one for one in last.values() if one.restore}
