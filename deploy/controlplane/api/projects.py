"""`projects.*`: names with slashes, where "A/B" implies "A"."""

from collections.abc import Mapping

from deploy.controlplane import query
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.envelope import ApiError, JsonObject
from deploy.controlplane.store import Transaction

KIND = "projects"
# fewest characters of each part of a name
MIN_NAME = 3


def create(call: Call) -> JsonObject:
    """Create the project, and its parents if they do not exist; return its id.

    A second creation is refused, which two clients see that create the same project at once. So are names of one or
    two letters.
    """
    parts = [part.strip() for part in str(call.body.get("name") or "").split("/") if part.strip()]
    names = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    if not names or any(len(name) < MIN_NAME for name in names):
        raise ApiError(400, 12, "Validation error (Project name cannot be blank)")
    existing = {doc["name"]: doc for doc in call.tx.scan(KIND)}
    if names[-1] in existing:
        raise ApiError(
            400, 801,
            f"Project with the same name already exists: name={names[-1]}, company={call.identity.company}",
        )  # fmt: skip
    parents: list[str] = []
    for name in names:
        doc = existing.get(name) or _new(call, name, parents)
        if name == names[-1]:
            sent = {"description", "tags", "system_tags", "default_output_destination"} & call.body.keys()
            doc |= {key: call.body[key] for key in sent if call.body[key] is not None}
        if name not in existing:
            call.tx.put(KIND, doc)
        parents.append(doc["id"])
    return {"id": parents[-1]}


def get_all(call: Call) -> JsonObject:
    """`{projects: […]}`; `shallow_search` without a name gives the top level only."""
    documents = call.tx.scan(KIND)
    if call.flag("shallow_search") and not call.body.get("name"):
        documents = (doc for doc in documents if "/" not in doc["name"])
    return {"projects": query.select(documents, call.body)}


def get_by_id(call: Call) -> JsonObject:
    """`{project: {…}}`."""
    return {"project": require(call.tx, call.text("project"))}


def require(tx: Transaction, project_id: str) -> JsonObject:
    """The project.

    Raises:
        ApiError: 400/401 when there is none.
    """
    stored = tx.get(KIND, project_id)
    if stored is None:
        raise ApiError(400, 401, f"Invalid project id: id={project_id}")
    return stored


def touch(tx: Transaction, project_id: str | None, now: str) -> None:
    """Update the project's `last_update`: something in it has changed."""
    stored = tx.get(KIND, project_id) if project_id else None
    if stored is not None:
        tx.put(KIND, stored | {"last_update": now})


def _new(call: Call, name: str, parents: list[str]) -> JsonObject:
    above = {"parent": parents[-1]} if parents else {}
    return call.new(name, basename=name.rpartition("/")[2], description="", featured=9999, path=list(parents), **above)


CALLS: Mapping[str, Handler] = {
    "projects.get_all": get_all,
    "projects.get_by_id": get_by_id,
    "projects.create": create,
}
