"""docs/architecture.md shows the layers that are enforced, and stations that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

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


def test_the_rooms_of_deploy_are_those_of_the_map() -> None:
    """Each folder or file with code has a row, and says itself in a paragraph what it owns."""
    deploy = ROOT / "deploy"
    rooms = {path.parent.name for path in deploy.glob("*/__init__.py")} | {
        path.stem for path in deploy.glob("*.py") if path.stem != "__init__"
    }
    table = PAGE[PAGE.index("| room | runs | started by |") :].split("\n\n")[0]
    assert rooms == set(re.findall(r"^\| `(\w+)` ", table, re.MULTILINE))


def test_the_stations_of_a_request_are_in_the_code() -> None:
    """Each ``Class.method`` that the page names in the table's last column."""
    methods = {
        (part.name, method.name)
        for file in (ROOT / "gateway").rglob("*.py")
        for part in ast.walk(ast.parse(file.read_text()))
        if isinstance(part, ast.ClassDef)
        for method in part.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    table = PAGE[PAGE.index("| | before | now |") :].split("\n\n")[0]
    stations = re.findall(r"`(\w+)\.(\w+)`", " ".join(row.split("|")[3] for row in table.splitlines()[2:]))
    assert len(stations) > 10
    assert [] == [station for station in stations if station not in methods]
