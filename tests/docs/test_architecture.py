"""docs/architecture.md shows the layers that are enforced, stations that exist, and every folder that there is."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from deploy.docker.requirements import IMAGES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()


@pytest.mark.parametrize("package", ["gateway", "preprocessing", "deploy"])
def test_the_layers_of_the_page_are_those_of_the_import_rules(package: str) -> None:
    """From top to bottom, with everything that stands in one layer."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [enforced] = [rule["layers"] for rule in rules if rule.get("containers") == [package]]
    shown = re.search(rf"^{package}:((?:  .*\n)+)", PAGE, re.MULTILINE)
    assert shown is not None
    assert enforced == [layer.strip() for layer in shown[1].replace("\n", " ").split(">")]


def test_the_stations_of_a_request_are_in_the_code() -> None:
    """Each ``Class.method`` that the page names."""
    methods = {
        (part.name, method.name)
        for file in (ROOT / "gateway").rglob("*.py")
        for part in ast.walk(ast.parse(file.read_text()))
        if isinstance(part, ast.ClassDef)
        for method in part.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    stations = re.findall(r"`(\w+)\.(\w+)`", PAGE[PAGE.index("**Stations of a short text**") :].split("\n\n")[0])
    assert len(stations) > 10
    assert [] == [station for station in stations if station not in methods]


MAPPED = ("gateway", "preprocessing", "deploy", "dashboards", "k8s", "benchmarks", "tests")


def test_the_map_has_a_line_for_each_package_and_room() -> None:
    """And none for a folder that is gone, in the order in which they lie there. A room of ``deploy`` may be a file."""
    kept = subprocess.run(["git", "ls-files", *MAPPED], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {"/".join(file.split("/")[:2]) for file in kept.split() if file.count("/") > 1}
    folders |= {f"deploy/{file.stem}" for file in (ROOT / "deploy").glob("*.py") if file.stem != "__init__"}
    table = PAGE[PAGE.index("## Map") :].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)` \| (\S.*?) \| (\S.*?) \|$", table, re.MULTILINE)
    assert sorted(folders, key=lambda folder: (MAPPED.index(folder.split("/")[0]), folder)) == [row[0] for row in rows]


PACKAGES = [
    str(file.parent.relative_to(ROOT))
    for top in ("gateway", "preprocessing", "deploy", "dashboards")
    for file in sorted((ROOT / top).rglob("__init__.py"))
]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_who_calls_it_and_what_it_must_never_do(package: str) -> None:
    """In its docstring, after the line that says what it owns."""
    said = " ".join((ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or "").split())
    assert re.search(r"\b([Cc]alled by|[Uu]sed by|[Rr]uns?\b|[Mm]ade once|only place)", said), said
    assert re.search(r"\b[Nn]ever\b", said), said
    assert len(re.findall(r"[.;:](?= |$)", said)) >= 2, said


def test_what_deploy_may_import_says_so() -> None:
    """The gateway's public modules, as the contract lists them, say in their own words that they are."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [allowed] = [rule["ignore_imports"] for rule in rules if rule["name"].startswith("deploy uses public modules")]
    silent = []
    for name in (rule.removeprefix("deploy.** -> ") for rule in allowed):
        path = ROOT / name.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if "deploy" not in (ast.get_docstring(ast.parse(source.read_text())) or ""):
            silent.append(name)
    assert [] == silent


def test_deploy_asks_little_of_the_gateway() -> None:
    """So the gateway can change: what several commands of a room want of it, one module of the room asks for."""
    statements = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "deploy").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gateway")
        or (isinstance(node, ast.Import) and any(one.name.split(".")[0] == "gateway" for one in node.names))
    ]
    assert len(statements) <= 40, statements


def test_every_unit_is_installed_by_an_extra_and_an_image_that_exist() -> None:
    """And has a row that says how large that is."""
    table = PAGE[PAGE.index("| extra | brings what runs |") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [] == [name for row in rows for name in re.findall(r"`([\w-]+)`", row[0]) if name not in extras]
    assert {*IMAGES} == {name for row in rows for name in re.findall(r"`([\w-]+)`", row[2])}
