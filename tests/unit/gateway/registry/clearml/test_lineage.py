"""Lineage of a model: its Task, parents, data sets and code, without secrets."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from gateway.errors import RegistryRefused
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.clearml.lineage import lineage_of

DATA = "d" * 32


class Source:
    """Models and Tasks as dictionaries."""

    def __init__(self, tasks: dict[str, dict[str, Any]], **model: Any) -> None:
        self.tasks = {key: {"id": key, "name": key, "project": "p", **fields} for key, fields in tasks.items()}
        self.fields = {"id": "m", "name": "model", "project": "p", "ready": True, "task": "train", **model}

    def model_fields(self, model_id: str) -> dict[str, Any]:
        if model_id != "m":
            raise RegistryRefused(f"Invalid model id {model_id}")
        return self.fields

    def task_of(self, task_id: str) -> dict[str, Any]:
        if task_id not in self.tasks:
            raise RegistryRefused(f"Invalid task id {task_id}")
        return self.tasks[task_id]

    def link(self, kind: str, project_id: str, object_id: str) -> str:
        return f"http://web/{project_id}/{kind}/{object_id}"


TRAIN = {
    "parent": "pipe",
    "script": {"repository": "https://user:secret@git.example/repo.git", "version_num": "abc123", "branch": "main",
               "entry_point": "train.py", "diff": "+x"},
    "hyperparams": {
        "Args": {"api_key": {"value": "hush"}},
        "Datasets": {"train": {"value": DATA}},
    },
}  # fmt: skip
TASKS = {
    "train": TRAIN, "pipe": {"system_tags": ["pipeline"], "type": "controller"},
    DATA: {"name": "reviews", "runtime": {"version": "1.2.0"}},
}  # fmt: skip


def test_lineage_lists_all_sources_with_links_and_without_secrets() -> None:
    """Task, code, pipeline, data sets with their versions; no parameters, no logins in repository addresses."""
    found = lineage_of(Source(TASKS), "m")
    task, parent = found["task"], found["parent"]
    assert "http://web/p/model/m" == found["model"]["link"]
    assert ("train", "http://web/p/task/train") == (task["id"], task["link"])
    assert ("https://git.example/repo.git", "abc123", True) == tuple(
        task["code"][name] for name in ("repository", "commit", "has_uncommitted_changes")
    )
    assert not any(secret in str(found) for secret in ("hush", "user:secret"))
    assert ("pipe", "controller") == (parent["id"], parent["type"])
    assert [("train", "reviews", "1.2.0")] == [(d["as"], d["name"], d["version"]) for d in found["datasets"]]
    assert [] == found["notes"]


def test_unreadable_sources_are_reported() -> None:
    """A deleted parent, an unknown data set, a model without a Task."""
    found = lineage_of(Source({"train": {**TRAIN, "parent": "gone"}}), "m")
    assert [
        "Task gone cannot be read: Invalid task id gone",
        f"Task {DATA} cannot be read: Invalid task id {DATA}",
    ] == (found["notes"])
    assert None is lineage_of(Source({}, task=""), "m")["task"]
    with pytest.raises(RegistryRefused):
        lineage_of(Source({}), "other")


@pytest.mark.parametrize(
    ("app", "link"),
    [({"return_value": "http://web/"}, "http://web/projects/p/models/m/general"), ({"side_effect": ValueError()}, "")],
)
def test_models_are_linked_if_the_web_application_is_known(
    monkeypatch: pytest.MonkeyPatch, app: dict[str, Any], link: str
) -> None:
    """The SDK knows it from some forms of the API's address only, or from CLEARML_WEB_HOST."""
    registry = ClearMLRegistry("t")
    monkeypatch.setattr(registry, "_session", Mock(get_app_server_host=Mock(**app)))
    assert link == registry.link("model", "p", "m")
