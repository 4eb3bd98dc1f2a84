"""`tasks.*`: creation, reading, edits of whole fields, statuses, artifacts, models, hyperparameters.

Two clients that change a Task at once lose one change, as on a ClearML server 2.3.0.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from deploy.controlplane import query
from deploy.controlplane.api import projects
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.clock import Clock
from deploy.controlplane.envelope import (
    ApiError,
    JsonObject,
    invalid_task_id,
    invalid_task_status,
    missing_fields,
    too_short,
    unexpected_task_status,
    validation_error,
)
from deploy.controlplane.store import Reader, Store, Writer

KIND = "tasks"
MIN_NAME = 3
SCHEMA = query.Schema(
    list_fields=frozenset({"id", "type", "status", "system_tags", "tags", "project", "user", "parent"}),
    dotted_prefixes=("hyperparams.", "runtime.", "execution.", "configuration.", "script.", "models.", "last_metrics."),
)

# status -> next statuses that need no `force`
TRANSITIONS: Mapping[str, frozenset[str]] = {
    "created": frozenset({"queued", "in_progress"}),
    "queued": frozenset({"created", "in_progress", "stopped"}),
    "in_progress": frozenset({"stopped", "failed", "created", "completed"}),
    "stopped": frozenset({"created", "failed", "queued", "in_progress", "published", "completed"}),
    "failed": frozenset({"created", "stopped", "published"}),
    "completed": frozenset({"published", "in_progress", "created"}),
    "published": frozenset(),
}

# edits of only these fields do not count as activity of the Task: `last_update` stays
_DESCRIPTIVE = frozenset({"tags", "system_tags", "name", "comment", "project"})
_REPLACED = ("name", "comment", "tags", "system_tags", "project", "parent", "type", "container")
_EMBEDDED = ("script", "output")
_OBJECTS = ("configuration", "hyperparams", "runtime", "execution", "models")
# of a Task's `execution`; clients send other fields too ("dataviews"), which a server does not store
_EXECUTION_FIELDS = frozenset(
    {"test_split", "parameters", "model_desc", "model_labels", "framework", "artifacts", "queue"}
)


class TasksApi:
    """Tasks of the store. `publish_model` publishes one model inside the transaction that publishes its Task."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        new_id: Callable[[], str],
        publish_model: Callable[[Writer, Call, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._publish_model = publish_model

    def endpoints(self) -> Mapping[str, Handler]:
        """Name -> handler."""
        return {
            "tasks.create": self.create,
            "tasks.clone": self.clone,
            "tasks.get_by_id": self.get_by_id,
            "tasks.get_by_id_ex": self.get_by_id,
            "tasks.get_all": self.get_all,
            "tasks.get_all_ex": self.get_all,
            "tasks.edit": self.edit,
            "tasks.update": self.edit,
            "tasks.delete": self.delete,
            "tasks.ping": self.ping,
            "tasks.started": self.started,
            "tasks.stopped": self.stopped,
            "tasks.stop": self.stopped,
            "tasks.completed": self.completed,
            "tasks.failed": self.failed,
            "tasks.publish": self.publish,
            "tasks.reset": self.reset,
            "tasks.archive": self.archive,
            "tasks.archive_many": self.archive_many,
            "tasks.unarchive_many": self.unarchive_many,
            "tasks.set_requirements": self.set_requirements,
            "tasks.add_or_update_artifacts": self.add_or_update_artifacts,
            "tasks.delete_artifacts": self.delete_artifacts,
            "tasks.add_or_update_model": self.add_or_update_model,
            "tasks.delete_models": self.delete_models,
            "tasks.edit_hyper_params": self.edit_hyper_params,
            "tasks.delete_hyper_params": self.delete_hyper_params,
            "tasks.get_hyper_params": self.get_hyper_params,
            "tasks.get_configurations": self.get_configurations,
            "tasks.edit_configuration": self.edit_configuration,
            "tasks.delete_configuration": self.delete_configuration,
        }

    # --- creation and reading

    def create(self, call: Call) -> JsonObject:
        """`{id}` of a new Task in status created."""
        name = call.text("name")
        if len(name) < MIN_NAME:
            raise too_short("name")
        with self._store.write() as tx:
            doc = self._new(call, name, call.text("type"))
            if doc.get("project"):
                projects.require(tx, doc["project"])
            sent = {key: value for key, value in call.body.items() if key not in ("name", "type")}
            tx.put(KIND, doc | _edited(doc, sent))
            projects.touch(tx, doc.get("project"), doc["created"])
        return {"id": doc["id"]}

    def clone(self, call: Call) -> JsonObject:
        """A new Task with the same definition: no status, results or output artifacts."""
        with self._store.write() as tx:
            source = require(tx, call.text("task"))
            name = call.body.get("new_task_name") or source["name"]
            doc = self._new(call, name, source["type"])
            for key in ("script", "hyperparams", "configuration", "container", "comment", "project"):
                if source.get(key) is not None:
                    doc[key] = source[key]
            execution = source.get("execution") or {}
            artifacts = [item for item in execution.get("artifacts") or [] if item.get("mode") == "input"]
            doc["execution"] = {**execution, "artifacts": artifacts}
            doc["models"] = {"input": (source.get("models") or {}).get("input") or [], "output": []}
            doc["tags"] = call.body.get("new_task_tags") or source.get("tags") or []
            doc["system_tags"] = call.body.get("new_task_system_tags") or []
            doc["parent"] = call.body.get("new_task_parent") or source.get("parent") or source["id"]
            for key, new in (("comment", "new_task_comment"), ("project", "new_task_project")):
                if call.body.get(new):
                    doc[key] = call.body[new]
            for key, override in (("hyperparams", "new_task_hyperparams"), ("configuration", "new_task_configuration")):
                if call.body.get(override):
                    doc[key] = call.body[override]
            if doc.get("project"):
                projects.require(tx, doc["project"])
            tx.put(KIND, doc)
        return {"id": doc["id"]}

    def get_by_id(self, call: Call) -> JsonObject:
        """`{task: {…}}`."""
        with self._store.read() as tx:
            return {"task": require(tx, call.text("task"))}

    def get_all(self, call: Call) -> JsonObject:
        """`{tasks: […]}`."""
        body = call.body
        with self._store.read() as tx:
            if call.flag("include_subprojects") and call.items("project"):
                body = body | {"project": projects.subtree(tx, call.items("project"))}
            found = query.select(tx.scan(KIND, ids=query.exact(body.get("id"))), body, SCHEMA)
        return {"tasks": [query.project(doc, body.get("only_fields")) for doc in found]}

    # --- edits

    def edit(self, call: Call) -> JsonObject:
        """Replace any fields; `script`, `output`, `execution` and `models` part by part."""
        name = call.body.get("name")
        if name is not None and len(str(name)) < MIN_NAME:
            raise too_short("name")
        with self._store.write() as tx:
            doc = require(tx, call.text("task"))
            if not call.flag("force") and doc["status"] != "created":
                raise invalid_task_status(task_id=doc["id"], current=doc["status"], wanted="created")
            if call.body.get("project"):
                projects.require(tx, call.body["project"])
            return {"updated": 1, "fields": self._save(tx, call, doc, _edited(doc, call.body))}

    def _save(self, tx: Writer, call: Call, doc: JsonObject, fields: JsonObject) -> JsonObject:
        """Store `fields` and update the time stamps; return the fields as stored."""
        now = self._clock.stamp()
        changed = fields | {"last_change": now, "last_changed_by": call.identity.user}
        if not fields.keys() <= _DESCRIPTIVE:
            changed["last_update"] = now
        tx.put(KIND, doc | changed)
        projects.touch(tx, changed.get("project") or doc.get("project"), now)
        return changed

    def _change(self, call: Call, compute: Callable[[Writer, JsonObject], JsonObject]) -> JsonObject:
        with self._store.write() as tx:
            doc = require(tx, call.text("task"))
            self._save(tx, call, doc, compute(tx, doc))
        return {"updated": 1}

    def set_requirements(self, call: Call) -> JsonObject:
        """Replace `script.requirements`."""
        requirements = call.body.get("requirements")
        if not isinstance(requirements, Mapping):
            raise missing_fields("requirements")
        answer = self._change(
            call, lambda _, doc: {"script": {**(doc.get("script") or {}), "requirements": dict(requirements)}}
        )
        return {**answer, "fields": {}}

    def add_or_update_artifacts(self, call: Call) -> JsonObject:
        """Add artifacts or replace those with the same key and mode."""

        def compute(_: Writer, doc: JsonObject) -> JsonObject:
            self._require_open(call, doc)
            new = _keyed([_artifact(item) for item in call.items("artifacts")], "key", "mode")
            execution = doc.get("execution") or {}
            artifacts = (_keyed(execution.get("artifacts") or [], "key", "mode") | new).values()
            in_order = sorted(artifacts, key=lambda item: (str(item.get("key")), str(item.get("mode"))))
            return {"execution": {**execution, "artifacts": in_order}}

        return self._change(call, compute)

    def delete_artifacts(self, call: Call) -> JsonObject:
        """Remove artifacts by key and mode. The files stay."""

        def compute(_: Writer, doc: JsonObject) -> JsonObject:
            self._require_open(call, doc)
            gone = {(item.get("key"), item.get("mode") or "output") for item in call.items("artifacts")}
            execution = doc.get("execution") or {}
            kept = [item for item in execution.get("artifacts") or [] if (item["key"], item.get("mode")) not in gone]
            return {"execution": {**execution, "artifacts": kept}}

        return {**self._change(call, compute), "deleted": 1}

    def add_or_update_model(self, call: Call) -> JsonObject:
        """Register a model under a name as input or output of the Task, replacing the name's earlier model."""
        kind, name, model = _model_kind(call.text("type")), call.text("name"), call.text("model")

        def compute(_: Writer, doc: JsonObject) -> JsonObject:
            models = doc.get("models") or {}
            entries = _keyed(models.get(kind) or [], "name")
            entry: JsonObject = {"name": name, "model": model, "updated": self._clock.stamp()}
            fields: JsonObject = {
                "models": {"input": [], "output": [], **models, kind: [*(entries | {(name,): entry}).values()]}
            }
            iteration = call.body.get("iteration")
            if isinstance(iteration, int):
                fields["last_iteration"] = max(iteration, doc.get("last_iteration") or 0)
            return fields

        return self._change(call, compute)

    def delete_models(self, call: Call) -> JsonObject:
        """Remove names from the Task's models. The models stay."""
        gone = {(_model_kind(str(item.get("type"))), item.get("name")) for item in call.items("models")}

        def compute(_: Writer, doc: JsonObject) -> JsonObject:
            models = doc.get("models") or {}
            kept = {
                kind: [item for item in models.get(kind) or [] if (kind, item.get("name")) not in gone]
                for kind in ("input", "output")
            }
            return {"models": {**models, **kept}}

        return self._change(call, compute)

    def edit_hyper_params(self, call: Call) -> JsonObject:
        """Add or replace single parameters; `replace_hyperparams`: none, section or all."""
        how = call.body.get("replace_hyperparams") or "none"

        def compute(_: Writer, doc: JsonObject) -> JsonObject:
            self._require_editable(call, doc, only_properties=_are_properties(call.items("hyperparams")))
            params = {} if how == "all" else {key: dict(value) for key, value in (doc.get("hyperparams") or {}).items()}
            if how == "section":
                for item in call.items("hyperparams"):
                    params[item["section"]] = {}
            for item in call.items("hyperparams"):
                if not item.get("section") or not item.get("name"):
                    raise validation_error("a hyperparameter needs section and name")
                clean = {key: value for key, value in item.items() if value is not None}
                params.setdefault(item["section"], {})[item["name"]] = clean
            return {"hyperparams": params}

        return self._change(call, compute)

    def delete_hyper_params(self, call: Call) -> JsonObject:
        """Remove single parameters, or whole sections if no name is given."""

        def compute(_: Writer, doc: JsonObject) -> JsonObject:
            self._require_editable(call, doc, only_properties=_are_properties(call.items("hyperparams")))
            params = {key: dict(value) for key, value in (doc.get("hyperparams") or {}).items()}
            for item in call.items("hyperparams"):
                section = params.get(item.get("section"), {})
                if item.get("name"):
                    section.pop(item["name"], None)
                else:
                    params.pop(item.get("section"), None)
            return {"hyperparams": {key: value for key, value in params.items() if value}}

        return {**self._change(call, compute), "deleted": 1}

    def get_hyper_params(self, call: Call) -> JsonObject:
        """`{params: [{task, hyperparams: […]}]}`."""
        with self._store.read() as tx:
            found = list(tx.scan(KIND, ids=call.items("tasks")))
        return {
            "params": [
                {
                    "task": doc["id"],
                    "hyperparams": [item for part in (doc.get("hyperparams") or {}).values() for item in part.values()],
                }
                for doc in found
            ]
        }

    def get_configurations(self, call: Call) -> JsonObject:
        """`{configurations: [{task, configuration: […]}]}`, all sections or the named ones."""
        names = call.items("names")
        with self._store.read() as tx:
            found = list(tx.scan(KIND, ids=call.items("tasks")))
        return {
            "configurations": [
                {
                    "task": doc["id"],
                    "configuration": [
                        item for name, item in (doc.get("configuration") or {}).items() if not names or name in names
                    ],
                }
                for doc in found
            ]
        }

    def edit_configuration(self, call: Call) -> JsonObject:
        """Add or replace whole sections (`replace_configuration`: drop the others)."""
        with self._store.write() as tx:
            doc = require(tx, call.text("task"))
            self._require_editable(call, doc)
            items = {str(item.get("name")): item for item in call.items("configuration")}
            kept = {} if call.flag("replace_configuration") else doc.get("configuration") or {}
            self._save(tx, call, doc, {"configuration": _cleaned({**kept, **items})})
        return {"updated": 1}

    def delete_configuration(self, call: Call) -> JsonObject:
        """Remove sections."""
        gone = set(call.items("configuration"))

        def compute(_: Writer, doc: JsonObject) -> JsonObject:
            self._require_editable(call, doc)
            kept = {name: item for name, item in (doc.get("configuration") or {}).items() if name not in gone}
            return {"configuration": kept}

        return {**self._change(call, compute), "deleted": 1}

    # --- status

    def ping(self, call: Call) -> JsonObject:
        """Record that the Task's process is alive: changes only `last_update`."""
        with self._store.write() as tx:
            doc = require(tx, call.text("task"))
            tx.put(KIND, doc | {"last_update": self._clock.stamp()})
        return {}

    def started(self, call: Call) -> JsonObject:
        """Move to in_progress. clearml-serving reopens a completed service this way."""
        now = self._clock.stamp()
        answer = self._move(call, "in_progress", {"started": now})
        return {**answer, "started": 1}

    def stopped(self, call: Call) -> JsonObject:
        """Move to stopped."""
        return self._move(call, "stopped", {"completed": self._clock.stamp()})

    def failed(self, call: Call) -> JsonObject:
        """Move to failed."""
        return self._move(call, "failed", {"completed": self._clock.stamp()})

    def completed(self, call: Call) -> JsonObject:
        """Move to completed, and on to published if `publish` is set."""
        answer = self._move(call, "completed", {"completed": self._clock.stamp()})
        if not call.flag("publish"):
            return {**answer, "published": 0}
        published = self.publish(call)
        return {**published, "published": 1}

    def publish(self, call: Call) -> JsonObject:
        """Move to published, with the Task's output models unless `publish_model` is false."""

        def publish_models(tx: Writer, doc: JsonObject) -> str:
            refused: list[str] = []
            if call.flag("publish_model", default=True):
                # only the last one, as a real server does
                for item in ((doc.get("models") or {}).get("output") or [])[-1:]:
                    try:
                        self._publish_model(tx, call, str(item.get("model")))
                    except ApiError as error:
                        # a model that is gone; the Task is published all the same
                        refused.append(error.message)
            return "; ".join(refused)

        return self._move(
            call, "published", {"published": self._clock.stamp()}, with_doc=publish_models, show_output=True
        )

    def reset(self, call: Call) -> JsonObject:
        """Move back to created: results, artifacts and the registration of output models are removed."""
        with self._store.write() as tx:
            doc = require(tx, call.text("task"))
            if doc["status"] == "published" and not call.flag("force"):
                raise invalid_task_status(task_id=doc["id"], current=doc["status"], wanted="created")
            execution = doc.get("execution") or {}
            artifacts = [item for item in execution.get("artifacts") or [] if item.get("mode") == "input"]
            fields: JsonObject = {
                "status": "created",
                "status_reason": "reset",
                "status_message": "reset",
                "status_changed": self._clock.stamp(),
            }
            cleared: JsonObject = {
                "execution": {**execution, "artifacts": artifacts},
                "models": {"input": (doc.get("models") or {}).get("input") or [], "output": []},
                "last_iteration": 0,
                "last_metrics": {},
                "metric_stats": {},
                "unique_metrics": [],
                "runtime": {},
            }
            if call.flag("clear_all"):
                cleared |= {"execution": _EMPTY_EXECUTION | {"artifacts": []}, "hyperparams": {}, "configuration": {}}
            doc = {key: value for key, value in doc.items() if key not in ("started", "published", "active_duration")}
            tx.execute("DELETE FROM events WHERE owner = ?", (doc["id"],))
            saved = self._save(tx, call, doc | cleared, fields)
        return {"updated": 1, "fields": saved, "deleted_models": 0, "dequeued": {}, "events": {}, "urls": {}}

    def delete(self, call: Call) -> JsonObject:
        """Remove the Task and its events. The client deletes its files."""
        with self._store.write() as tx:
            doc = require(tx, call.text("task"))
            if doc["status"] not in ("created", "stopped", "failed", "completed") and not call.flag("force"):
                raise ApiError(
                    400, 123, f"Task cannot be deleted: task={doc['id']}, status={doc['status']}; use force=true"
                )
            tx.delete(KIND, doc["id"])
            tx.execute("DELETE FROM events WHERE owner = ?", (doc["id"],))
        return {"deleted": True, "updated_children": 0, "updated_models": 0, "deleted_models": 0, "urls": None}

    def archive(self, call: Call) -> JsonObject:
        """Mark Tasks as archived."""
        return {"archived": self._tag_many(call, call.items("tasks"), add=True)}

    def archive_many(self, call: Call) -> JsonObject:
        """Mark Tasks as archived."""
        ids = call.items("ids")
        self._tag_many(call, ids, add=True)
        return {"succeeded": [{"id": item, "archived": True} for item in ids], "failed": []}

    def unarchive_many(self, call: Call) -> JsonObject:
        """Remove the archive mark."""
        ids = call.items("ids")
        self._tag_many(call, ids, add=False)
        return {"succeeded": [{"id": item, "unarchived": True} for item in ids], "failed": []}

    def _tag_many(self, call: Call, ids: list[Any], *, add: bool) -> int:
        with self._store.write() as tx:
            for task_id in ids:
                doc = require(tx, str(task_id))
                tags = [tag for tag in doc.get("system_tags") or [] if tag != "archived"]
                self._save(tx, call, doc, {"system_tags": [*tags, "archived"] if add else tags})
        return len(ids)

    def _move(
        self,
        call: Call,
        status: str,
        times: JsonObject,
        *,
        with_doc: Callable[[Writer, JsonObject], str] | None = None,
        show_output: bool = False,
    ) -> JsonObject:
        """Change the status if the status machine or `force` allows it."""
        with self._store.write() as tx:
            doc = require(tx, call.text("task"))
            current = doc["status"]
            if status != current and status not in TRANSITIONS.get(current, frozenset()) and not call.flag("force"):
                raise invalid_task_status(task_id=doc["id"], current=current, wanted=status)
            note = with_doc(tx, doc) if with_doc is not None else ""
            fields: JsonObject = {
                "status": status,
                "status_reason": str(call.body.get("status_reason") or ""),
                "status_message": str(call.body.get("status_message") or note),
                "status_changed": self._clock.stamp(),
                **times,
            }
            if "started" in times:
                doc["active_duration"] = 0
            elif "completed" in times and doc.get("started"):
                ran = datetime.fromisoformat(times["completed"]) - datetime.fromisoformat(doc["started"])
                doc["active_duration"] = int(ran.total_seconds())
            saved = self._save(tx, call, doc, fields)
        if show_output:
            saved = {**saved, "output": doc.get("output") or {}}
        return {"updated": 1, "fields": saved}

    def _require_editable(self, call: Call, doc: JsonObject, *, only_properties: bool = False) -> None:
        """A real server changes parts of a Task only in status created, and in progress with `force`."""
        if only_properties:
            return
        if doc["status"] not in (("created", "in_progress") if call.flag("force") else ("created",)):
            raise unexpected_task_status(expected="created", current=doc["status"])

    def _require_open(self, call: Call, doc: JsonObject) -> None:
        self._require_editable(call, doc)
        if not call.flag("force") and doc["status"] not in ("created", "in_progress"):
            raise invalid_task_status(task_id=doc["id"], current=doc["status"], wanted="in_progress")

    def _new(self, call: Call, name: str, kind: str) -> JsonObject:
        now = self._clock.stamp()
        doc: JsonObject = {
            "id": self._new_id(),
            "company": call.identity.company,
            "user": call.identity.user,
            "name": name,
            "type": kind,
            "status": "created",
            "comment": "",
            "report_assets": [],
            "created": now,
            "output": {},
            "execution": _EMPTY_EXECUTION | {"artifacts": []},
            "tags": [],
            "system_tags": [],
            "script": {"binary": "python", "repository": "", "entry_point": "", "requirements": {}},
            "last_update": now,
            "last_change": now,
            "last_iteration": 0,
            "last_metrics": {},
            "unique_metrics": [],
            "metric_stats": {},
            "hyperparams": {},
            "configuration": {},
            "runtime": {},
            "models": {"input": [], "output": []},
            "container": {},
            "last_changed_by": call.identity.user,
        }
        if call.body.get("project"):
            doc["project"] = call.body["project"]
        return doc


_EMPTY_EXECUTION: JsonObject = {"test_split": 0, "parameters": {}, "model_desc": {}, "model_labels": {}}


def require(tx: Reader, task_id: str) -> JsonObject:
    """The Task.

    Raises:
        ApiError: 400/101 when there is none.
    """
    doc = tx.get(KIND, task_id)
    if doc is None:
        raise invalid_task_id(task_id)
    return doc


def _are_properties(items: list[Any]) -> bool:
    """Return True if only user properties are concerned; every Task accepts those at any time."""
    return all(isinstance(item, Mapping) and str(item.get("section")).lower() == "properties" for item in items)


def _edited(doc: JsonObject, body: Mapping[str, Any]) -> JsonObject:
    """The fields of a Task that an edit changes, with their new values. Raises ``ApiError``."""
    fields: JsonObject = {key: body[key] for key in _REPLACED if body.get(key) is not None}
    for key in _EMBEDDED:
        if isinstance(body.get(key), Mapping):
            fields[key] = {**(doc.get(key) or {}), **body[key]}
    if body.get("output_dest") is not None:
        output = fields.get("output") or doc.get("output") or {}
        fields["output"] = {**output, "destination": body["output_dest"]}
    for key in _OBJECTS:
        if body.get(key) is not None and not isinstance(body[key], Mapping):
            raise validation_error(f"{key} must be an object")
    if body.get("configuration") is not None:
        fields["configuration"] = _cleaned(body["configuration"])
    if body.get("hyperparams") is not None:
        fields["hyperparams"] = {
            section: {name: _item(item) for name, item in names.items()} if isinstance(names, Mapping) else {}
            for section, names in body["hyperparams"].items()
        }
    if body.get("runtime") is not None:
        fields["runtime"] = dict(body["runtime"])
    if body.get("execution") is not None:
        sent = {name: value for name, value in body["execution"].items() if name in _EXECUTION_FIELDS}
        if isinstance(sent.get("artifacts"), list):
            sent["artifacts"] = [_artifact(item) for item in sent["artifacts"] if isinstance(item, Mapping)]
        fields["execution"] = {**(doc.get("execution") or {}), **sent}
    if body.get("models") is not None:
        lists = {kind: items for kind, items in body["models"].items() if isinstance(items, list)}
        fields["models"] = {**(doc.get("models") or {"input": [], "output": []}), **lists}
    return fields


def _artifact(item: Mapping[str, Any]) -> JsonObject:
    """An artifact as it is stored: with its mode."""
    sent = {key: value for key, value in item.items() if value is not None}
    return {"mode": "output", "display_data": [], **sent}


def _item(value: Any) -> JsonObject | None:
    """A configuration or hyperparameter item without nulls, which clients send or omit at random."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else None


def _cleaned(sections: Mapping[str, Any]) -> JsonObject:
    """Configuration sections by name; what is no section is left out."""
    return {name: item for name, item in ((name, _item(value)) for name, value in sections.items()) if item is not None}


def _keyed(items: Iterable[Any], *names: str) -> dict[tuple[str, ...], Any]:
    """A list of objects as a map by the fields that identify them (artifacts: key and mode; models: name)."""
    return {tuple(str(item.get(name) or "") for name in names): item for item in items if isinstance(item, Mapping)}


def _model_kind(value: str) -> str:
    if value not in ("input", "output"):
        raise validation_error("type must be input or output")
    return value
