"""``make release``: builds wheel, sdist, chart, site and images of one version, and checks that they agree and install.

``python -m deploy.docker.release`` writes into ``dist/``: the sdist, the wheel built from it, the packaged chart, the
site as a zip, the notes from CHANGELOG.md and the hashes of all of them. It needs the ``dev`` extra and a registry of
Python packages. Images need a container engine; without one it says that they are left out. It publishes nothing.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
OUT: Final = ROOT / "dist"
CHART: Final = ROOT / "k8s" / "helm" / "triton-gateway"
_IMAGE: Final = re.compile(r"triton-gateway(?:-[a-z-]+)?:(\d+\.\d+\.\d+\S*?)(?=[\s}`\"']|$)")


class ReleaseRefused(Exception):
    """Something does not agree, or does not work; the message says what."""


def version() -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def stated() -> Iterator[tuple[str, str]]:
    """Yield every place that states the version, and what it states."""
    chart = (CHART / "Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        yield f"{CHART.name}/Chart.yaml {key}", _first(rf"^{key}: \"?([^\"\n]+)", chart)
    yield "values.yaml images.tag", _first(r"^  tag: \"?([^\"\s]+)", (CHART / "values.yaml").read_text())
    for path in sorted((ROOT / "deploy" / "docker").glob("*ockerfile")):
        yield f"{path.name} ARG VERSION", _first(r"^ARG VERSION=(\S+)", path.read_text())
    files = [ROOT / "docker-compose.yml", ROOT / ".ci/containers/run", *sorted((ROOT / "docs").glob("*.md"))]
    for path in [*files, *sorted((ROOT / "k8s").rglob("*.yaml"))]:
        for tag in sorted(set(_IMAGE.findall(path.read_text()))):
            yield f"images of {path.relative_to(ROOT)}", tag


def notes(changelog: str, number: str) -> str:
    """Return the changelog's part for a version: its own heading, or `Unreleased` as long as it has none.

    Raises ``ReleaseRefused`` if there is neither, or nothing below it.
    """
    parts: dict[str, str] = dict(re.findall(r"^## \[?([\w.]+)\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S))
    text = parts.get(number, parts.get("Unreleased", "")).strip()
    if not text:
        raise ReleaseRefused(f"CHANGELOG.md has no text for {number}: add `## {number}` above the earlier versions")
    return f"# triton-gateway {number}\n\n{text}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Make the release. Arguments: ``--no-images``."""
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        _make(images="--no-images" not in given)
    except ReleaseRefused as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def _make(*, images: bool) -> None:
    number = version()
    wrong = [f"{place} says {found}" for place, found in stated() if found != number]
    if wrong:
        raise ReleaseRefused(f"pyproject.toml says {number}, but {'; '.join(wrong)}")
    told = notes((ROOT / "CHANGELOG.md").read_text(), number)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    wheel = _packages(number)
    _installs(wheel, number)
    _chart(number)
    _site(number)
    _images(number) if images else _say("images are left out, as asked")
    (OUT / "NOTES.md").write_text(told)
    made = sorted(path for path in OUT.iterdir() if path.is_file())
    hashes = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made]
    (OUT / "SHA256SUMS").write_text("".join(hashes))
    _say(f"dist/ holds {', '.join(path.name for path in made)}")


def _packages(number: str) -> Path:
    """Build the sdist and, from it, the wheel, so that a file missing in the sdist is missing in the wheel too."""
    _run("building wheel and sdist", sys.executable, "-m", "build", "--outdir", str(OUT), str(ROOT))
    wheel, sdist = OUT / f"triton_gateway-{number}-py3-none-any.whl", OUT / f"triton_gateway-{number}.tar.gz"
    missing = [path.name for path in (wheel, sdist) if not path.exists()]
    if missing:
        raise ReleaseRefused(f"{', '.join(missing)} did not come out of the build: {[p.name for p in OUT.iterdir()]}")
    return wheel


def _installs(wheel: Path, number: str) -> None:
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        pins = str(ROOT / "constraints.txt")
        _run(
            "installing the wheel into a new environment", python, "-m", "pip", "install", "-q", "-c", pins, str(wheel)
        )
        said = _run("asking it", str(Path(folder) / "bin" / "triton-gateway"), "--version").split()
        if said[-1:] != [number]:
            raise ReleaseRefused(f"the installed command says {' '.join(said)}, not {number}")


def _chart(number: str) -> None:
    from k8s import tools  # a development tool, which no wheel contains

    helm = str(tools.unpacked("helm"))
    _run("reading the chart", helm, "lint", "--quiet", str(CHART))
    _run("packing the chart", helm, "package", "--destination", str(OUT), str(CHART))
    packed = OUT / f"triton-gateway-{number}.tgz"
    rendered = _run("rendering the packed chart", helm, "template", "triton-gateway", str(packed))
    others = {tag for tag in _IMAGE.findall(rendered) if tag != number}
    if others:
        raise ReleaseRefused(f"the packed chart asks for images of {', '.join(sorted(others))}")


def _site(number: str) -> None:
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        pages = Path(folder) / f"triton-gateway-{number}-site"
        read = ["-d", str(Path(folder) / "read"), "-c", str(ROOT / "docs"), str(ROOT), str(pages)]
        _run("making the site", sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", *read)
        shutil.make_archive(str(OUT / pages.name), "zip", folder, pages.name)


def _images(number: str) -> None:
    for engine in ("docker", "podman"):
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True, check=False).returncode == 0:
            _run(f"building the images with {engine}", "make", "-C", str(ROOT), "images", f"ENGINE={engine}")
            said = _run("asking the image", engine, "run", "--rm", f"triton-gateway:{number}", "--version").split()
            if said[-1:] != [number]:
                raise ReleaseRefused(f"the image says {' '.join(said)}, not {number}")
            return
    _say("images are left out: neither docker nor podman answers here; `make images` builds them where one does")


def _run(what: str, *argv: str) -> str:
    _say(what)
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise ReleaseRefused(f"{what} failed: {' | '.join(last)}")
    return done.stdout


def _say(text: str) -> None:
    sys.stderr.write(f"== {text}\n")


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.M)
    return str(found[1]).strip() if found else "nothing"


if __name__ == "__main__":
    sys.exit(main())
