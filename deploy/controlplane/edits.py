"""Turns a `tasks.edit` that writes whole fields back into changes that keep other clients' changes.

`api/tasks` calls it inside the write transaction, with the stored Task and what the client had read before (`reads`).
Pure except for that memory. It keeps two promises: no write loses a concurrent change, and no section that clients
parse becomes unreadable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy.controlplane import merge
from deploy.controlplane.envelope import JsonObject
from deploy.controlplane.protections import PROTECTED, Protections
from deploy.controlplane.reads import ReadLog
from deploy.tools import sections

SERVING_TAG = "serving-control-plane"
# Every clearml-serving client parses these sections before it does anything. If one is unreadable, the service cannot
# be edited any more.
GUARDED = frozenset({"endpoints", "canary", "model_monitoring", "model_monitoring_eps", "metric_logging"})
EMPTY = "{}"
# of a Task's `execution`; clients send other fields too ("dataviews"), which a server does not store
EXECUTION_FIELDS = frozenset(
    {"test_split", "parameters", "model_desc", "model_labels", "framework", "artifacts", "queue"}
)

Pin = Callable[[str, str | None], str]
_ToMap = Callable[[Any], dict[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The editing client: the session whose reads count, and whether it writes from a copy that it loaded once."""

    session: str | None
    client: str

    @property
    def keeps_copy(self) -> bool:
        """True for the clearml-serving CLI, which loads the service once and writes each section from memory."""
        return "clearml-serving" in self.client


@dataclass(slots=True)
class Edit:
    """One edit of one Task. `fields` are the new values of whole fields, `notes` the corrections that were made."""

    task: JsonObject
    writer: Writer
    reads: ReadLog
    pin: Pin
    protections: Protections = PROTECTED
    fields: JsonObject = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)

    def configuration(self, mine: Mapping[str, Any]) -> None:
        """Merge the configuration section by section, and the sections of a serving Task entry by entry."""
        if not self.protections.merges_writes:
            cleaned = {name: _item(item) for name, item in mine.items()}
            self.fields["configuration"] = {name: item for name, item in cleaned.items() if item is not None}
            return
        theirs: Mapping[str, Any] = self.task.get("configuration") or {}
        last = self.reads.last(self.writer.session, self.task["id"])
        read = (last.get("configuration") or {}) if last is not None else None
        merged: JsonObject = {}
        for name in [*mine, *(name for name in theirs if name not in mine)]:
            new = _item(mine.get(name))
            stored = theirs.get(name)
            if read is not None and new == _item(read.get(name)):
                # unchanged since it was last read: the client sends it because it always sends all sections
                value = stored
            elif new is None:
                value = None
            else:
                value = self._section(name, new, _item(stored))
            if value is not None:
                merged[name] = value
        self.fields["configuration"] = merged

    def replaced_configuration(self, mine: Mapping[str, Any]) -> None:
        """Replace the configuration by exactly these sections: the client asked to drop the others."""
        theirs: Mapping[str, Any] = self.task.get("configuration") or {}
        cleaned = {name: _item(item) for name, item in mine.items()}
        self.fields["configuration"] = {
            name: self._section(name, item, _item(theirs.get(name)))
            for name, item in cleaned.items()
            if item is not None
        }

    def _section(self, name: str, new: JsonObject, stored: JsonObject | None) -> JsonObject:
        guarded = (
            self.protections.guards_sections and name in GUARDED and SERVING_TAG in (self.task.get("system_tags") or ())
        )
        text = new.get("value")
        if not guarded or not isinstance(text, str):
            return new
        theirs = _text(stored)
        if text != theirs:
            readable = self._readable(name, text, theirs)
            if readable is None:
                return stored or (new | {"value": EMPTY})
            text = readable
        key = f"configuration.{name}"
        bases = self.reads.bases(
            self.writer.session,
            self.task["id"],
            key,
            lambda doc: _text((doc.get("configuration") or {}).get(name)),
            keeps_copy=self.writer.keeps_copy,
        )
        self.reads.wrote(self.writer.session, self.task["id"], key, text)
        self.accepted.add(name)
        try:
            return new | {"value": merge.merge_texts(bases, text, theirs)}
        except sections.Unparsable as error:
            self.notes.append(f"{_complaint(name)}: a concurrent change could not be combined ({error})")
            return new | {"value": text}

    def _readable(self, name: str, text: str, theirs: str) -> str | None:
        try:
            sections.parse(text)
        except sections.Dynamic:
            return text
        except sections.Unparsable as error:
            try:
                return sections.repair(text)
            except (sections.Unparsable, sections.Dynamic):
                kept = "the previous text was kept" if theirs != EMPTY else "it was left empty"
                self.notes.append(
                    f"{_complaint(name)} was not accepted because no ClearML client could read it again"
                    f" ({error}); {kept}"
                )
                return None
        return text

    def message(self) -> str | None:
        """The Task's status message after this edit; None if it stays.

        Corrections are reported there, because the stock CLI ignores the answer of an edit. The message is removed once
        its section has been written without fault.
        """
        if self.notes:
            return "; ".join(self.notes)
        told = str(self.task.get("status_message") or "")
        return "" if any(told.startswith(_complaint(name)) for name in self.accepted) else None

    def hyperparams(self, mine: Mapping[str, Any]) -> None:
        """Merge by parameter."""
        clean = {
            section: {name: _item(item) for name, item in names.items()} if isinstance(names, Mapping) else {}
            for section, names in mine.items()
        }
        self.fields["hyperparams"] = self._merged("hyperparams", clean, merge.flattened, merge.nested)

    def runtime(self, mine: Mapping[str, Any]) -> None:
        """Merge by property."""
        self.fields["runtime"] = self._merged("runtime", dict(mine), dict, dict)

    def execution(self, mine: Mapping[str, Any]) -> None:
        """Replace the parts that are sent. Artifacts merge by key and mode."""
        stored = self.task.get("execution") or {}
        merged = {**stored, **{name: value for name, value in mine.items() if name in EXECUTION_FIELDS}}
        if isinstance(mine.get("artifacts"), list):
            sent = [self.artifact(item) for item in mine["artifacts"] if isinstance(item, Mapping)]
            merged["artifacts"] = self._merged(
                "execution.artifacts",
                sent,
                lambda items: merge.keyed(items, "key", "mode"),
                sorted_artifacts,
            )
        self.fields["execution"] = merged

    def models(self, mine: Mapping[str, Any]) -> None:
        """Replace the parts that are sent. Inputs and outputs merge by name."""
        merged = {**(self.task.get("models") or {"input": [], "output": []})}
        for kind, items in mine.items():
            if isinstance(items, list):
                merged[kind] = self._merged(
                    f"models.{kind}", items, lambda rows: merge.keyed(rows, "name"), lambda flat: list(flat.values())
                )
        self.fields["models"] = merged

    def artifact(self, item: Mapping[str, Any]) -> JsonObject:
        """An artifact as it is stored: with its mode, and with an address pinned to these bytes."""
        stored = {
            "mode": "output",
            "display_data": [],
            **{key: value for key, value in item.items() if value is not None},
        }
        if isinstance(stored.get("uri"), str):
            digest = stored.get("hash")
            stored["uri"] = self.pin(stored["uri"], digest if isinstance(digest, str) else None)
        return stored

    def _merged(self, name: str, mine: Any, to_map: _ToMap, from_map: Callable[[dict[Any, Any]], Any]) -> Any:
        if not self.protections.merges_writes:
            return mine
        theirs = to_map(_at(self.task, name))
        bases = [
            to_map(base)
            for base in self.reads.bases(
                self.writer.session,
                self.task["id"],
                name,
                lambda doc: _at(doc, name),
                keeps_copy=self.writer.keeps_copy,
            )
        ]
        self.reads.wrote(self.writer.session, self.task["id"], name, mine)
        if all(base == theirs for base in bases):
            return mine
        written = to_map(mine)
        return from_map(merge.merge_maps(merge.choose_base(bases, written), written, theirs))


def _complaint(section: str) -> str:
    return f"configuration section '{section}'"


def sorted_artifacts(artifacts: Mapping[Any, JsonObject] | Sequence[JsonObject]) -> list[JsonObject]:
    """Artifacts in ClearML's order: by key, then mode."""
    items = artifacts.values() if isinstance(artifacts, Mapping) else artifacts
    return sorted(items, key=lambda item: (str(item.get("key")), str(item.get("mode"))))


def _at(doc: Mapping[str, Any], name: str) -> Any:
    """The value of a tracked field; if it is missing, the empty value of its type."""
    head, dot, rest = name.partition(".")
    value = doc.get(head) or {}
    return (value.get(rest) or []) if dot else value


def _item(value: Any) -> JsonObject | None:
    """A configuration or hyperparameter item without nulls, which clients send or omit at random."""
    if not isinstance(value, Mapping):
        return None
    return {key: item for key, item in value.items() if item is not None}


def _text(item: Mapping[str, Any] | None) -> str:
    value = item.get("value") if item else None
    return value if isinstance(value, str) else EMPTY
