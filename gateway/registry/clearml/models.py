"""Finds the models that match a query, newest first, with the filters of the SDK's ``Model.query_models``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.registry.port import ModelQuery
from gateway.spec import BROKEN_UPLOADS

PAGE: Final = 500
_EMPTY_ZIP: Final = 22
"""Size in bytes of a zip without entries: an empty folder was uploaded."""

Call = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]
"""Sends one API call (service, action, body)."""


class ModelSearch:
    """Answers queries, for instance for each rule of auto-update; remembers which models are not empty.

    ``size`` returns the size in bytes of the file at an address, None if unknown.
    """

    def __init__(self, call: Call, size: Callable[[str], int | None]) -> None:
        self._call = call
        self._size = size
        self._filled: set[tuple[str, str]] = set()
        """Id and address of models that are known not to be empty."""

    def find(self, query: ModelQuery) -> Sequence[str]:
        """See ``RegistryWriter.find_models``."""
        found: list[str] = []
        for models in pages(self._call, self._filters(query)):
            # Models with the same time are ordered by id, so that all callers see the same order.
            for model in sorted(models, key=lambda m: (str(m.get("created") or ""), str(m["id"])), reverse=True):
                if query.most is not None and len(found) >= query.most:
                    return found
                # Without a limit, empty models are included: they displace no other model.
                if _has_data(model) and (query.most is None or model["id"] in query.served or self._is_filled(model)):
                    found.append(str(model["id"]))
        return found

    def _filters(self, query: ModelQuery) -> dict[str, Any]:
        """Return the body of the query; empty if the project does not exist."""
        body: dict[str, Any] = {
            "system_tags": ["-archived"],
            "order_by": ["-created"],
            "only_fields": ["id", "created", "uri"],
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
        """Whether the file at the model's address is not empty; assumed if its size is unknown."""
        identity = (str(model["id"]), str(model["uri"]))
        if identity not in self._filled:
            size = self._size(identity[1])
            if size == 0 or (size == _EMPTY_ZIP and identity[1].endswith(".zip")):
                return False
            self._filled.add(identity)
        return True


def pages(call: Call, body: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the models that match ``body``, page by page; nothing for an empty ``body``."""
    for page in itertools.count() if body else ():
        models = call("models", "get_all", {**body, "page": page, "page_size": PAGE})["models"]
        yield models
        if len(models) < PAGE:
            return


def exactly(name: str) -> str:
    """Return a pattern that matches only ``name``."""
    return f"^{re.escape(name)}$"


def _has_data(model: Mapping[str, Any]) -> bool:
    uri = str(model.get("uri") or "")
    return bool(uri) and uri.rstrip("/").rsplit("/", 1)[-1] not in BROKEN_UPLOADS
