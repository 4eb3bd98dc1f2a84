"""The packages in a hook's ``requirements.txt``: finds those that are missing and installs them into a folder.

Installing runs foreign code and needs a package index, so an operator must allow it; otherwise the endpoint is refused
with the names of the packages. Only the endpoint's hook processes use the folder. Its packages come before the
gateway's own, and endpoints with equal requirements share it. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from gateway import locks
from gateway.errors import SpecFault

FILE: Final = "requirements.txt"
_INSTALL_S: Final = 900.0
"""Time limit of pip."""
_KEPT_OUTPUT: Final = 4000
"""Bytes of pip's output that are searched for its error."""


def requirements_of(code: Path | None, bundle: Path | None) -> Path | None:
    """Return a hook's requirements file: beside its code, or else in the model's folder."""
    for folder in (code if code is not None and code.is_dir() else None, bundle):
        if folder is not None and (folder / FILE).is_file():
            return folder / FILE
    return None


def missing(requirements: Path) -> list[str]:
    """Return the lines of the file that the installed packages do not satisfy, each with the installed version.

    Options of pip (lines starting with ``-``), paths and addresses count as missing: only pip can check them.
    """
    found = []
    for raw in requirements.read_text(encoding="utf-8").splitlines():
        line = raw.split(" #", 1)[0].strip()
        if not line or line.startswith("#"):
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            found.append(line)
            continue
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            found.append(line)
            continue
        if requirement.url is not None or not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{line} (here is {version})")
    return found


def install(requirements: Path, root: Path) -> Path:
    """Return a folder with the packages, made at first use. Raises ``SpecFault`` with pip's reason."""
    identity = f"{sys.version}\n{sys.prefix}\n".encode() + requirements.read_bytes()
    key = hashlib.sha256(identity).hexdigest()[:24]
    place = root / key
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    done = place / "complete"
    if done.is_file():
        return packages
    root.mkdir(parents=True, exist_ok=True)
    with locks.held(root / f"{key}.lock"):
        if done.is_file():  # another process has installed them meanwhile
            return packages
        shutil.rmtree(place, ignore_errors=True)
        try:
            _fill(requirements, place, packages)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        done.touch()
    return packages


def _fill(requirements: Path, place: Path, packages: Path) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(place)], "its environment cannot be made", requirements)
    # Packages of this interpreter stay visible, so that pip fetches only missing ones; fetched ones take precedence.
    own = [p for p in (*site.getsitepackages(), *sys.path) if Path(p).is_dir()]
    (packages / "triton_gateway_base.pth").write_text("\n".join(dict.fromkeys(own)) + "\n")
    _run(
        [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet",
         "--disable-pip-version-check", "--no-input", "--requirement", requirements.name],
        "its packages cannot be installed", requirements,
    )  # fmt: skip


def _run(argv: list[str], what: str, requirements: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with tempfile.TemporaryFile() as output:
        try:
            # Run in the file's folder: it may refer to files beside it.
            done = subprocess.run(
                argv, cwd=requirements.parent, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                timeout=_INSTALL_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SpecFault(f"{what}: pip did not end within {_INSTALL_S / 60:g} minutes") from None
        if done.returncode == 0:
            return
        output.seek(max(0, output.tell() - _KEPT_OUTPUT))
        lines = output.read().decode("utf-8", "replace").splitlines()
    reasons = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    with contextlib.suppress(IndexError):
        reasons = [reasons[0]]
    raise SpecFault(f"{what}: {reasons[0] if reasons else f'exit code {done.returncode}'}")
