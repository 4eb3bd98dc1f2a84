"""`tasks.*`: creation, reading, edits of whole fields, statuses, artifacts, models, hyperparameters.

Two clients that change a Task at once lose one change, as on a ClearML server 2.3.0.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from deploy.controlplane import query
from deploy.controlplane.api import models, projects
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.envelope import ApiError, JsonObject, invalid_task_status, missing_fields, too_short
from deploy.controlplane.store import Transaction

KIND = "tasks"
MIN_NAME = 3

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
_REPLACED = ("name", "comment", "tags", "system_tags", "project", "parent", "type", "container", "runtime")
_MERGED = ("script", "output")
# of a Task's `execution`; clients send other fields too ("dataviews"), which a server does not store
_EXECUTION = ("test_split", "parameters", "model_desc", "model_labels", "framework", "artifacts", "queue")
_EMPTY_EXECUTION: JsonObject = {"test_split": 0, "parameters": {}, "model_desc": {}, "model_labels": {}}


# --- creation and reading


def create(call: Call) -> JsonObject:
    """`{id}` of a new Task in status created."""
    name = call.text("name")
    if len(name) < MIN_NAME:
        raise too_short("name")
    if call.body.get("project"):
        projects.require(call.tx, call.body["project"])
    doc = _new(call, name, call.text("type"))
    doc |= _edited(doc, call.body)
    call.tx.put(KIND, doc)
    projects.touch(call.tx, doc.get("project"), doc["created"])
    return {"id": doc["id"]}


def get_by_id(call: Call) -> JsonObject:
    """`{task: {…}}`."""
    return {"task": require(call.tx, call.text("task"))}


def get_all(call: Call) -> JsonObject:
    """`{tasks: […]}`."""
    return {"tasks": query.select(call.tx.scan(KIND), call.body)}


# --- edits


def edit(call: Call) -> JsonObject:
    """Replace any fields; `script`, `output`, `execution` and `models` part by part."""
    doc = require(call.tx, call.text("task"))
    if call.body.get("name") is not None and len(call.body["name"]) < MIN_NAME:
        raise too_short("name")
    if not call.flag("force") and doc["status"] != "created":
        raise invalid_task_status(doc["id"], current=doc["status"], wanted="created")
    if call.body.get("project"):
        projects.require(call.tx, call.body["project"])
    return {"updated": 1, "fields": _save(call, doc, _edited(doc, call.body))}


def set_requirements(call: Call) -> JsonObject:
    """Replace `script.requirements`."""
    doc = require(call.tx, call.text("task"))
    if call.body.get("requirements") is None:
        raise missing_fields("requirements")
    _save(call, doc, {"script": {**doc["script"], "requirements": call.body["requirements"]}})
    return {"updated": 1, "fields": {}}


def add_or_update_artifacts(call: Call) -> JsonObject:
    """Add artifacts or replace those with the same key and mode."""
    doc = _editable(call)
    artifacts = [*(doc["execution"].get("artifacts") or []), *map(_artifact, call.items("artifacts"))]
    by_key = {(item["key"], item["mode"]): item for item in artifacts}
    _save(call, doc, {"execution": {**doc["execution"], "artifacts": [by_key[key] for key in sorted(by_key)]}})
    return {"updated": 1}


def add_or_update_model(call: Call) -> JsonObject:
    """Register a model under a name as input or output of the Task, replacing the name's earlier model."""
    doc = require(call.tx, call.text("task"))
    role, name = call.text("type"), call.text("name")
    entry = {"name": name, "model": call.text("model"), "updated": call.stamp()}
    by_name = {item.get("name"): item for item in doc["models"].get(role) or []} | {name: entry}
    fields: JsonObject = {"models": {**doc["models"], role: [*by_name.values()]}}
    if call.body.get("iteration") is not None:
        fields["last_iteration"] = max(call.body["iteration"], doc.get("last_iteration") or 0)
    _save(call, doc, fields)
    return {"updated": 1}


def delete_models(call: Call) -> JsonObject:
    """Remove names from the Task's models. The models stay."""
    doc = require(call.tx, call.text("task"))
    gone = {(item["type"], item["name"]) for item in call.items("models")}
    kept = {
        role: [item for item in items or [] if (role, item.get("name")) not in gone]
        for role, items in doc["models"].items()
    }
    _save(call, doc, {"models": kept})
    return {"updated": 1}


def edit_hyper_params(call: Call) -> JsonObject:
    """Add or replace single parameters; `replace_hyperparams`: none, section or all."""
    doc = _editable(call, properties=call.items("hyperparams"))
    how = call.body.get("replace_hyperparams") or "none"
    params = {} if how == "all" else {key: dict(value) for key, value in doc["hyperparams"].items()}
    if how == "section":
        params |= {item["section"]: {} for item in call.items("hyperparams")}
    for item in call.items("hyperparams"):
        params.setdefault(item["section"], {})[item["name"]] = _without_nulls(item)
    _save(call, doc, {"hyperparams": params})
    return {"updated": 1}


def delete_hyper_params(call: Call) -> JsonObject:
    """Remove single parameters, or whole sections if no name is given."""
    doc = _editable(call, properties=call.items("hyperparams"))
    params = {key: dict(value) for key, value in doc["hyperparams"].items()}
    for item in call.items("hyperparams"):
        if item.get("name"):
            params.get(item["section"], {}).pop(item["name"], None)
        else:
            params.pop(item["section"], None)
    _save(call, doc, {"hyperparams": {key: value for key, value in params.items() if value}})
    return {"updated": 1, "deleted": 1}


def edit_configuration(call: Call) -> JsonObject:
    """Add or replace whole sections (`replace_configuration`: drop the others)."""
    doc = _editable(call)
    kept = {} if call.flag("replace_configuration") else doc["configuration"]
    items = {item["name"]: _without_nulls(item) for item in call.items("configuration")}
    _save(call, doc, {"configuration": {**kept, **items}})
    return {"updated": 1}


# --- status


def ping(call: Call) -> JsonObject:
    """Record that the Task's process is alive: changes only `last_update`."""
    call.tx.put(KIND, require(call.tx, call.text("task")) | {"last_update": call.stamp()})
    return {}


def started(call: Call) -> JsonObject:
    """Move to in_progress. clearml-serving reopens a completed service this way."""
    return {**_move(call, "in_progress", "started"), "started": 1}


def stopped(call: Call) -> JsonObject:
    """Move to stopped."""
    return _move(call, "stopped", "completed")


def failed(call: Call) -> JsonObject:
    """Move to failed."""
    return _move(call, "failed", "completed")


def completed(call: Call) -> JsonObject:
    """Move to completed, and on to published if `publish` is set."""
    answer = _move(call, "completed", "completed")
    return {**publish(call), "published": 1} if call.flag("publish") else {**answer, "published": 0}


def publish(call: Call) -> JsonObject:
    """Move to published, with the last of the Task's output models unless `publish_model` is false."""
    answer = _move(call, "published", "published")
    doc = require(call.tx, call.text("task"))
    outputs = doc["models"].get("output") or []
    if outputs and call.body.get("publish_model") is not False and call.tx.get(models.KIND, outputs[-1]["model"]):
        models.publish(call, outputs[-1]["model"])
    answer["fields"]["output"] = doc["output"]
    return answer


def reset(call: Call) -> JsonObject:
    """Move back to created: results, artifacts and the registration of output models are removed."""
    doc = require(call.tx, call.text("task"))
    if doc["status"] == "published" and not call.flag("force"):
        raise invalid_task_status(doc["id"], current=doc["status"], wanted="created")
    kept = {key: value for key, value in doc.items() if key not in ("started", "published", "active_duration")}
    kept |= {
        "execution": _without_outputs(doc["execution"]),
        "models": {"input": doc["models"].get("input") or [], "output": []},
        "last_iteration": 0,
        "last_metrics": {},
        "metric_stats": {},
        "unique_metrics": [],
        "runtime": {},
    }
    if call.flag("clear_all"):
        kept |= {"execution": _EMPTY_EXECUTION | {"artifacts": []}, "hyperparams": {}, "configuration": {}}
    fields = {"status": "created", "status_reason": "reset", "status_message": "reset", "status_changed": call.stamp()}
    saved = _save(call, kept, fields)
    return {"updated": 1, "fields": saved, "deleted_models": 0, "dequeued": {}, "events": {}, "urls": {}}


def delete(call: Call) -> JsonObject:
    """Remove the Task. The client deletes its files."""
    doc = require(call.tx, call.text("task"))
    if doc["status"] not in ("created", "stopped", "failed", "completed") and not call.flag("force"):
        raise ApiError(400, 123, f"Task cannot be deleted: task={doc['id']}, status={doc['status']}; use force=true")
    call.tx.delete(KIND, doc["id"])
    return {"deleted": True, "updated_children": 0, "updated_models": 0, "deleted_models": 0, "urls": None}


def require(tx: Transaction, task_id: str) -> JsonObject:
    """The Task.

    Raises:
        ApiError: 400/101 when there is none.
    """
    doc = tx.get(KIND, task_id)
    if doc is None:
        raise ApiError(400, 101, f"Invalid task id: ids=({task_id})")
    return doc


def _editable(call: Call, properties: Iterable[JsonObject] = ()) -> JsonObject:
    """The Task, if a part of it may be changed: in status created, and in progress with `force`.

    User properties (of a list of hyperparameters) may be changed at any time.
    """
    doc = require(call.tx, call.text("task"))
    sections = {str(item["section"]).lower() for item in properties}
    allowed = ("created", "in_progress") if call.flag("force") else ("created",)
    if sections != {"properties"} and doc["status"] not in allowed:
        raise ApiError(400, 110, f"Invalid task status: expected=created, status={doc['status']}")
    return doc


def _save(call: Call, doc: JsonObject, fields: JsonObject) -> JsonObject:
    """Store `fields` and update the time stamps; return the fields as stored."""
    now = call.stamp()
    changed = fields | {"last_change": now, "last_changed_by": call.identity.user}
    if not fields.keys() <= _DESCRIPTIVE:
        changed["last_update"] = now
    call.tx.put(KIND, doc | changed)
    projects.touch(call.tx, changed.get("project") or doc.get("project"), now)
    return changed


def _move(call: Call, status: str, time_field: str) -> JsonObject:
    """Change the status if the status machine or `force` allows it, and note the time."""
    doc = require(call.tx, call.text("task"))
    current, now = doc["status"], call.stamp()
    if status != current and status not in TRANSITIONS[current] and not call.flag("force"):
        raise invalid_task_status(doc["id"], current=current, wanted=status)
    if time_field == "started":
        doc["active_duration"] = 0
    elif time_field == "completed" and doc.get("started"):
        ran = datetime.fromisoformat(now) - datetime.fromisoformat(doc["started"])
        doc["active_duration"] = int(ran.total_seconds())
    fields: JsonObject = {
        "status": status,
        "status_reason": call.body.get("status_reason") or "",
        "status_message": call.body.get("status_message") or "",
        "status_changed": now,
        time_field: now,
    }
    return {"updated": 1, "fields": _save(call, doc, fields)}


def _new(call: Call, name: str, kind: str) -> JsonObject:
    return call.new(
        name, type=kind, status="created", comment="", report_assets=[], output={},
        execution=_EMPTY_EXECUTION | {"artifacts": []},
        script={"binary": "python", "repository": "", "entry_point": "", "requirements": {}}, last_change=call.stamp(),
        last_changed_by=call.identity.user, last_iteration=0, last_metrics={}, unique_metrics=[], metric_stats={},
        hyperparams={}, configuration={}, runtime={}, models={"input": [], "output": []}, container={},
    )  # fmt: skip


def _edited(doc: JsonObject, body: JsonObject) -> JsonObject:
    """The fields of a Task that an edit changes, with their new values."""
    sent = _without_nulls(body)
    fields: JsonObject = {key: sent[key] for key in _REPLACED if key in sent}
    fields |= {key: {**doc[key], **sent[key]} for key in _MERGED if key in sent}
    if "output_dest" in sent:
        fields["output"] = {**(fields.get("output") or doc["output"]), "destination": sent["output_dest"]}
    if "configuration" in sent:
        fields["configuration"] = {name: _without_nulls(item) for name, item in sent["configuration"].items() if item}
    if "hyperparams" in sent:
        fields["hyperparams"] = {
            section: {name: _without_nulls(item) for name, item in (items or {}).items() if item}
            for section, items in sent["hyperparams"].items()
        }
    if "execution" in sent:
        execution = {name: value for name, value in sent["execution"].items() if name in _EXECUTION}
        if execution.get("artifacts") is not None:
            execution["artifacts"] = [_artifact(item) for item in execution["artifacts"]]
        fields["execution"] = {**doc["execution"], **execution}
    if "models" in sent:
        lists = {role: items for role, items in sent["models"].items() if role in doc["models"] and items is not None}
        fields["models"] = {**doc["models"], **lists}
    return fields


def _artifact(item: JsonObject) -> JsonObject:
    """An artifact as it is stored: with its mode."""
    return {"mode": "output", "display_data": [], **_without_nulls(item)}


def _without_outputs(execution: JsonObject) -> JsonObject:
    artifacts = [item for item in execution.get("artifacts") or [] if item["mode"] == "input"]
    return {**execution, "artifacts": artifacts}


def _without_nulls(item: Mapping[str, Any]) -> JsonObject:
    """Without nulls, which clients send or omit at random."""
    return {key: value for key, value in item.items() if value is not None}


CALLS: Mapping[str, Handler] = {
    "tasks.get_by_id": get_by_id,
    "tasks.get_all": get_all,
    "tasks.create": create,
    "tasks.edit": edit,
    "tasks.delete": delete,
    "tasks.ping": ping,
    "tasks.started": started,
    "tasks.stopped": stopped,
    "tasks.completed": completed,
    "tasks.failed": failed,
    "tasks.publish": publish,
    "tasks.reset": reset,
    "tasks.set_requirements": set_requirements,
    "tasks.add_or_update_artifacts": add_or_update_artifacts,
    "tasks.add_or_update_model": add_or_update_model,
    "tasks.delete_models": delete_models,
    "tasks.edit_hyper_params": edit_hyper_params,
    "tasks.delete_hyper_params": delete_hyper_params,
    "tasks.edit_configuration": edit_configuration,
}
