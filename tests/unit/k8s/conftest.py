"""Rendered manifests: kustomize overlays and the Helm chart, made by the real kubectl and the real helm."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s import render, tools

ROOT = Path(__file__).parents[3]

Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def rendered() -> Mapping[Path, str]:
    """What the chart renders for kustomize, by path."""
    return render.files()


@pytest.fixture(scope="session")
def kustomize() -> Callable[[str], Objects]:
    """Render a folder below k8s/, or anywhere; every call gets objects of its own."""
    made: dict[str, Objects] = {}

    def build(folder: str | Path) -> Objects:
        if str(folder) not in made:
            command = [str(tools.unpacked("kubectl")), "kustomize", str(ROOT / "k8s" / folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert 0 == done.returncode, done.stderr
            assert "deprecated" not in done.stderr, done.stderr
            made[str(folder)] = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
        return copy.deepcopy(made[str(folder)])

    return build


@pytest.fixture(scope="session")
def helm() -> Callable[..., Objects]:
    """Render a release with a values file and `--set` pairs; a refusal is an AssertionError that says why."""

    def template(
        values: str = "", release: str = "triton-gateway", arguments: Sequence[str] = (), **pairs: object
    ) -> Objects:
        command = [str(tools.unpacked("helm")), "template", release, str(render.CHART)]
        command += ["--namespace", "triton-gateway", *arguments]
        command += ["--values", str(render.CHART / "values" / f"{values}.yaml")] if values else []
        for name, value in pairs.items():
            command += ["--set-json", f"{name.replace('__', '.')}={value}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stderr
        return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]

    return template
