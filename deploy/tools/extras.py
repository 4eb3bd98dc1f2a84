"""The requirements of this package, base and extras, and which extra brings a Python package that is not installed.

They are read from the declaration (``pyproject.toml`` in a checkout, otherwise the installed metadata), so only
existing extras are named. ``tests/unit/deploy/test_extras.py`` compares the declarations with the imports of the code.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

PACKAGE: Final = "triton-gateway"

OF_COMMAND: Final = {
    "controlplane": "controlplane", "triton": "triton", "up": "laptop", "deploy": "laptop",
    "optimize": "bundles",
}  # fmt: skip
"""Command → the extra with all that it needs, which is named in preference to others. Other commands need the base."""

_DISTRIBUTIONS: Final = {
    "clearml_serving": "clearml-serving", "google": "protobuf", "grpc": "grpcio", "jwt": "pyjwt",
    "opentelemetry": "opentelemetry-sdk", "pytriton": "nvidia-pytriton", "sklearn": "scikit-learn",
    "xgboost": "xgboost-cpu",
}  # fmt: skip
"""Module → its distribution, if the names differ: metadata cannot tell that for packages that are not installed."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^]]*)\])?[^;]*(?:;.*?extra == ['\"](?P<of>.+?)['\"])?")


def remedy(module: str, command: str = "") -> str:
    """Return the command to type if ``module`` is missing for the sub-command ``command``."""
    top = module.partition(".")[0]
    wanted = _normal(_DISTRIBUTIONS.get(top, top))
    required = requirements()
    if wanted in required[""]:
        return "run `pip install .`, which brings it"
    names = [OF_COMMAND.get(command, ""), *sorted(required, key=lambda name: len(required[name]))]
    found = next((name for name in names if wanted in required.get(name, ())), "")
    return f'run `pip install ".[{found}]"`' if found else f"run `pip install {wanted}`"


def requirements() -> Mapping[str, list[str]]:
    """Return the package names that each extra requires, including those of nested extras; the base is ``""``."""
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if not checkout.is_file():
        return resolved(metadata.metadata(PACKAGE).get_all("Provides-Extra") or (), metadata.requires(PACKAGE) or ())
    project = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    conditional = (f'{item}; extra == "{extra}"' for extra, items in optional.items() for item in items)
    return resolved(optional, [*project["dependencies"], *conditional])


def resolved(extras: Iterable[str], declared: Iterable[str]) -> dict[str, list[str]]:
    """Return the same for ``extras`` and requirements in the form of package metadata: ``name; extra == "x"``."""
    own: dict[str, list[str]] = {extra: [] for extra in ("", *extras)}
    inner: dict[str, list[str]] = {}
    for text in declared:
        found = _REQUIREMENT.match(text)
        if found is None:
            continue
        extra = found["of"] or ""
        if _normal(found["name"]) == PACKAGE:
            inner.setdefault(extra, []).extend(name.strip() for name in (found["extras"] or "").split(","))
        else:
            own[extra].append(_normal(found["name"]))

    def names(extra: str) -> list[str]:
        return [*own.get(extra, ()), *(name for part in inner.get(extra, ()) for name in names(part))]

    return {extra: list(dict.fromkeys(names(extra))) for extra in own}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
