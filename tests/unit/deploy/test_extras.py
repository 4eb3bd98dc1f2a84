"""Each place our code runs in installs what its code imports."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(extra: str) -> list[str]:
    """The packages that an extra requires, with those of the extras that it names; the base is ``""``."""
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    found: dict[str, None] = {}
    for one in map(Requirement, lines):
        inner = [name for part in one.extras for name in required(part)] if one.name == "triton-gateway" else [one.name]
        found |= dict.fromkeys(map(canonicalize_name, inner))
    return [*found]


REQUIRED = {extra: required(extra) for extra in ("", *PROJECT["optional-dependencies"])}
OURS = ("dashboards", "deploy", "gateway", "preprocessing")
COMMANDS = "deploy.cli.commands"

UNITS = {
    "gateway": {
        "gateway",
        "preprocessing",
        "deploy.controller",
        f"{COMMANDS}.serve",
        f"{COMMANDS}.controller",
        "deploy.cli.main",
        "deploy.probe",
        "deploy.laptop.demo.seed",
    },
    "sync": {"deploy.sync", f"{COMMANDS}.sync"},
    "controlplane": {"deploy.controlplane", f"{COMMANDS}.controlplane"},
    "triton": {"deploy.tritonserver", f"{COMMANDS}.triton"},
    "laptop": {"deploy.laptop", "deploy.cli.deploying", f"{COMMANDS}.up", f"{COMMANDS}.deploy"},
    "bundles": {"deploy.bundles", f"{COMMANDS}.optimize"},
    "admin": {"deploy.cli"},
}
"""Extra → the packages and modules that run there, with all of ours that they import."""

ELSEWHERE_RUN = {
    "admin": {
        f"{COMMANDS}.{name}"
        for name in ("serve", "sync", "controller", "controlplane", "triton", "up", "deploy", "optimize")
    }
    | {"deploy.cli.deploying"},
    # programs of models: they run in Triton's Python, the room only copies them
    "sync": {"deploy.sync.runtime"},
}
"""What lies in a unit's packages and runs in another unit; the command line imports its commands by name."""

ELSEWHERE = {"opentelemetry": "otel", "onnxruntime": "triton", "redis": "redis", "huggingface_hub": "bundles",
             "transformers": "bundles"}  # fmt: skip
"""Modules that are imported only if they are asked for, and the extra that the message names then."""


def foreign(graph: grimp.ImportGraph, places: Iterable[str], elsewhere: Iterable[str] = ()) -> set[str]:
    """What is imported from outside by modules and everything of ours that they import, functions' own imports too."""
    roots = {module for place in places for module in (place, *graph.find_descendants(place))}
    for place in elsewhere:
        roots -= {place, *graph.find_descendants(place)}
    reached = set().union(*(graph.find_upstream_modules(module) for module in roots))
    return {name.partition(".")[0] for name in reached} - {*OURS, *sys.stdlib_module_names}


def build_graph() -> grimp.ImportGraph:
    """Who imports what, but for what only types need."""
    return grimp.build_graph(*OURS, include_external_packages=True, exclude_type_checking_imports=True)


graph = pytest.fixture(scope="module")(build_graph)


DISTRIBUTIONS = {
    module: {canonicalize_name(name) for name in names} for module, names in metadata.packages_distributions().items()
}


@pytest.mark.parametrize("unit", UNITS)
def test_what_a_unit_imports_is_declared_by_its_extra(graph: grimp.ImportGraph, unit: str) -> None:
    """An import without a declared dependency works until somebody else no longer brings it along."""
    installed = {*REQUIRED[""], *REQUIRED[unit]}
    missing = {
        module: sorted(name for name in graph.modules if module in graph.find_modules_directly_imported_by(name))
        for module in foreign(graph, UNITS[unit], ELSEWHERE_RUN.get(unit, ()))
        if not DISTRIBUTIONS.get(module, {module}) & installed.union(REQUIRED.get(ELSEWHERE.get(module, ""), ()))
    }
    assert missing == {}
