"""The serving Task and models as ClearML's API returns them, decoded to our values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.spec import ArtifactRef, ModelRecord, ServingTask

MODEL_FIELDS: Final = (
    "id", "name", "uri", "framework", "system_tags", "project", "task", "tags", "created",
)  # fmt: skip
"""The fields that ``model_record`` reads."""


def serving_task(task: Mapping[str, Any]) -> ServingTask:
    """Decode a Task as returned by ``tasks.get_by_id``, without our records."""
    general = (task.get("hyperparams") or {}).get("General") or {}
    return ServingTask(
        id=str(task.get("id") or ""),
        name=str(task.get("name") or ""),
        sections={
            str(name): str(item.get("value") or "")
            for name, item in (task.get("configuration") or {}).items() if isinstance(item, Mapping)
        },
        settings={str(k): str(v.get("value") or "") for k, v in sorted(general.items()) if isinstance(v, Mapping)},
        artifacts={
            str(item["key"]): ArtifactRef(
                str(item["key"]), str(item["uri"]), str(item["hash"]) if item.get("hash") else None,
                is_archive=item.get("type") == "archive",
            )
            for item in (task.get("execution") or {}).get("artifacts") or () if item.get("key") and item.get("uri")
        },
        changed_by=str(task.get("last_changed_by") or ""),
    )  # fmt: skip


def model_record(model: Mapping[str, Any]) -> ModelRecord:
    """Decode a model as returned by ``models.get_by_id`` or ``models.get_all``."""
    return ModelRecord(
        id=str(model["id"]),
        name=str(model.get("name") or ""),
        uri=str(model.get("uri") or ""),
        framework=str(model.get("framework") or ""),
        is_package="package" in (model.get("system_tags") or ()),
        project=str(model.get("project") or ""),
        task=str(model.get("task") or ""),
        tags=tuple(model.get("tags") or ()),
        created=str(model.get("created") or ""),
    )
