"""`models.*`: registration, lookup, publishing.

A published model keeps its bytes: a recorded URI is pinned to one upload.
"""

from collections.abc import Callable, Mapping

from deploy.controlplane import query, uris
from deploy.controlplane.api import projects, tasks
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.clock import Clock
from deploy.controlplane.envelope import (
    ApiError,
    JsonObject,
    filter_failed,
    invalid_model_id,
    invalid_model_uri,
    missing_fields,
    model_creating_task_exists,
    model_in_use,
    too_short,
    validation_error,
)
from deploy.controlplane.files import Files
from deploy.controlplane.protections import PROTECTED, Protections
from deploy.controlplane.store import Reader, Store, Writer

KIND = "models"
MIN_NAME = 3
ARCHIVED = "archived"
# prefix of a deleted model's id in Tasks that still name it
DELETED = "__DELETED__"
# set on a model that was published during its upload: it becomes ready together with its data
HELD = "publish_when_uploaded"
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

    def __init__(
        self,
        *,
        store: Store,
        files: Files,
        clock: Clock,
        new_id: Callable[[], str],
        protections: Protections = PROTECTED,
    ) -> None:
        self._store = store
        self._protections = protections
        self._files = files
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
            doc |= self._fields(tx, call) | {"uri": self._pinned(tx, call, uri)}
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
        """`{models: […]}`. A URI is found both as its uploader wrote it and in its pinned form."""
        body = call.body
        if not self._protections.filters_metadata and any(key.startswith("metadata.") for key in body):
            raise filter_failed()
        with self._store.read() as tx:
            if call.flag("include_subprojects") and call.items("project"):
                body = body | {"project": projects.subtree(tx, call.items("project"))}
            documents = list(tx.scan(KIND, ids=query.exact(body.get("id")), projects=query.exact(body.get("project"))))
        if body.get("uri"):
            wanted = query.ListFilter.parse(call.items("uri"))
            documents = [
                doc
                for doc in documents
                if wanted.accepts(doc.get("uri")) or wanted.accepts(uris.unversioned(doc.get("uri", "")))
            ]
            body = {key: value for key, value in body.items() if key != "uri"}
        found = query.select(documents, body, SCHEMA)
        return {"models": [query.project(doc, body.get("only_fields")) for doc in found]}

    def edit(self, call: Call) -> JsonObject:
        """Edit any fields, also of a published model. A URI is pinned to the bytes that it means now.

        A model that was published during its upload becomes ready with the URI of its data, and a model that has data
        keeps its URI if an edit brings the placeholder of an upload.
        """
        name = call.body.get("name")
        if name is not None and len(str(name)) < MIN_NAME:
            raise too_short("name")
        with self._store.write() as tx:
            doc = require(tx, call.text("model"), call.identity.company)
            fields = self._fields(tx, call)
            if call.body.get("uri"):
                fields["uri"] = self._pinned(tx, call, str(call.body["uri"]))
                if self._protections.publishes_only_data:
                    is_empty = uris.has_no_data(fields["uri"])
                    if doc["ready"] and is_empty:
                        raise invalid_model_uri(doc["id"], fields["uri"])
                    if is_empty and not uris.has_no_data(doc.get("uri") or ""):
                        # A thread of the SDK read the model before its upload ended, and writes it back after.
                        fields["uri"] = doc["uri"]
                    if doc.get(HELD) and not is_empty:
                        fields |= {"ready": True, HELD: None}
            if not self._protections.publishes_only_data and isinstance(call.body.get("ready"), bool):
                fields["ready"] = call.body["ready"]
            self._count_iteration(tx, call, doc.get("task") or fields.get("task"))
            saved = self._save(tx, call, doc, fields)
            if self._protections.publishes_only_data and call.flag("ready"):
                self.publish_in(tx, call, doc["id"])
        return {"updated": 1, "fields": {**saved, "ui_cache": {}} if call.body.get("uri") else saved}

    def set_ready(self, call: Call) -> JsonObject:
        """Publish. Refused for a model whose upload has failed, and delayed during an upload."""
        with self._store.write() as tx:
            doc = require(tx, call.text("model"), call.identity.company)
            if doc["ready"]:
                raise ApiError(400, 203, f"Model is ready: id={doc['id']}")
            self.publish_in(tx, call, doc["id"])
        return {"updated": 1, "fields": {}}

    def publish_many(self, call: Call) -> JsonObject:
        """Publish several models; those without data are listed in `failed`."""
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
        """Publish within a transaction of the caller's, pinning the URI for good.

        The SDK uploads in the background, so a script may publish before the bytes are there. Such a model is
        published when they are (`edit`): until then no query for published models finds it.

        Raises:
            ApiError: 400/204 when the model's upload has failed, 400/201 when there is no such model.
        """
        doc = require(tx, model_id, call.identity.company)
        uri = doc.get("uri") or ""
        if self._protections.publishes_only_data and uris.has_no_data(uri):
            if not uris.is_uploading(uri):
                raise invalid_model_uri(model_id, uri)
            self._save(tx, call, doc, {HELD: True})
            return
        self._save(tx, call, doc, {"ready": True, "uri": self._pinned(tx, call, doc["uri"])})

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

        A published one needs `force`. (A real server asks for `force` where a Task uses the model as an input or a
        published Task has made it.)
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
        if self._protections.keeps_published_models:
            if doc["ready"]:
                raise ApiError(400, 203, f"Model is ready: id={doc['id']}; use force=true")
            return
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
                tags = [tag for tag in stored.doc.get("system_tags") or [] if tag != ARCHIVED]
                self._save(tx, call, stored.doc, {"system_tags": [*tags, ARCHIVED] if add else tags})
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
        reached = max(call.body["iteration"], stored.doc.get("last_iteration") or 0)
        tx.put(tasks.KIND, stored.doc | {"last_iteration": reached, "last_update": now, "last_change": now})

    def _pinned(self, tx: Reader, call: Call, uri: str) -> str:
        return self._files.pin(tx, uri, session=call.identity.session)

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
    return stored.doc
