"""Prints the third-party requirements of one image, for its own layer: ``requirements.py IMAGE [EXTRA…]``.

It runs in the images' build stage, where nothing is installed, and reads the ``pyproject.toml`` next to it. An image
contains what its process imports; tests/unit/k8s/test_images.py checks this.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_COMMAND: Final = ("click", "pydantic", "pydantic-settings")
_REGISTRY: Final = ("clearml", "orjson")

IMAGES: Final[Mapping[str, tuple[Sequence[str] | None, Sequence[str]]]] = {
    "gateway": (None, ("otel", "cli", "redis")),
    "sync": ((*_COMMAND, *_REGISTRY, "numpy", "tritonclient", "grpcio", "protobuf"), ()),
    "controlplane": ((*_COMMAND, "orjson"), ("controlplane",)),
    "triton-cpu": (_COMMAND, ("triton", "openvino")),
    "laptop": (None, ("otel", "cli", "redis", "controlplane", "triton", "openvino")),
    "bundles": (None, ("bundles",)),
}
"""For each image: the package's dependencies that it needs (None: all), and its extras."""


def requirements(project: Mapping[str, Any], image: str, more: Iterable[str] = ()) -> list[str]:
    """Return the requirements of an image and of further extras, from ``[project]`` of pyproject.toml.

    Raises KeyError for an image, a dependency or an extra that does not exist.
    """
    chosen, extras = IMAGES[image]
    named = {_name(line): line for line in project["dependencies"]}
    found = [*named.values()] if chosen is None else [named[name] for name in chosen]
    for extra in (*extras, *more):
        found += of_extra(project, extra)
    return list(dict.fromkeys(found))


def of_extra(project: Mapping[str, Any], name: str) -> Iterator[str]:
    """Return the requirements of an extra, which may name other extras of this package."""
    for line in project["optional-dependencies"][name]:
        others = re.fullmatch(rf"{project['name']}\[(.*)\]", line)
        if others is None:
            yield line
        else:
            for other in others[1].split(","):
                yield from of_extra(project, other.strip())


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    content = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    sys.stdout.write("\n".join(requirements(content, sys.argv[1], sys.argv[2:])) + "\n")
