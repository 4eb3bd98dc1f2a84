"""Which models of the registry match a query, newest first: the filters are those that ``Model.query_models`` sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.registry.port import ModelQuery
from gateway.spec import BROKEN_UPLOADS

PAGE: Final = 500
_EMPTY_ZIP: Final = 22
"""Bytes of a zip without entries: a folder that was empty when it was uploaded."""

Call = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]
"""Sends one API call (service, action, body)."""


class ModelSearch:
    """Asks again and again, for instance for every rule of auto-update: what was looked at once is not looked at again.

    ``size`` returns how many bytes lie at an address, None if nobody can say.
    """

    def __init__(self, call: Call, size: Callable[[str], int | None]) -> None:
        self._call = call
        self._size = size
        self._filled: set[tuple[str, str]] = set()
        """Id and address of models that are known to hold something."""

    def find(self, query: ModelQuery) -> Sequence[str]:
        """See ``RegistryWriter.find_models``."""
        body = self._filters(query)
        found: list[str] = []
        page = 0
        while body and (query.most is None or len(found) < query.most):
            models = self._call("models", "get_all", {**body, "page": page})["models"]
            # Models of one instant come in an order of their own, the same for everybody.
            for model in sorted(models, key=lambda m: (str(m.get("created") or ""), str(m["id"])), reverse=True):
                if query.most is not None and len(found) >= query.most:
                    break
                # Where there is no limit an empty model takes nobody's place.
                if _has_data(model) and (query.most is None or model["id"] in query.served or self._is_filled(model)):
                    found.append(str(model["id"]))
            if len(models) < PAGE:
                break
            page += 1
        return found

    def _filters(self, query: ModelQuery) -> dict[str, Any]:
        """Return what to ask for; nothing if there is no such project."""
        body: dict[str, Any] = {
            "system_tags": ["-archived"],
            "order_by": ["-created"],
            "only_fields": ["id", "created", "uri"],
            "page_size": PAGE,
        }
        if query.project:
            asked = {"name": exactly(query.project), "only_fields": ["id", "name"]}
            projects = self._call("projects", "get_all", asked)["projects"]
            body["project"] = [str(project["id"]) for project in projects if project.get("name") == query.project]
            if not body["project"]:
                return {}
        if query.name:
            body["name"] = exactly(query.name)
        if query.tags:
            body["tags"] = list(query.tags)
        if query.only_published:
            body["ready"] = True
        if query.ids:
            body["id"] = list(query.ids)
        return body

    def _is_filled(self, model: Mapping[str, Any]) -> bool:
        """Say whether anything lies at the model's address; what cannot be asked counts as filled."""
        identity = (str(model["id"]), str(model["uri"]))
        if identity not in self._filled:
            size = self._size(identity[1])
            if size == 0 or (size == _EMPTY_ZIP and identity[1].endswith(".zip")):
                return False
            self._filled.add(identity)
        return True


def exactly(name: str) -> str:
    """Return the pattern that only ``name`` matches."""
    return f"^{re.escape(name)}$"


def _has_data(model: Mapping[str, Any]) -> bool:
    uri = str(model.get("uri") or "")
    return bool(uri) and uri.rstrip("/").rsplit("/", 1)[-1] not in BROKEN_UPLOADS
