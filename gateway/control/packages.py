"""The packages in a hook's ``requirements.txt``: finds those that are missing. Reads files: call it from a thread."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

FILE: Final = "requirements.txt"


def requirements_of(code: Path | None, bundle: Path | None) -> Path | None:
    """Return a hook's requirements file: beside its code, or else in the model's folder."""
    for folder in (code if code is not None and code.is_dir() else None, bundle):
        if folder is not None and (folder / FILE).is_file():
            return folder / FILE
    return None


def missing(requirements: Path) -> list[str]:
    """Return the lines of the file that the installed packages do not satisfy, each with the installed version.

    Options of pip (lines starting with ``-``), paths and addresses count as missing.
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
