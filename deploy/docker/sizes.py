"""Prints the size of third-party packages in each image and each extra: ``python -m deploy.docker.sizes [extras]``.

It adds up the installed files of every distribution that an image requires, or that the base requires with an extra;
nothing is downloaded. The base image and this package itself (a few MB) are not counted.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.docker.requirements import IMAGES, of_extra, requirements


def closure(wanted: Iterable[str]) -> set[str]:
    """Return the names of all distributions that requirements lead to, in this environment.

    Raises importlib.metadata.PackageNotFoundError if one is not installed.
    """
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ones = [one for one in map(Requirement, wanted) if one.marker is None or one.marker.evaluate()]
    while open_ones:
        one = open_ones.pop()
        extras = frozenset(one.extras)
        if (canonicalize_name(one.name), extras) in seen:
            continue
        seen.add((canonicalize_name(one.name), extras))
        for line in metadata.requires(one.name) or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                open_ones.append(needed)
    return {name for name, _ in seen}


def installed_bytes(name: str) -> int:
    """Return the size of a distribution's files."""
    paths = (Path(str(file.locate())) for file in metadata.files(name) or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> int:
    """Print a table."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    wanted = {image: requirements(project, image) for image in IMAGES}
    if sys.argv[1:] == ["extras"]:
        wanted = {
            extra: [*project["dependencies"], *of_extra(project, extra)] for extra in project["optional-dependencies"]
        }
    for named, lines in wanted.items():
        try:
            sizes = {name: installed_bytes(name) for name in closure(lines)}
        except metadata.PackageNotFoundError as missing:
            sys.stdout.write(f"{named:<13} not known: {missing.name} is not installed here\n")
            continue
        largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
        told = ", ".join(f"{name} {sizes[name] / 1e6:.0f}" for name in largest)
        sys.stdout.write(f"{named:<13} {sum(sizes.values()) / 1e6:>6,.0f} MB in {len(sizes)} packages ({told})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
