"""The facts of the serving Task that can change, and the entries that record their changes. Pure."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from deploy.controller.history import stock_command
from deploy.controller.plain import plain
from deploy.controller.rollouts import record
from deploy.tools.errors import DeployError
from gateway import callers, default_version, registry, spec

ENDPOINT: Final = "endpoint"
WEIGHT: Final = "weight"
DEFAULT: Final = "default"
KEY_: Final = "key"
KINDS: Final = (WEIGHT, ENDPOINT, DEFAULT, KEY_)

STOCK: Final = "clearml-serving or ClearML's pages"
AUTO: Final = "the controller, by the auto-update rule"

LOST: Final = "another ClearML client wrote back a copy of the Task that it had read before"

_FRESH_S: Final = 300.0
"""An endpoint that disappears so soon after its last change, beside another change, is lost: see ``_lost``."""
_MAX_TEXT: Final = 300
_SLACK_S: Final = 2.0
"""Tolerance when times are compared: the times of keys are whole seconds."""
_CLOCKS_S: Final = 60.0
"""Largest difference of two machines' clocks for which the order of entries is kept."""

Record = registry.Record
Store = registry.RegistryWriter
"""The registry in which changes are recorded."""
ServingTask = spec.ServingTask
Thing = tuple[str, str]
"""Kind and name of something that can change: ``("weight", "sentiment")``."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The value of a thing, now or as it was recorded last; empty: there is none. ``by``: who set it, if recorded.
    ``at``: when (Unix seconds); 0 if unknown. ``command``: the command that adds it, for what a stock command adds.
    """

    says: str = ""
    by: str = ""
    at: float = 0.0
    why: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change. ``before`` is empty for a new thing, ``after`` for a removed one."""

    kind: str
    subject: str
    before: str
    after: str
    at: float
    """When the change was made, or seen if its time is not recorded (Unix seconds)."""
    by: str
    why: str = ""
    is_seen: bool = False
    """True if the change was only noticed: its exact time and author are known only as far as ClearML tells them."""
    place: int = 0
    """Its position among the changes that were found together."""
    restore: str = ""
    """The command that restores an endpoint that a stale write has lost."""

    @property
    def key(self) -> str:
        """The key of the entry's record; keys are in the order of entries."""
        return f"{1000 * self.at:016.0f} {self.place:05d} {self.kind} {self.subject}"

    @property
    def order(self) -> tuple[float, int]:
        """The sort key of entries."""
        return self.at, self.place


@dataclass(frozen=True, slots=True)
class Doing:
    """A note that somebody is changing an endpoint with a tool that does not record who uses it."""

    by: str
    why: str
    until: float


def facts_of(task: ServingTask) -> dict[Thing, Fact] | None:
    """Return the facts of the serving Task and of our records beside it; None if a part cannot be read."""
    serving = spec.decode(task)
    if task.problem or any(fault.subject.startswith("section ") for fault in serving.faults):
        return None
    found: dict[Thing, Fact] = dict(_endpoints(serving))
    found |= _weights(task, serving)
    for name, value in serving.settings.items():
        found[DEFAULT, name] = Fact(_short(value))
    for name, metrics in serving.metrics.items():
        declared = ", ".join(f"{variable.name} {variable.type}" for variable in metrics.variables)
        frequency = f"{metrics.log_frequency:g}" if metrics.log_frequency is not None else "default"
        found[DEFAULT, f"{name} (metrics)"] = Fact(_short(f"{declared or 'none'}; frequency {frequency}"))
    for name, one in default_version.read(spec.records_of(task, default_version.KIND)).items():
        if one.by:  # a default that nobody chose follows from the endpoints
            found[DEFAULT, f"{name} (bare name)"] = Fact(one.url, one.by, one.at, _short(one.why))
    for name, stated in spec.records_of(task, spec.OBJECTIVES).items():
        parts = [f"{part}={stated[part]}" for part in spec.OBJECTIVE if stated.get(part)]
        says = _short(", ".join(parts) or "the default")
        found[DEFAULT, f"{name} (objective)"] = Fact(says, str(stated.get("by", "")), float(stated.get("at") or 0))
    found |= _keys(task)
    return {thing: fact for thing, fact in found.items() if fact.says}


def changed(
    known: Mapping[Thing, Fact], facts: Mapping[Thing, Fact], doing: Mapping[str, Doing], *, now: float,
    latest: float = 0.0, user: str = "",
) -> list[Entry]:  # fmt: skip
    """Return the changes since ``known``, in a stable order.

    ``latest``: time of the last entry of all. ``user``: ClearML's name of the user who changed the Task last.
    """
    found: list[Entry] = []
    if latest - now < _CLOCKS_S:
        now = max(now, latest + 0.001)
    stock = f"{STOCK} (user {user})" if user else STOCK
    for thing in sorted({*known, *facts}, key=lambda one: (KINDS.index(one[0]), one[1])):
        kind, subject = thing
        last, fact = known.get(thing, Fact()), facts.get(thing, Fact())
        if last.says == fact.says:
            continue
        by, why, at = "", "", now
        under_way = doing.get(subject)
        if fact.by and (not fact.at or fact.at >= last.at - _SLACK_S):
            by, why = fact.by, fact.why
            at = round(fact.at, 3)  # as entries store it: two of one millisecond would have one key
            at = at if latest < at < now else now
        elif under_way is not None and kind in (ENDPOINT, WEIGHT) and now < under_way.until:
            by, why = under_way.by, under_way.why
        elif not fact.says and last.by == AUTO:
            by = AUTO
        found.append(Entry(kind, subject, last.says, fact.says, round(at, 3), by or stock, why, not by, len(found)))
    return [_lost(one, known, found, now) for one in found]


def _lost(entry: Entry, known: Mapping[Thing, Fact], found: Iterable[Entry], now: float) -> Entry:
    """Return ``entry``, with the command that restores its endpoint if it was probably lost.

    `model remove` changes nothing else. A client that writes back what it read before the endpoint was added takes it
    away together with its own change.
    """
    last = known.get((entry.kind, entry.subject), Fact())
    if entry.after or not last.command or not entry.is_seen or now - last.at >= _FRESH_S:
        return entry
    others = (one for one in found if one is not entry and one.by not in (AUTO, record.CONTROLLER))
    is_alone = not any(one.kind in (ENDPOINT, WEIGHT) or (one.is_seen and one.kind == DEFAULT) for one in others)
    return entry if is_alone else replace(entry, why=LOST, restore=last.command)


def concerns(entry: Entry, endpoint: str) -> bool:
    """Return True if an entry is about ``endpoint``: itself, its versions, its route, its rule or its shadow."""
    subject = entry.subject.partition(" (")[0]
    return entry.kind in (ENDPOINT, WEIGHT, DEFAULT) and (subject == endpoint or subject.startswith(f"{endpoint}/"))


def _endpoints(serving: spec.ServingSpec) -> Iterator[tuple[Thing, Fact]]:
    for url, endpoint in serving.endpoints.items():
        command = "" if endpoint.is_auto else stock_command.adding(serving.task_id, endpoint)
        yield (ENDPOINT, url), Fact(_endpoint(endpoint), AUTO if endpoint.is_auto else "", command=command)
    for name, rule in serving.monitoring.items():
        command = stock_command.adding_rule(serving.task_id, rule)
        yield (ENDPOINT, f"{name} (auto-update rule)"), Fact(_rule(rule), command=command)
    for fault in serving.faults:
        subject = fault.subject.removeprefix("endpoint ").strip("/")
        if subject != fault.subject and subject not in serving.endpoints:
            yield (ENDPOINT, subject), Fact(_short(f"cannot be used: {fault.message}"))


def _endpoint(one: spec.EndpointSpec) -> str:
    parts = [one.engine]
    if one.model_id:
        parts.append(f"model {one.model_id}")
    if one.preprocess is not None:
        parts.append(f"code {(one.preprocess.sha256 or _hash(one.preprocess.uri))[:8]}")
    if one.inputs or one.outputs:
        parts.append(f"{_tensors(one.inputs)} → {_tensors(one.outputs)}")
    if one.auxiliary_pbtxt or one.auxiliary_json not in ("", "{}"):
        parts.append(f"configuration {_hash(one.auxiliary_pbtxt + one.auxiliary_json)[:8]}")
    parts += [f"{name}={value}" for name, value in one.options]
    return _short(", ".join(parts))


def _tensors(tensors: Iterable[spec.TensorSpec]) -> str:
    return " ".join(f"{one.name}:{one.dtype}{list(one.shape)}".replace(", ", ",") for one in tensors) or "?"


def _rule(rule: spec.MonitoringSpec) -> str:
    asked = {"project": rule.project, "name": rule.name, "tags": ",".join(rule.tags), "versions": rule.max_versions}
    parts = [f"{name} {value}" for name, value in asked.items() if value]
    parts += ["only published"] if rule.only_published else []
    return _short(f"{', '.join(parts)}; each as {_endpoint(rule.template)}")


def _weights(task: ServingTask, serving: spec.ServingSpec) -> dict[Thing, Fact]:
    found: dict[Thing, Fact] = {}
    found |= {(WEIGHT, name): Fact(_route(route)) for name, route in serving.canaries.items()}
    for name in spec.records_of(task, spec.ROLLOUT):
        with contextlib.suppress(DeployError):
            if (rollout := record.read(task, name)) is None or not rollout.history:
                continue
            wanted, last = record.wanted_weights(serving, rollout), rollout.history[-1]
            if wanted is not None and record.are_equal(wanted, record.weights(serving, name)):
                says = found.get((WEIGHT, name), Fact("nothing")).says
                found[WEIGHT, name] = Fact(says, record.CONTROLLER, last.at, _short(f"{last.what}: {last.why}"))
    stored = spec.records_of(task, spec.SHADOW)
    for name, value in stored.items():
        shadow, by = serving.shadows.get(name), str(value.get("by", ""))
        if shadow is not None:
            found[WEIGHT, f"{name} (shadow)"] = Fact(f"{shadow.percent:g} % to {shadow.to}", by)
        elif by:
            found[WEIGHT, f"{name} (shadow)"] = Fact("nothing", by)
    return found


def _route(route: spec.CanarySpec) -> str:
    """Return the normalised shares of a route, sorted and without zeros, so that equal routes have equal texts."""
    total = sum(route.weights)
    if not total > 0 or route.prefix:
        return _short(spec.described_weights(route))
    shares = sorted((url, weight / total) for url, weight in zip(route.load_endpoints, route.weights, strict=False))
    return _short(", ".join(f"{url} {round(100 * share, 2):g} %" for url, share in shares if share))


def _keys(task: ServingTask) -> dict[Thing, Fact]:
    ends = spec.records_of(task, callers.END)
    found: dict[Thing, Fact] = {}
    for name, value in spec.records_of(task, callers.KEY).items():
        end = {name: ends[name]} if name in ends else {}
        try:
            (key,) = callers.keys_in({callers.KEY: {name: value}, callers.END: end})
        except ValueError:
            continue  # the key is unusable; gateways report it
        text = f"{key.tenant} ({key.priority}): {','.join(key.operations)} on {','.join(key.endpoints)}"
        text += f" until {key.expires}" if key.expires else ""
        by = str((ends.get(name) or {}).get("by") or "") if key.revoked else str(value.get("changed_by", ""))
        found[KEY_, key.id] = Fact("revoked" if key.revoked else _short(text), by or key.by)
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _short(text: str) -> str:
    """Return a text of limited length. A shortened text ends in a hash, so different texts stay different."""
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 20]}… ({_hash(text)[:12]})"


def record_of(entry: Entry) -> registry.Record:
    """Return the record of an entry."""
    return registry.Record("history", entry.key, plain(entry))


def lost(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the last entry of each endpoint that a stale write has lost and that is still away."""
    last = {one.subject: one for one in sorted(entries, key=lambda one: one.order) if one.kind == ENDPOINT}
    return {subject: one for subject, one in last.items() if one.restore}
