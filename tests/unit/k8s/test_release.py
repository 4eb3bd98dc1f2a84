"""Every place that states the version states that of ``pyproject.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.kube_tools import CHART

ROOT = Path(__file__).parents[3]
IMAGE = re.compile(r"triton-gateway(?:-[a-z-]+)?:(\d+\.\d+\.\d+\S*?)(?=[\s}`\"']|$)")


def stated() -> Iterator[tuple[str, str]]:
    """Yield every place that states the version, and what it states."""
    chart = (CHART / "Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        yield f"Chart.yaml {key}", first(rf"^{key}: \"?([^\"\n]+)", chart)
    for path in sorted((ROOT / "deploy" / "docker").glob("*ockerfile")):
        yield f"{path.name} ARG VERSION", first(r"^ARG VERSION=(\S+)", path.read_text())
    files = [ROOT / "docker-compose.yml", ROOT / ".ci/containers/run", *sorted((ROOT / "docs").glob("*.md"))]
    for path in [*files, *sorted((ROOT / "k8s").rglob("*.yaml"))]:
        for tag in sorted(set(IMAGE.findall(path.read_text()))):
            yield f"images of {path.relative_to(ROOT)}", tag


def first(pattern: str, text: str) -> str:
    """Return what is found first."""
    found = re.search(pattern, text, re.M)
    return str(found[1]).strip() if found else "nothing"


def test_every_place_states_the_version_of_pyproject() -> None:
    """Chart, images, compose file, manifests and pages."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = dict(stated())
    assert {version} == set(found.values()), found
    assert {"images of docker-compose.yml", "images of docs/compose.md", "Dockerfile ARG VERSION"} <= set(found)
