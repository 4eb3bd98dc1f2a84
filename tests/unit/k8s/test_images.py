"""What is in each image: the packages its process imports, and not those of other processes."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.docker.requirements import IMAGES, requirements

ROOT = Path(__file__).parents[3]
OURS = ("gateway", "preprocessing", "deploy", "dashboards")

PROCESSES: Mapping[str, tuple[str, ...]] = {
    "gateway": (
        "gateway",
        "deploy.controller",
        "deploy.cli.commands.controller",
        "deploy.laptop.demo.seed",
    ),
    "sync": ("deploy.cli.commands.sync", "deploy.cli.commands.doctor", "deploy.sync"),
    "controlplane": ("deploy.controlplane",),
    "triton-cpu": ("deploy.tritonserver", "deploy.sync.runtime"),
    "laptop": ("gateway", "deploy.sync", "deploy.controlplane", "deploy.tritonserver", "deploy.laptop.demo.seed"),
    "bundles": ("deploy.bundles",),
}
"""Packages and modules that run in each image."""

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


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """Who imports what, functions' own imports included."""
    return grimp.build_graph(*OURS, include_external_packages=True, exclude_type_checking_imports=True)


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_what_its_process_imports(image: str, project: dict[str, Any], imports: grimp.ImportGraph) -> None:
    """A package that is missing shows in production only, in the function that needs it."""
    found = {
        name.partition(".")[0] for module in PROCESSES[image]
        for name in imports.find_upstream_modules(module, as_package=True)
    }  # fmt: skip
    distributions = metadata.packages_distributions()
    present = closure(requirements(project, image))
    optional = {"opentelemetry"} if image not in ("gateway", "laptop") else set()
    missing = {
        name for name in found - {*OURS, *sys.stdlib_module_names, *optional}
        if not {canonicalize_name(each) for each in distributions[name]} & present
    }  # fmt: skip
    assert set() == missing


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_carries_nothing_of_other_processes(image: str, project: dict[str, Any]) -> None:
    """Every package is somebody's advisory one day, and megabytes at every start on a new node."""
    assert set() == {*NEVER[image]} & closure(requirements(project, image))
