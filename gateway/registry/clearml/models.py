"""Finds the models that match a query, newest first, with the filters of the SDK's ``Model.query_models``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.registry.clearml.decode import model_record
from gateway.registry.port import ModelQuery

PAGE: Final = 500

Call = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]
"""Sends one API call (service, action, body)."""


def find(call: Call, query: ModelQuery) -> Sequence[str]:
    """See ``RegistryWriter.find_models``."""
    found: list[str] = []
    for models in pages(call, _filters(call, query)):
        # Models with the same time are ordered by id, so that all callers see the same order.
        for model in sorted(models, key=lambda m: (str(m.get("created") or ""), str(m["id"])), reverse=True):
            if query.most is not None and len(found) >= query.most:
                return found
            if model_record(model).has_data:
                found.append(str(model["id"]))
    return found


def _filters(call: Call, query: ModelQuery) -> dict[str, Any]:
    """Return the body of the query; empty if the project does not exist."""
    body: dict[str, Any] = {
        "system_tags": ["-archived"],
        "order_by": ["-created"],
        "only_fields": ["id", "created", "uri"],
    }
    if query.project:
        asked = {"name": exactly(query.project), "only_fields": ["id", "name"]}
        projects = call("projects", "get_all", asked)["projects"]
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
