"""Each place our code runs in installs what its code imports, and nothing that no code there asks for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.cli.main import EXTRAS

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

WITHOUT_IMPORT = {
    "clearml-serving": "a program, run by deploy/tools/clearml_serving.py",
    "nvidia-pytriton": "Triton's binary, found by deploy/tritonserver/launcher.py",
    "numpy": "a limit for the python backend",
    "python-multipart": "by starlette, for uploads",
    "onnxruntime": "imported inside Triton by deploy/sync/runtime",
    "openvino": "imported inside Triton by deploy/sync/runtime",
    "onnxscript": "torch.onnx.export asks for it",
    "sentencepiece": "imported by name in deploy/bundles/export/tokens.py",
    "scikit-learn": "by name in gateway/hooks/engines.py",
    "xgboost-cpu": "by name in gateway/hooks/engines.py",
    "lightgbm": "by name in gateway/hooks/engines.py",
    "boto3": "by the clearml SDK, for s3://",
    "google-cloud-storage": "by the clearml SDK, for gs://",
    "azure-storage-blob": "by the clearml SDK, for azure://",
    "opentelemetry-exporter-otlp-proto-http": "the OpenTelemetry SDK finds it by its entry point",
    "opentelemetry-exporter-otlp-proto-grpc": "the OpenTelemetry SDK finds it by its entry point",
}

TOOLS = ("check", "dev", "docs")
"""Extras of what is run on this project and imported by none of it."""


def foreign(graph: grimp.ImportGraph, unit: str) -> set[str]:
    """What is imported from outside by a unit and everything of ours that it imports, functions' own imports too."""
    roots = {module for place in UNITS[unit] for module in (place, *graph.find_descendants(place))}
    for place in ELSEWHERE_RUN.get(unit, ()):
        roots -= {place, *graph.find_descendants(place)}
    reached = set().union(*(graph.find_upstream_modules(module) for module in roots))
    return {name.partition(".")[0] for name in reached} - {*OURS, *sys.stdlib_module_names}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Who imports what, but for what only types need."""
    return grimp.build_graph(*OURS, include_external_packages=True, exclude_type_checking_imports=True)


DISTRIBUTIONS = {
    module: {canonicalize_name(name) for name in names} for module, names in metadata.packages_distributions().items()
}


@pytest.mark.parametrize("unit", UNITS)
def test_what_a_unit_imports_is_declared_by_its_extra(graph: grimp.ImportGraph, unit: str) -> None:
    """An import without a declared dependency works until somebody else no longer brings it along."""
    installed = {*REQUIRED[""], *REQUIRED[unit]}
    missing = {
        module: sorted(name for name in graph.modules if module in graph.find_modules_directly_imported_by(name))
        for module in foreign(graph, unit)
        if not DISTRIBUTIONS.get(module, {module}) & installed.union(REQUIRED.get(ELSEWHERE.get(module, ""), ()))
    }
    assert missing == {}


def test_every_room_of_deploy_belongs_to_a_unit() -> None:
    """A new room says what it needs, or is one that others share."""
    rooms = {path.parent.name for path in (ROOT / "deploy").glob("*/__init__.py")}
    named = {place.split(".")[1] for places in UNITS.values() for place in places if place.startswith("deploy.")}
    assert rooms - named == {"tools"}


def test_what_is_declared_is_imported(graph: grimp.ImportGraph) -> None:
    """Nobody installs what no code asks for."""
    modules = defaultdict(set)
    for module, names in DISTRIBUTIONS.items():
        for name in names:
            modules[name].add(module)
    imported = {module for unit in UNITS for module in foreign(graph, unit)}
    listed = {name for extra, names in REQUIRED.items() if extra not in TOOLS for name in names}
    assert [] == sorted(name for name in listed - WITHOUT_IMPORT.keys() if not modules[name] & imported)


def test_torch_is_in_no_extra_but_that_of_bundles() -> None:
    """Five gigabytes: for whoever makes a model ready, and for nobody else."""
    assert {"bundles", "dev"} == {extra for extra, names in REQUIRED.items() if "torch" in names}


def test_every_extra_that_is_named_somewhere_exists() -> None:
    """In messages and on pages."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    wrong = {}
    for name in tracked:
        if not name.endswith((".py", ".md", ".sh", ".toml", "Makefile", "Dockerfile")) or name == "CHANGELOG.md":
            continue
        for found in re.findall(r"triton-gateway\[([\w,-]+)\]", (ROOT / name).read_text()):
            unknown = [extra for extra in found.split(",") if extra not in REQUIRED]
            if unknown:
                wrong[name] = unknown
    assert wrong == {}


def test_the_extras_of_commands_exist() -> None:
    """Each command's message names one."""
    assert set(EXTRAS.values()) <= set(REQUIRED)
