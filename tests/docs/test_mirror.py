"""Unit tests lie where the code lies: a folder for each package, a file for each module, what spans modules by name.

And no two test files hold the same helper, fake or test.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
CODE: Final = ("gateway", "preprocessing", "deploy", "dashboards", "benchmarks")

UNTESTED: Final = {
    "benchmarks/peers/programs": "servers and hooks of others, run in environments of their own",
    "benchmarks/shared/triton_models": "programs that only Triton's own Python can import",
    "deploy/controlplane/api": "each call is tested through the server, as tests/unit/deploy/controlplane names them",
    "deploy/bundles/pack": "what a bundle is made of and says: tests/integration/optimize, on real ones",
    "deploy/docker": "what images and releases are made with: tests/unit/k8s/test_images.py, test_release.py",
}
"""Folders of code without a folder of unit tests, and why."""

NO_PACKAGE: Final = {"k8s": "manifests, images and compose files: no Python"}
"""Folders of unit tests whose counterpart is no package."""

SPANNING: Final = {
    "dashboards/test_schema.py": "every board against Grafana's types",
    "gateway/dataplane/test_bare_names.py": "names without a version through a whole gateway",
    "gateway/dataplane/test_canary_routes.py": "canaries through a whole gateway",
    "gateway/edge/grpc/test_limits.py": "what a connection may take",
    "gateway/edge/http/test_forms.py": "every protocol through one pipeline",
    "gateway/edge/http/test_leaving.py": "how connections end",
    "gateway/edge/http/test_lifetimes.py": "what one request holds, on both paths",
    "gateway/edge/http/test_limits.py": "what a connection may take",
    "gateway/edge/http/test_streams.py": "both paths read the same bytes alike",
    "gateway/edge/test_admin_port.py": "what operators ask on a port of their own, HTTP and gRPC",
    "gateway/edge/test_certificates_of_callers.py": "callers known by their certificate, HTTP and gRPC",
    "gateway/edge/test_access.py": "every address with every kind of credentials, HTTP and gRPC",
    "gateway/hooks/test_forged_answers.py": "what a hook may send to its gateway",
    "gateway/hooks/test_on_demand.py": "when processes start and end",
    "gateway/hooks/test_processes.py": "what code does to its process",
    "gateway/metrics/test_detail.py": "what a version is shown by at each level of detail",
    "gateway/protocols/test_generation_forms.py": "generation in every protocol",
    "gateway/protocols/test_malformed.py": "malformed requests of any protocol",
    "gateway/test_changes.py": "what a change costs whom",
    "gateway/test_overwritten_models.py": "bytes that changed under an id",
    "gateway/test_readiness.py": "when a gateway may get requests",
    "gateway/test_restarts.py": "what a restart must not change",
    "gateway/triton/test_traceparent.py": "trace context from the caller to Triton",
    "preprocessing/test_costs.py": "work grows with the request, in every module",
    "deploy/modelsync/test_formats.py": "what gateways and model syncs of two versions write for each other",
    "deploy/modelsync/test_imports.py": "what the room that runs beside a Triton may import",
    "deploy/test_extras.py": "what each room imports, and which extra brings it",
    "deploy/controlplane/test_command.py": "the command as a container starts it",
    "deploy/controlplane/test_compatibility_docs.py": "the page of calls against those that there are",
}
"""Test files of no one module, and what they prove across several."""


def packages() -> set[str]:
    """Folders of code."""
    return {
        str(file.parent.relative_to(ROOT)) for top in CODE for file in (ROOT / top).rglob("*.py")
    }  # fmt: skip


def folders_of_tests() -> set[str]:
    """Folders of unit tests."""
    return {str(file.parent.relative_to(UNIT)) for file in UNIT.rglob("test_*.py")}


def is_of_a_module(file: Path) -> bool:
    """Whether a test file is named for a module or a package of its folder, for an aspect of one, or for the folder."""
    folder, name = ROOT / file.parent, file.stem.removeprefix("test_")
    names = {path.stem.strip("_") for path in folder.glob("*.py")} | {path.name for path in folder.glob("*/")}
    names |= {folder.name}
    return any(name == one or name.startswith(f"{one}_") for one in names)


def test_every_package_has_its_folder_of_tests() -> None:
    """Add tests/unit/PACKAGE, or say in UNTESTED why there is none."""
    assert set() == packages() - folders_of_tests() - set(UNTESTED)
    assert set() == set(UNTESTED) & folders_of_tests()
    assert set() == set(UNTESTED) - packages()


def test_every_folder_of_tests_has_its_package() -> None:
    """What was moved or deleted takes its tests along."""
    assert set() == folders_of_tests() - packages() - set(NO_PACKAGE)


def test_every_test_file_is_named_for_a_module_or_says_what_it_spans() -> None:
    """Name it test_MODULE.py or test_MODULE_ASPECT.py; what proves something across modules is listed in SPANNING."""
    files = {file.relative_to(UNIT) for file in UNIT.rglob("test_*.py") if file.relative_to(UNIT).parts[0] in CODE}
    unnamed = {str(file) for file in files if not is_of_a_module(file)}
    assert set() == unnamed - set(SPANNING)
    assert set() == set(SPANNING) - unnamed


def definitions(file: Path) -> Iterator[tuple[str, str]]:
    """Name and body of each function and class of a file, but for docstrings, and for what is too short to matter."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            body = node.body[ast.get_docstring(node) is not None :]
            if sum(isinstance(part, ast.stmt) for line in body for part in ast.walk(line)) >= 3:
                yield node.name, "".join(map(ast.dump, body))


def test_what_two_test_files_need_is_written_in_one_place() -> None:
    """A helper, a fake or a test of the same body: move it to a module that both import (CONTRIBUTING.md)."""
    found = defaultdict(list)
    for file in (ROOT / "tests").rglob("*.py"):
        for name, body in definitions(file):
            found[body].append(f"{file.relative_to(ROOT)}: {name}")
    assert [] == [places for places in found.values() if len(places) > 1]
