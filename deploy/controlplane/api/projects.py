"""`projects.*`: names with slashes, where "A/B" implies "A"."""

from collections.abc import Callable, Mapping

from deploy.controlplane import query
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.clock import Clock
from deploy.controlplane.envelope import ApiError, JsonObject, invalid_project_id, not_unique
from deploy.controlplane.store import Reader, Store, Writer
from deploy.controlplane.tokens import Identity

KIND = "projects"
# fewest characters of each part of a name
MIN_NAME = 3
SCHEMA = query.Schema(list_fields=frozenset({"id", "tags", "system_tags", "user", "parent", "basename"}))

_EDITABLE = ("description", "tags", "system_tags", "default_output_destination")


class ProjectsApi:
    """Projects of the store."""

    def __init__(self, *, store: Store, clock: Clock, new_id: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id

    def endpoints(self) -> Mapping[str, Handler]:
        """Name -> handler."""
        return {
            "projects.create": self.create,
            "projects.get_all": self.get_all,
            "projects.get_all_ex": self.get_all,
            "projects.get_by_id": self.get_by_id,
            "projects.update": self.update,
        }

    def create(self, call: Call) -> JsonObject:
        """Create the project, and its parents if they do not exist; return its id.

        A second creation is refused, which two clients see that create the same project at once. So are names of one
        or two letters.
        """
        name = "/".join(part.strip() for part in str(call.body.get("name") or "").split("/") if part.strip())
        if not name or any(len(ancestor) < MIN_NAME for ancestor in _with_ancestors(name)):
            raise ApiError(400, 12, "Validation error (Project name cannot be blank)")
        with self._store.write() as tx:
            existing = {doc["name"]: doc for doc in tx.scan(KIND)}
            if name in existing:
                raise not_unique("Project with the same name already exists", name=name, company=call.identity.company)
            parents: list[str] = []
            for ancestor in _with_ancestors(name):
                doc = existing.get(ancestor)
                if doc is None:
                    doc = self._new(call.identity, ancestor, parents)
                    if ancestor == name:
                        doc |= {key: call.body[key] for key in _EDITABLE if call.body.get(key) is not None}
                    tx.put(KIND, doc)
                parents.append(doc["id"])
        return {"id": parents[-1]}

    def get_all(self, call: Call) -> JsonObject:
        """`{projects: […]}`; `shallow_search` without a name gives the top level only."""
        with self._store.read() as tx:
            documents = list(tx.scan(KIND, ids=query.exact(call.body.get("id"))))
        if call.flag("shallow_search") and not call.body.get("name"):
            documents = [doc for doc in documents if "/" not in doc["name"]]
        found = query.select(documents, call.body, SCHEMA)
        # a list omits `path`, as in ClearML
        return {"projects": [_without_path(query.project(doc, call.body.get("only_fields"))) for doc in found]}

    def get_by_id(self, call: Call) -> JsonObject:
        """`{project: {…}}`."""
        with self._store.read() as tx:
            return {"project": require(tx, call.text("project"))}

    def update(self, call: Call) -> JsonObject:
        """Change description, tags and the default output destination."""
        with self._store.write() as tx:
            doc = require(tx, call.text("project"))
            fields = {key: call.body[key] for key in _EDITABLE if key in call.body}
            doc |= fields | {"last_update": self._clock.stamp()}
            tx.put(KIND, doc)
        return {"updated": 1, "fields": fields}

    def _new(self, identity: Identity, name: str, parents: list[str]) -> JsonObject:
        now = self._clock.stamp()
        doc: JsonObject = {
            "id": self._new_id(),
            "company": identity.company,
            "user": identity.user,
            "name": name,
            "basename": name.rpartition("/")[2],
            "description": "",
            "created": now,
            "tags": [],
            "system_tags": [],
            "last_update": now,
            "featured": 9999,
            "path": list(parents),
        }
        if parents:
            doc["parent"] = parents[-1]
        return doc


def require(tx: Reader, project_id: str) -> JsonObject:
    """The project.

    Raises:
        ApiError: 400/401 when there is none.
    """
    stored = tx.get(KIND, project_id)
    if stored is None:
        raise invalid_project_id(project_id)
    return stored


def touch(tx: Writer, project_id: str | None, now: str) -> None:
    """Update the project's `last_update`: something in it has changed."""
    stored = tx.get(KIND, project_id) if project_id else None
    if stored is not None:
        tx.put(KIND, stored | {"last_update": now})


def subtree(tx: Reader, project_ids: list[str]) -> list[str]:
    """The given projects and everything below them."""
    wanted = set(project_ids)
    return [doc["id"] for doc in tx.scan(KIND) if doc["id"] in wanted or wanted & set(doc.get("path", ()))]


def _with_ancestors(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _without_path(doc: JsonObject) -> JsonObject:
    return {key: value for key, value in doc.items() if key != "path"}
