"""docs/architecture.md shows the layers that are enforced, and every folder that there is."""

from __future__ import annotations

import re
import subprocess
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


MAPPED = ("gateway", "preprocessing", "deploy", "dashboards", "k8s", "benchmarks", "tests")


def test_the_map_has_a_line_for_each_package_and_room() -> None:
    """And none for a folder that is gone, in the order in which they lie there. A room of ``deploy`` may be a file."""
    kept = subprocess.run(["git", "ls-files", *MAPPED], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {"/".join(file.split("/")[:2]) for file in kept.split() if file.count("/") > 1}
    folders |= {f"deploy/{file.stem}" for file in (ROOT / "deploy").glob("*.py") if file.stem != "__init__"}
    table = PAGE[PAGE.index("## Map") :].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)` \| \S.*? \|$", table, re.MULTILINE)
    assert sorted(folders, key=lambda folder: (MAPPED.index(folder.split("/")[0]), folder)) == rows
