"""What gateways and model syncs of neighbouring versions write for each other is read as it was meant.

They are replaced one by one, in any order: `tests/data/between_versions` holds what each minor version writes. Where
a test fails, the other side of a service that is being upgraded would fail: keep the old form readable, and record the
new one beside it (a folder named after the version that writes it first).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from deploy.sync.model_folder.build import Builder
from deploy.sync.model_folder.execution import Tuning
from deploy.sync.repository import MARKER, ModelRepository, OnDisk
from gateway import spec
from gateway.registry.clearml.decode import model_record, serving_task
from tests import tiny

RECORDED = Path(__file__).parents[3] / "data" / "between_versions"
VERSIONS = sorted(folder.name for folder in RECORDED.iterdir())


def recorded(version: str, name: str) -> Any:
    """A file of what one version wrote."""
    return json.loads((RECORDED / version / f"{name}.json").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_both_sides_call_a_model_the_same(version: str) -> None:
    """Neither tells the other: a gateway asks Triton for the name it computes, and model sync loads under its own."""
    task = recorded(version, "task")
    serving = spec.decode(serving_task(task["task"]))
    models = {model_id: model_record(model) for model_id, model in task["models"].items()}
    of = {url: (endpoint, models[endpoint.model_id or ""]) for url, endpoint in serving.endpoints.items()}
    assert task["names"] == {url: spec.triton_model_name(*one) for url, one in of.items()}
    assert task["pools"] == {url: list(spec.pools_of(*one)) for url, one in of.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_folder_of_another_version_is_ours(version: str, tmp_path: Path) -> None:
    """It is kept while it is called and removed afterwards; also one that says more of itself than is known here."""
    repository = ModelRepository(tmp_path / "models")
    repository.open()
    marker = recorded(version, "marker")
    for name, more in (("same", {}), ("newer", {"a_field_of_the_next_version": [1]})):
        (tmp_path / "models" / name).mkdir()
        (tmp_path / "models" / name / MARKER).write_text(json.dumps({**marker, "name": name, **more}))
    found = repository.models()
    repository.close()
    assert {name: OnDisk(**{**marker, "name": name}) for name in ("same", "newer")} == found


def test_what_is_written_for_triton_is_what_was_recorded_last(tmp_path: Path) -> None:
    """Or every model would be loaded again by an upgrade of model sync, without a word in the change log."""
    x, y = ((name, TensorProto.FLOAT, ("batch", 2)) for name in "xy")
    tiny.saved(tmp_path / "net.onnx", [helper.make_node("Identity", ["x"], ["y"])], [x], [y])
    endpoint = spec.EndpointSpec("e/1", "e", "1", "triton", "m")
    record = spec.ModelRecord("m", "n", "file:///m/net.onnx", "ONNX")
    for engine, config in recorded(VERSIONS[-1], "configs").items():
        built = Builder(engine, Tuning(instances=1), frozenset()).build("e-1", endpoint, record, tmp_path)
        assert config == built.config, engine
