"""`models.*`: registration, lookup, publishing."""

from collections.abc import Callable, Mapping

from deploy.controlplane import query
from deploy.controlplane.api import projects, tasks
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.clock import Clock
from deploy.controlplane.envelope import (
    ApiError,
    JsonObject,
    invalid_model_id,
    missing_fields,
    model_creating_task_exists,
    model_in_use,
    too_short,
    validation_error,
)
from deploy.controlplane.store import Reader, Store, Writer

KIND = "models"
MIN_NAME = 3
ARCHIVED = "archived"
# prefix of a deleted model's id in Tasks that still name it
DELETED = "__DELETED__"
SCHEMA = query.Schema(
    list_fields=frozenset({"id", "tags", "system_tags", "project", "task", "uri", "framework", "user", "parent"}),
    flag_fields=frozenset({"ready"}),
    dotted_prefixes=("metadata.", "labels.", "last_metrics."),
)

_EDITABLE = (
    "name",
    "comment",
    "tags",
    "system_tags",
    "framework",
    "design",
    "labels",
    "project",
    "task",
    "parent",
    "metadata",
)


class ModelsApi:
    """Models of the store."""

    def __init__(self, *, store: Store, clock: Clock, new_id: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id

    def endpoints(self) -> Mapping[str, Handler]:
        """Name -> handler."""
        return {
            "models.create": self.create,
            "models.get_by_id": self.get_by_id,
            "models.get_all": self.get_all,
            "models.get_all_ex": self.get_all,
            "models.edit": self.edit,
            "models.update": self.edit,
            "models.set_ready": self.set_ready,
            "models.publish_many": self.publish_many,
            "models.add_or_update_metadata": self.add_or_update_metadata,
            "models.delete_metadata": self.delete_metadata,
            "models.archive_many": self.archive_many,
            "models.unarchive_many": self.unarchive_many,
            "models.delete": self.delete,
        }

    def create(self, call: Call) -> JsonObject:
        """`{id, created: true}`."""
        now = self._clock.stamp()
        uri, name = call.text("uri"), call.text("name")
        if len(name) < MIN_NAME:
            raise too_short("name")
        doc: JsonObject = {
            "id": self._new_id(),
            "company": call.identity.company,
            "user": call.identity.user,
            "name": name,
            "created": now,
            "tags": [],
            "system_tags": [],
            "framework": None,
            "design": {},
            "labels": {},
            "ready": False,
            "last_update": now,
            "last_change": now,
            "last_changed_by": call.identity.user,
            "metadata": {},
            "last_iteration": 0,
            "last_metrics": {},
        }
        with self._store.write() as tx:
            doc |= self._fields(tx, call) | {"uri": uri}
            doc = {key: value for key, value in doc.items() if value is not None}
            tx.put(KIND, doc)
            if call.flag("ready"):
                self.publish_in(tx, call, doc["id"])
        return {"id": doc["id"], "created": True}

    def get_by_id(self, call: Call) -> JsonObject:
        """`{model: {…}}`."""
        with self._store.read() as tx:
            return {"model": require(tx, call.text("model"), call.identity.company)}

    def get_all(self, call: Call) -> JsonObject:
        """`{models: […]}`."""
        body = call.body
        with self._store.read() as tx:
            if call.flag("include_subprojects") and call.items("project"):
                body = body | {"project": projects.subtree(tx, call.items("project"))}
            documents = list(tx.scan(KIND, ids=query.exact(body.get("id")), projects=query.exact(body.get("project"))))
        found = query.select(documents, body, SCHEMA)
        return {"models": [query.project(doc, body.get("only_fields")) for doc in found]}

    def edit(self, call: Call) -> JsonObject:
        """Edit any fields, also of a published model."""
        name = call.body.get("name")
        if name is not None and len(str(name)) < MIN_NAME:
            raise too_short("name")
        with self._store.write() as tx:
            doc = require(tx, call.text("model"), call.identity.company)
            fields = self._fields(tx, call)
            if call.body.get("uri"):
                fields["uri"] = str(call.body["uri"])
            if isinstance(call.body.get("ready"), bool):
                fields["ready"] = call.body["ready"]
            self._count_iteration(tx, call, doc.get("task") or fields.get("task"))
            saved = self._save(tx, call, doc, fields)
        return {"updated": 1, "fields": {**saved, "ui_cache": {}} if call.body.get("uri") else saved}

    def set_ready(self, call: Call) -> JsonObject:
        """Publish, with or without data."""
        with self._store.write() as tx:
            doc = require(tx, call.text("model"), call.identity.company)
            if doc["ready"]:
                raise ApiError(400, 203, f"Model is ready: id={doc['id']}")
            self.publish_in(tx, call, doc["id"])
        return {"updated": 1, "fields": {}}

    def publish_many(self, call: Call) -> JsonObject:
        """Publish several models; those that there are not are listed in `failed`."""
        succeeded: list[JsonObject] = []
        failed: list[JsonObject] = []
        for model_id in call.items("ids"):
            try:
                with self._store.write() as tx:
                    self.publish_in(tx, call, str(model_id))
                succeeded.append({"id": model_id, "ready": True})
            except ApiError as error:
                failed.append({"id": model_id, "error": {"codes": [error.code, error.subcode], "msg": error.message}})
        return {"succeeded": succeeded, "failed": failed}

    def publish_in(self, tx: Writer, call: Call, model_id: str) -> None:
        """Publish within a transaction of the caller's.

        Raises:
            ApiError: 400/201 when there is no such model.
        """
        self._save(tx, call, require(tx, model_id, call.identity.company), {"ready": True})

    def add_or_update_metadata(self, call: Call) -> JsonObject:
        """Add or replace metadata by key; `replace_metadata` drops the others."""
        with self._store.write() as tx:
            doc = require(tx, call.text("model"), call.identity.company)
            metadata = {} if call.flag("replace_metadata") else dict(doc.get("metadata") or {})
            for item in call.items("metadata"):
                if not isinstance(item, Mapping) or not item.get("key"):
                    raise validation_error("metadata items need a key")
                metadata[item["key"]] = dict(item)
            self._save(tx, call, doc, {"metadata": metadata})
        return {"updated": 1}

    def delete_metadata(self, call: Call) -> JsonObject:
        """Remove metadata by key."""
        gone = set(call.items("keys"))
        with self._store.write() as tx:
            doc = require(tx, call.text("model"), call.identity.company)
            kept = {key: item for key, item in (doc.get("metadata") or {}).items() if key not in gone}
            self._save(tx, call, doc, {"metadata": kept})
        return {"updated": 1}

    def archive_many(self, call: Call) -> JsonObject:
        """Mark models as archived."""
        return self._tag_many(call, "archived", add=True)

    def unarchive_many(self, call: Call) -> JsonObject:
        """Remove the archive mark."""
        return self._tag_many(call, "unarchived", add=False)

    def delete(self, call: Call) -> JsonObject:
        """Remove a model; the client then deletes the file at `url`.

        It needs `force` where a Task uses the model as an input or a published Task has made it.
        """
        with self._store.write() as tx:
            doc = require(tx, call.text("model"), call.identity.company)
            if not call.flag("force"):
                self._require_deletable(tx, doc)
            self._unlink(tx, call, doc["id"])
            tx.delete(KIND, doc["id"])
            tx.execute("DELETE FROM events WHERE owner = ?", (doc["id"],))
        return {"deleted": True, "url": doc.get("uri")}

    def _require_deletable(self, tx: Reader, doc: JsonObject) -> None:
        known = list(tx.scan(tasks.KIND))
        used = [
            task
            for task in known
            if any(item.get("model") == doc["id"] for item in (task.get("models") or {}).get("input") or [])
        ]
        if used:
            raise model_in_use(tasks=len(used))
        creator = next((task for task in known if task["id"] == doc.get("task")), None)
        if creator is not None and creator["status"] == "published":
            raise model_creating_task_exists(creator["id"])

    def _unlink(self, tx: Writer, call: Call, model_id: str) -> None:
        """Remove a deleted model from the Task that created it; in Tasks that use it as an input, mark its id as
        deleted.
        """
        now = self._clock.stamp()
        for task in list(tx.scan(tasks.KIND)):
            models: JsonObject = task.get("models") or {}
            inputs, outputs = models.get("input") or [], models.get("output") or []
            if not any(item.get("model") == model_id for item in [*inputs, *outputs]):
                continue
            changed: JsonObject = {
                "input": [
                    item | {"model": DELETED + model_id} if item.get("model") == model_id else item for item in inputs
                ],
                "output": [item for item in outputs if item.get("model") != model_id],
            }
            edited = {"last_change": now, "last_changed_by": call.identity.user}
            tx.put(tasks.KIND, task | edited | {"models": changed})

    def _tag_many(self, call: Call, verb: str, *, add: bool) -> JsonObject:
        succeeded: list[JsonObject] = []
        failed: list[JsonObject] = []
        if not call.items("ids"):
            raise missing_fields("ids")
        with self._store.write() as tx:
            for model_id in call.items("ids"):
                stored = tx.get(KIND, str(model_id))
                if stored is None:
                    error = invalid_model_id(str(model_id), call.identity.company)
                    failed.append(
                        {"id": model_id, "error": {"codes": [error.code, error.subcode], "msg": error.message}}
                    )
                    continue
                tags = [tag for tag in stored.get("system_tags") or [] if tag != ARCHIVED]
                self._save(tx, call, stored, {"system_tags": [*tags, ARCHIVED] if add else tags})
                succeeded.append({"id": model_id, verb: True})
        return {"succeeded": succeeded, "failed": failed}

    def _fields(self, tx: Reader, call: Call) -> JsonObject:
        fields = {key: call.body[key] for key in _EDITABLE if call.body.get(key) is not None}
        if fields.get("project"):
            projects.require(tx, fields["project"])
        return fields

    def _count_iteration(self, tx: Writer, call: Call, task_id: str | None) -> None:
        """Raise the Task's last iteration to the one that the model was stored at."""
        iteration = call.body.get("iteration")
        stored = tx.get(tasks.KIND, task_id) if task_id and isinstance(iteration, int) else None
        if stored is None:
            return
        now = self._clock.stamp()
        reached = max(call.body["iteration"], stored.get("last_iteration") or 0)
        tx.put(tasks.KIND, stored | {"last_iteration": reached, "last_update": now, "last_change": now})

    def _save(self, tx: Writer, call: Call, doc: JsonObject, fields: JsonObject) -> JsonObject:
        now = self._clock.stamp()
        changed = fields | {"last_change": now, "last_changed_by": call.identity.user, "last_update": now}
        tx.put(KIND, {key: value for key, value in (doc | changed).items() if value is not None})
        projects.touch(tx, changed.get("project") or doc.get("project"), now)
        return changed


def require(tx: Reader, model_id: str, company: str) -> JsonObject:
    """The model.

    Raises:
        ApiError: 400/201 when there is none.
    """
    stored = tx.get(KIND, model_id)
    if stored is None:
        raise invalid_model_id(model_id, company)
    return stored
