"""What this package asks for, base and extras, and which of them brings a Python package that is not installed.

Read from what is declared (``pyproject.toml`` in a checkout, else the installed metadata): an extra that exists is
named, never one that was renamed since. ``tests/unit/deploy/test_extras.py`` holds the declarations against what the
code imports.
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
"""The extra of a command's whole unit, which is named rather than a part of it; other commands need the base alone."""

_DISTRIBUTIONS: Final = {
    "clearml_serving": "clearml-serving", "google": "protobuf", "grpc": "grpcio", "jwt": "pyjwt",
    "opentelemetry": "opentelemetry-sdk", "pytriton": "nvidia-pytriton", "sklearn": "scikit-learn",
    "xgboost": "xgboost-cpu",
}  # fmt: skip
"""Modules that are named otherwise than what installs them; what is not installed cannot tell."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^]]*)\])?[^;]*(?:;.*?extra == ['\"](?P<of>.+?)['\"])?")


def remedy(module: str, command: str = "") -> str:
    """Return what to type when ``module`` is missing under ``command``."""
    top = module.partition(".")[0]
    wanted = _normal(_DISTRIBUTIONS.get(top, top))
    required = requirements()
    if wanted in required[""]:
        return f'run `pip install "{PACKAGE}"`, which brings it'
    names = [OF_COMMAND.get(command, ""), *sorted(required, key=lambda name: len(required[name]))]
    found = next((name for name in names if wanted in required.get(name, ())), "")
    return f'run `pip install "{PACKAGE}[{found}]"`' if found else f"run `pip install {wanted}`"


def requirements() -> Mapping[str, list[str]]:
    """Return the names of the packages each extra asks for, with those of the extras in it; the base's under ``""``."""
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if not checkout.is_file():
        return resolved(metadata.metadata(PACKAGE).get_all("Provides-Extra") or (), metadata.requires(PACKAGE) or ())
    project = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    conditional = (f'{item}; extra == "{extra}"' for extra, items in optional.items() for item in items)
    return resolved(optional, [*project["dependencies"], *conditional])


def resolved(extras: Iterable[str], declared: Iterable[str]) -> dict[str, list[str]]:
    """Return the same of a package with ``extras`` that declares this, as its metadata do: ``name; extra == "x"``."""
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
