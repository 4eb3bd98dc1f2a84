"""What is in each image: the packages its process imports, and not those of other processes."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.docker.requirements import IMAGES, requirements
from tests.unit.deploy.test_extras import DISTRIBUTIONS, build_graph, foreign

ROOT = Path(__file__).parents[3]
PROCESSES = {
    "sync": ("deploy.cli.commands.sync", "deploy.cli.commands.doctor", "deploy.sync"),
    "controlplane": ("deploy.controlplane",),
    "triton-cpu": ("deploy.tritonserver", "deploy.sync.runtime"),
}
"""What runs in the images that have a part of the base's packages; others have them all, and their extras' (see
``test_extras``).
"""

NEVER: Mapping[str, tuple[str, ...]] = {
    "gateway": ("torch", "uvicorn", "onnxruntime", "nvidia-pytriton", "python-multipart"),
    "sync": ("torch", "uvicorn", "fastapi", "starlette", "tokenizers", "swagger-ui-bundle", "nvidia-pytriton"),
    "controlplane": ("torch", "numpy", "grpcio", "tritonclient", "clearml", "tokenizers", "fastapi"),
    "triton-cpu": ("torch", "clearml", "fastapi", "uvicorn", "tokenizers"),
    "laptop": ("torch", "transformers"),
    "bundles": ("nvidia-pytriton", "clearml-serving"),
}
"""What belongs to another process."""


def closure(wanted: Iterable[str]) -> set[str]:
    """Return the names of all distributions that requirements lead to, in this environment."""
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ones = [one for one in map(Requirement, wanted) if one.marker is None or one.marker.evaluate()]
    while open_ones:
        one = open_ones.pop()
        extras = frozenset(one.extras)
        if (canonicalize_name(one.name), extras) in seen:
            continue
        seen.add((canonicalize_name(one.name), extras))
        for line in metadata.requires(one.name) or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                open_ones.append(needed)
    return {name for name, _ in seen}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """``[project]`` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_an_image_with_a_part_of_the_base_has_what_its_process_imports(project: dict[str, Any]) -> None:
    """A package that is missing shows in production only, in the function that needs it."""
    imports = build_graph()
    assert {image for image, (chosen, _) in IMAGES.items() if chosen is not None} == PROCESSES.keys()
    for image, places in PROCESSES.items():
        present = closure(requirements(project, image))
        missing = {name for name in foreign(imports, places) if not DISTRIBUTIONS[name] & present}
        assert missing <= {"opentelemetry"}, image


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_carries_nothing_of_other_processes(image: str, project: dict[str, Any]) -> None:
    """Every package is somebody's advisory one day, and megabytes at every start on a new node."""
    assert set() == {*NEVER[image]} & closure(requirements(project, image))
