"""`tasks.*`: creation, reading, whole-field edits that merge, statuses, artifacts, models, hyperparameters."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from deploy.controlplane import edits, merge, query
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
from deploy.controlplane.files import Files
from deploy.controlplane.protections import PROTECTED, Protections
from deploy.controlplane.reads import ReadLog
from deploy.controlplane.store import Reader, Store, Stored, Writer

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


class TasksApi:
    """Tasks of the store. `publish_model` publishes one model inside the transaction that publishes its Task."""

    def __init__(
        self,
        *,
        store: Store,
        files: Files,
        reads: ReadLog,
        clock: Clock,
        new_id: Callable[[], str],
        publish_model: Callable[[Writer, Call, str], None],
        protections: Protections = PROTECTED,
    ) -> None:
        self._store = store
        self._files = files
        self._reads = reads
        self._clock = clock
        self._new_id = new_id
        self._publish_model = publish_model
        self._protections = protections

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
            edit = self._edit_of(tx, call, doc)
            self._apply(edit, {key: value for key, value in call.body.items() if key not in ("name", "type")})
            tx.put(KIND, doc | edit.fields)
            projects.touch(tx, doc.get("project"), doc["created"])
        return {"id": doc["id"]}

    def clone(self, call: Call) -> JsonObject:
        """A new Task with the same definition: no status, results or output artifacts."""
        with self._store.write() as tx:
            source = require(tx, call.text("task")).doc
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
        """`{task: {…}}`. The read is remembered as a possible base of the session's next write."""
        with self._store.read() as tx:
            stored = require(tx, call.text("task"))
        self._reads.saw(call.identity.session, stored.doc["id"], stored.rev, stored.doc)
        return {"task": stored.doc}

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
        """Change any fields.

        Concurrent changes of configuration, hyperparameters, runtime, artifacts and models survive.
        """
        name = call.body.get("name")
        if name is not None and len(str(name)) < MIN_NAME:
            raise too_short("name")
        with self._store.write() as tx:
            doc = require(tx, call.text("task")).doc
            if not call.flag("force") and doc["status"] != "created":
                raise invalid_task_status(task_id=doc["id"], current=doc["status"], wanted="created")
            if call.body.get("project"):
                projects.require(tx, call.body["project"])
            edit = self._edit_of(tx, call, doc)
            self._apply(edit, call.body)
            _explain(edit)
            return {"updated": 1, "fields": self._save(tx, call, doc, edit.fields)}

    def _apply(self, edit: edits.Edit, body: Mapping[str, Any]) -> None:
        for key in _REPLACED:
            if body.get(key) is not None:
                edit.fields[key] = body[key]
        for key in _EMBEDDED:
            if isinstance(body.get(key), Mapping):
                edit.fields[key] = {**(edit.task.get(key) or {}), **body[key]}
        if body.get("output_dest") is not None:
            output = edit.fields.get("output") or edit.task.get("output") or {}
            edit.fields["output"] = {**output, "destination": body["output_dest"]}
        for key, merged in (
            ("configuration", edit.configuration),
            ("hyperparams", edit.hyperparams),
            ("runtime", edit.runtime),
            ("execution", edit.execution),
            ("models", edit.models),
        ):
            value = body.get(key)
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise validation_error(f"{key} must be an object")
            merged(value)

    def _edit_of(self, tx: Reader, call: Call, doc: JsonObject) -> edits.Edit:
        session = call.identity.session
        return edits.Edit(
            task=doc,
            writer=edits.Writer(session=session, client=call.client),
            reads=self._reads,
            pin=lambda uri, sha: self._files.pin(tx, uri, session=session, sha=sha),
            protections=self._protections,
        )

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
            doc = require(tx, call.text("task")).doc
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

        def compute(tx: Writer, doc: JsonObject) -> JsonObject:
            self._require_open(call, doc)
            edit = self._edit_of(tx, call, doc)
            new = merge.keyed([edit.artifact(item) for item in call.items("artifacts")], "key", "mode")
            execution = doc.get("execution") or {}
            merged = merge.keyed(execution.get("artifacts") or [], "key", "mode") | new
            return {"execution": {**execution, "artifacts": edits.sorted_artifacts(merged)}}

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
            entries = merge.keyed(models.get(kind) or [], "name")
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
                {"task": doc["id"], "hyperparams": [*merge.flattened(doc.get("hyperparams") or {}).values()]}
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
            doc = require(tx, call.text("task")).doc
            self._require_editable(call, doc)
            items = {str(item.get("name")): item for item in call.items("configuration")}
            edit = self._edit_of(tx, call, doc)
            if call.flag("replace_configuration"):
                edit.replaced_configuration(items)
            else:
                edit.configuration({**(doc.get("configuration") or {}), **items})
            _explain(edit)
            self._save(tx, call, doc, edit.fields)
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
            doc = require(tx, call.text("task")).doc
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
                outputs = (doc.get("models") or {}).get("output") or []
                # a real server publishes only the last one
                for item in outputs if self._protections.publishes_only_data else outputs[-1:]:
                    try:
                        self._publish_model(tx, call, str(item.get("model")))
                    except ApiError as error:
                        # a model without data stays unpublished; the Task is published all the same
                        refused.append(error.message)
            return "; ".join(refused)

        return self._move(
            call, "published", {"published": self._clock.stamp()}, with_doc=publish_models, show_output=True
        )

    def reset(self, call: Call) -> JsonObject:
        """Move back to created: results, artifacts and the registration of output models are removed."""
        with self._store.write() as tx:
            doc = require(tx, call.text("task")).doc
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
            doc = require(tx, call.text("task")).doc
            if doc["status"] not in ("created", "stopped", "failed", "completed") and not call.flag("force"):
                raise ApiError(
                    400, 123, f"Task cannot be deleted: task={doc['id']}, status={doc['status']}; use force=true"
                )
            tx.delete(KIND, doc["id"])
            tx.execute("DELETE FROM events WHERE owner = ?", (doc["id"],))
        self._reads.forget(doc["id"])
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
                doc = require(tx, str(task_id)).doc
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
            doc = require(tx, call.text("task")).doc
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
        if self._protections.edits_open_tasks or only_properties:
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


def require(tx: Reader, task_id: str) -> Stored:
    """The Task.

    Raises:
        ApiError: 400/101 when there is none.
    """
    stored = tx.get(KIND, task_id)
    if stored is None:
        raise invalid_task_id(task_id)
    return stored


def _are_properties(items: list[Any]) -> bool:
    """Return True if only user properties are concerned; every Task accepts those at any time."""
    return all(isinstance(item, Mapping) and str(item.get("section")).lower() == "properties" for item in items)


def _explain(edit: edits.Edit) -> None:
    message = edit.message()
    if message is not None:
        edit.fields["status_message"] = message


def _model_kind(value: str) -> str:
    if value not in ("input", "output"):
        raise validation_error("type must be input or output")
    return value
