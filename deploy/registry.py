"""The registry port of everything in ``deploy`` that changes the serving Task or asks for more than serving needs.

``TaskStore`` is the port, ``ClearMLStore`` the real one: the gateway's own ClearML session with the calls a gateway
never makes. Sections are written one by one (``tasks.edit_configuration``), so that a write never carries along, and
so reverts, a section somebody else is changing; the stock CLI writes all of them at once. Never imports clearml itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from gateway.errors import RegistryRefused
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.ledger import Record
from gateway.spec import BROKEN_UPLOADS

_PAGE = 500
_EMPTY_ZIP: Final = 22
"""Bytes of a zip without entries: a folder that was empty when it was uploaded."""
_SILENCE_S: Final = 1800.0
"""A container that was silent for so long is gone; with room for clocks that differ."""


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """Which models of the registry: exact names, any of the tags.

    Archived ones and unfinished uploads never count; with a limit (``most``) neither do those that hold nothing.
    """

    project: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    only_published: bool = False
    most: int | None = None
    ids: tuple[str, ...] = ()
    """Of these only; empty: of all."""
    served: tuple[str, ...] = ()
    """Those in service: they count whatever became of their files."""


class TaskStore(Protocol):
    """Reads and changes one serving Task. Raises ``RegistryUnavailable`` and ``RegistryRefused``, in bounded time."""

    def task(self) -> Mapping[str, Any]:
        """Return the serving Task as ``tasks.get_by_id`` answers it."""
        ...

    def models(self, query: ModelQuery) -> Sequence[str]:
        """Return the ids of the models that match, newest first."""
        ...

    def write(self, sections: Mapping[str, str], records: Sequence[Record] = ()) -> None:
        """Add or replace these sections of the Task's configuration (name → text), and these of our records.

        The others stay. Records are written first: who sees a section that was changed sees the record about it.
        """
        ...

    def stock_containers(self) -> Sequence[str]:
        """Return the ids of clearml-serving's own inference containers that serve this Task now, by its account."""
        ...


class ClearMLStore:
    """A serving Task on a ClearML server, through the session of ``registry``."""

    def __init__(self, registry: ClearMLRegistry) -> None:
        self._registry = registry
        self._filled: set[tuple[str, str]] = set()
        """Id and address of models that are known to hold something."""

    @property
    def registry(self) -> ClearMLRegistry:
        """The session underneath, for reading what is not the serving Task's."""
        return self._registry

    def task(self) -> Mapping[str, Any]:
        """See ``TaskStore.task``."""
        return self._registry.task()

    def models(self, query: ModelQuery) -> Sequence[str]:
        """See ``TaskStore.models``; the filters are the ones ``Model.query_models`` of the SDK sends."""
        body: dict[str, Any] = {
            "system_tags": ["-archived"],
            "order_by": ["-created"],
            "only_fields": ["id", "created", "uri"],
            "page_size": _PAGE,
        }
        if query.project:
            projects = self._registry.call(
                "projects", "get_all", {"name": _exactly(query.project), "only_fields": ["id", "name"]}
            )["projects"]
            body["project"] = [str(project["id"]) for project in projects if project.get("name") == query.project]
            if not body["project"]:
                return []
        if query.name:
            body["name"] = _exactly(query.name)
        if query.tags:
            body["tags"] = list(query.tags)
        if query.only_published:
            body["ready"] = True
        if query.ids:
            body["id"] = list(query.ids)
        found: list[str] = []
        page = 0
        while query.most is None or len(found) < query.most:
            models = self._registry.call("models", "get_all", {**body, "page": page})["models"]
            # Models of one instant come in an order of their own, the same for everybody.
            for model in sorted(models, key=lambda m: (str(m.get("created") or ""), str(m["id"])), reverse=True):
                if query.most is not None and len(found) >= query.most:
                    break
                # Where there is no limit an empty model takes nobody's place.
                if _has_data(model) and (query.most is None or model["id"] in query.served or self._is_filled(model)):
                    found.append(str(model["id"]))
            if len(models) < _PAGE:
                break
            page += 1
        return found

    def _is_filled(self, model: Mapping[str, Any]) -> bool:
        """Say whether anything lies at the model's address; what cannot be asked counts as filled."""
        identity = (str(model["id"]), str(model["uri"]))
        if identity not in self._filled:
            size = self._registry.size(identity[1])
            if size == 0 or (size == _EMPTY_ZIP and identity[1].endswith(".zip")):
                return False
            self._filled.add(identity)
        return True

    def write(self, sections: Mapping[str, str], records: Sequence[Record] = ()) -> None:
        """See ``TaskStore.write``; all sections of one call change together, and so do all records."""
        self._registry.ledger.write(records)
        if not sections:
            return
        items = [{"name": name, "value": text} for name, text in sections.items()]
        answer = self._registry.call(
            "tasks", "edit_configuration", {"task": self._registry.followed(), "configuration": items, "force": True}
        )
        if not answer.get("updated"):
            raise RegistryRefused("the ClearML server did not take the change of the serving Task")

    def stock_containers(self) -> Sequence[str]:
        """See ``TaskStore.stock_containers``; each has a Task of its own that it pings twice a minute."""
        task = self._registry.task()
        since = datetime.now(UTC) - timedelta(seconds=_SILENCE_S)
        body = {
            "type": ["inference"], "status": ["in_progress"], "search_hidden": True,
            "name": _exactly(f"{task.get('name')} - serve instance"), "only_fields": ["id", "last_update"],
        }  # fmt: skip
        found = self._registry.call("tasks", "get_all", body)["tasks"]
        return [str(one["id"]) for one in found if _time_of(one.get("last_update")) >= since]


def _time_of(text: object) -> datetime:
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)  # unknown: it may be alive


def section_text(task: Mapping[str, Any], name: str) -> str:
    """Return the text of one configuration section; empty when there is none."""
    item = (task.get("configuration") or {}).get(name) or {}
    return str(item.get("value") or "") if isinstance(item, Mapping) else ""


def _exactly(name: str) -> str:
    return f"^{re.escape(name)}$"


def _has_data(model: Mapping[str, Any]) -> bool:
    uri = str(model.get("uri") or "")
    return bool(uri) and uri.rstrip("/").rsplit("/", 1)[-1] not in BROKEN_UPLOADS
