"""The lineage of a model: the Task that trained it, that Task's parent, code and data sets.

The gateway's lineage route and ``triton-gateway lineage`` call it in worker threads. It reads a few records. What
cannot be read becomes a note instead of an error. Parameters, which may hold secrets, are seen behind the Task's link:
the route is no better protected than inference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import RegistryRefused
from gateway.registry.port import is_id

if TYPE_CHECKING:
    from gateway.registry.clearml.registry import ClearMLRegistry

_MAX_DATASETS: Final = 20


def lineage_of(source: ClearMLRegistry, model_id: str) -> dict[str, Any]:
    """Return the lineage of a model as plain values.

    Raises ``RegistryUnavailable``, and ``RegistryRefused`` if the model does not exist.
    """
    model = source.model_fields(model_id)
    found: dict[str, Any] = {
        "model": {
            "id": model_id, "name": model.get("name"), "framework": model.get("framework"),
            "created": model.get("created"), "published": bool(model.get("ready")),
            "tags": list(model.get("tags") or ()),
            "link": source.link("model", str(model.get("project") or ""), model_id),
        },
        "task": None, "parent": None, "datasets": [], "notes": [],
    }  # fmt: skip
    task_id = str(model.get("task") or "")
    task = _task(source, task_id, found["notes"]) if task_id else None
    if task is None:
        found["notes"].append("the model names no Task that can be read: it was registered, not trained, in ClearML")
        return found
    found["task"] = {**_described(source, task), "code": _code(task)}
    if "serving-control-plane" in (task.get("system_tags") or ()):
        found["notes"].append("the model was uploaded to the serving service: its training is not known to ClearML")
    if task.get("parent") and (parent := _task(source, str(task["parent"]), found["notes"])) is not None:
        found["parent"] = _described(source, parent)
    for name, dataset_id in _datasets(task)[:_MAX_DATASETS]:
        dataset = _task(source, dataset_id, found["notes"])
        described = _described(source, dataset) if dataset is not None else {"id": dataset_id}
        version = ((dataset or {}).get("runtime") or {}).get("version")
        found["datasets"].append({"as": name, **described, "version": version})
    return found


def _described(source: ClearMLRegistry, task: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": task["id"], "name": task.get("name"), "type": task.get("type"), "status": task.get("status"),
        "link": source.link("task", str(task.get("project") or ""), str(task["id"])),
    }  # fmt: skip


def _code(task: Mapping[str, Any]) -> dict[str, Any]:
    script = task.get("script") or {}
    return {
        "repository": _without_login(str(script.get("repository") or "")), "branch": script.get("branch") or None,
        "commit": script.get("version_num") or None, "entry_point": script.get("entry_point") or None,
        "has_uncommitted_changes": bool(str(script.get("diff") or "").strip()),
    }  # fmt: skip


def _without_login(repository: str) -> str | None:
    return re.sub(r"://[^/@]*@", "://", repository) or None


def _datasets(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return data sets: from the section that ``Dataset.get(alias=…)`` writes, or parameters named after a data set."""
    found: dict[str, str] = {}
    for section, items in sorted((task.get("hyperparams") or {}).items()):
        for name, item in sorted((items or {}).items()):
            value = str((item.get("value") if isinstance(item, Mapping) else item) or "")
            if is_id(value) and (section == "Datasets" or "dataset" in name.lower()):
                found.setdefault(value, name)
    return [(name, dataset_id) for dataset_id, name in found.items()]


def _task(source: ClearMLRegistry, task_id: str, notes: list[str]) -> Mapping[str, Any] | None:
    try:
        return source.task_of(task_id)
    except RegistryRefused as error:
        notes.append(f"Task {task_id} cannot be read: {error.message}")
        return None
