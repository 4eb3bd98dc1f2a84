"""`models.*`: registration, lookup, publishing."""

from collections.abc import Mapping

from deploy.controlplane import query
from deploy.controlplane.api import projects
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.envelope import ApiError, JsonObject, too_short

KIND = "models"
TASKS = "tasks"
MIN_NAME = 3

_EDITABLE = ("name", "comment", "tags", "system_tags", "framework", "design", "labels", "project", "task", "parent",
             "metadata")  # fmt: skip


def create(call: Call) -> JsonObject:
    """`{id, created: true}`."""
    uri, name = call.text("uri"), call.text("name")
    if len(name) < MIN_NAME:
        raise too_short("name")
    doc = call.new(
        name, design={}, labels={}, ready=call.flag("ready"), last_change=call.stamp(),
        last_changed_by=call.identity.user, metadata={}, last_iteration=0, last_metrics={},
    )  # fmt: skip
    call.tx.put(KIND, doc | _fields(call) | {"uri": uri})
    return {"id": doc["id"], "created": True}


def get_by_id(call: Call) -> JsonObject:
    """`{model: {…}}`."""
    return {"model": require(call, call.text("model"))}


def get_all(call: Call) -> JsonObject:
    """`{models: […]}`."""
    return {"models": query.select(call.tx.scan(KIND), call.body)}


def edit(call: Call) -> JsonObject:
    """Edit any fields, also of a published model."""
    doc = require(call, call.text("model"))
    if call.body.get("name") is not None and len(call.body["name"]) < MIN_NAME:
        raise too_short("name")
    fields = _fields(call)
    if call.body.get("uri"):
        fields["uri"] = call.body["uri"]
    if call.body.get("ready") is not None:
        fields["ready"] = call.body["ready"]
    _count_iteration(call, doc.get("task") or fields.get("task"))
    saved = _save(call, doc, fields)
    return {"updated": 1, "fields": {**saved, "ui_cache": {}} if call.body.get("uri") else saved}


def set_ready(call: Call) -> JsonObject:
    """Publish, with or without data."""
    doc = require(call, call.text("model"))
    if doc["ready"]:
        raise ApiError(400, 203, f"Model is ready: id={doc['id']}")
    publish(call, doc["id"])
    return {"updated": 1, "fields": {}}


def publish(call: Call, model_id: str) -> None:
    """Publish one model.

    Raises:
        ApiError: 400/201 when there is no such model.
    """
    _save(call, require(call, model_id), {"ready": True})


def add_or_update_metadata(call: Call) -> JsonObject:
    """Add or replace metadata by key; `replace_metadata` drops the others."""
    doc = require(call, call.text("model"))
    metadata = {} if call.flag("replace_metadata") else dict(doc.get("metadata") or {})
    metadata |= {item["key"]: item for item in call.items("metadata")}
    _save(call, doc, {"metadata": metadata})
    return {"updated": 1}


def delete(call: Call) -> JsonObject:
    """Remove a model; the client then deletes the file at `url`. The Task that made it forgets it."""
    doc = require(call, call.text("model"))
    for task in [task for task in call.tx.scan(TASKS) if task["models"].get("output")]:
        kept = [item for item in task["models"]["output"] if item.get("model") != doc["id"]]
        if kept != task["models"]["output"]:
            edited = {"last_change": call.stamp(), "last_changed_by": call.identity.user}
            call.tx.put(TASKS, task | edited | {"models": {**task["models"], "output": kept}})
    call.tx.delete(KIND, doc["id"])
    return {"deleted": True, "url": doc.get("uri")}


def require(call: Call, model_id: str) -> JsonObject:
    """The model.

    Raises:
        ApiError: 400/201 when there is none.
    """
    stored = call.tx.get(KIND, model_id)
    if stored is None:
        raise ApiError(
            400, 201,
            f"Invalid model id (no such public or company model): id={model_id}, company={call.identity.company}",
        )  # fmt: skip
    return stored


def _fields(call: Call) -> JsonObject:
    fields = {key: call.body[key] for key in _EDITABLE if call.body.get(key) is not None}
    if fields.get("project"):
        projects.require(call.tx, fields["project"])
    return fields


def _count_iteration(call: Call, task_id: str | None) -> None:
    """Raise the Task's last iteration to the one that the model was stored at."""
    iteration = call.body.get("iteration")
    stored = call.tx.get(TASKS, task_id) if task_id and iteration is not None else None
    if stored is not None:
        now = call.stamp()
        reached = max(iteration or 0, stored.get("last_iteration") or 0)
        call.tx.put(TASKS, stored | {"last_iteration": reached, "last_update": now, "last_change": now})


def _save(call: Call, doc: JsonObject, fields: JsonObject) -> JsonObject:
    now = call.stamp()
    changed = fields | {"last_change": now, "last_changed_by": call.identity.user, "last_update": now}
    call.tx.put(KIND, doc | changed)
    projects.touch(call.tx, changed.get("project") or doc.get("project"), now)
    return changed


CALLS: Mapping[str, Handler] = {
    "models.get_all": get_all,
    "models.get_by_id": get_by_id,
    "models.create": create,
    "models.edit": edit,
    "models.set_ready": set_ready,
    "models.add_or_update_metadata": add_or_update_metadata,
    "models.delete": delete,
}
