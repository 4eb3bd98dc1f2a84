"""The programs of a real Kubernetes, built from their Go modules by ``python -m tests.cluster.programs``.

Each folder of ``programs/`` is a Go module of tool dependencies: its go.mod and go.sum pin every module that a program
is made of. A module's ``replace`` lines count only in the main module, so each upstream has a folder of its own, with
what its go.mod requires and replaces; a folder ``./staging/src/NAME`` of Kubernetes is module ``NAME`` of v0.x.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Module:
    """An upstream module, and the package that each program of ours is built from."""

    path: str
    packages: Mapping[str, str]


MODULES: Final = {
    "etcd": Module("go.etcd.io/etcd/server/v3", {"etcd": ""}),
    "kubernetes": Module(
        "k8s.io/kubernetes",
        {name: f"cmd/{name}" for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")},
    ),
    "kwok": Module("sigs.k8s.io/kwok", {"kwok": "cmd/kwok"}),
    "prometheus-adapter": Module("sigs.k8s.io/prometheus-adapter", {"prometheus-adapter": "cmd/adapter"}),
    "keda": Module(
        "github.com/kedacore/keda/v2",
        {"keda-operator": "cmd/operator", "keda-adapter": "cmd/adapter"},
    ),
    "fake-gcs-server": Module("github.com/fsouza/fake-gcs-server", {"fake-gcs-server": ""}),
    "versitygw": Module("github.com/versity/versitygw", {"versitygw": "cmd/versitygw"}),
    "toxiproxy": Module("github.com/Shopify/toxiproxy/v2", {"toxiproxy-server": "cmd/server"}),
}
"""By folder of ``programs/``; the last three are for tests of object storage (``tests/integration/object_storage``)."""

INSTALLS: Final = ("etcd", "kubernetes", "kwok")
CLUSTER: Final = (*INSTALLS, "prometheus-adapter", "keda")
"""What ``.ci/run installs`` and ``.ci/run cluster`` run."""

RESOURCES: Final = {
    "keda": ("github.com/kedacore/keda/v2@v2.20.2", "config/crd/bases", ("*_*",)),
    "prometheus-operator": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd",
        ("*_servicemonitors", "*_podmonitors", "*_prometheusrules"),
    ),
}  # fmt: skip
"""Modules that bring custom resource definitions, and where in them; checked by Go's checksum database."""

MADE_OF: Final = ("keda", "prometheus-operator")
"""Those that our manifests are made of, and that KEDA needs to run: every megabyte costs each kubectl seconds."""


class CannotBuild(RuntimeError):
    """A program could not be built; the message says why in a line or two."""


def paths(*names: str) -> dict[str, Path]:
    """Return the paths of all programs of folders of ``programs/``, built if needed.

    Raises CannotBuild if Go is missing, or a module cannot be downloaded or built.
    """
    for name in names:
        if _missing(name):
            _build(name)
    return {program: _path(name, program) for name in names for program in MODULES[name].packages}


def version(name: str) -> str:
    """Return the version of the upstream module that a folder of ``programs/`` pins, with its ``v``."""
    text = (FOLDER / name / "go.mod").read_text()
    pinned = re.search(rf"^\s*(?:require )?{re.escape(MODULES[name].path)} (v\S+)", text, re.MULTILINE)
    if pinned is None:
        raise ValueError(f"{FOLDER / name / 'go.mod'} requires no {MODULES[name].path}")
    return pinned[1]


def definitions(name: str) -> list[Path]:
    """Return the files of an upstream's custom resource definitions."""
    _, folder, names = RESOURCES[name]
    return sorted(path for each in names for path in (source(name) / folder).glob(f"{each}.yaml"))


def source(name: str) -> Path:
    """Return the folder of the module that has an upstream's custom resource definitions."""
    with tempfile.TemporaryDirectory() as empty:
        answer = json.loads(_go("mod", "download", "-json", RESOURCES[name][0], cwd=Path(empty)))
    return Path(answer["Dir"])


def _path(name: str, program: str) -> Path:
    """Where a program is, or will be.

    In the folder that KUBEBUILDER_ASSETS names, as the tests of Kubernetes controllers have it, or in our own cache.
    """
    given = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/nonexistent") / program
    return given if given.is_file() else _folder(name) / program


def _missing(name: str) -> list[str]:
    return [program for program in MODULES[name].packages if not _path(name, program).exists()]


def _folder(name: str) -> Path:
    """The folder of the cache for what a folder of ``programs/`` pins."""
    pinned = "".join((FOLDER / name / file).read_text() for file in ("go.mod", "go.sum"))
    content = repr((pinned, _flags(name), sorted(MODULES[name].packages.items())))
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-gateway" / "cluster"
    return cache / f"{name}-{version(name)}-{digest}"


def _flags(name: str) -> list[str]:
    return ["-trimpath", "-mod=readonly", "-ldflags", _ldflags(name)]


def _build(name: str) -> None:
    """Build the programs of a folder that are missing, all at once: they share most packages."""
    programs = {program: _joined(MODULES[name].path, MODULES[name].packages[program]) for program in _missing(name)}
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    said = f"{', '.join(programs)} {version(name)}"
    sys.stderr.write(f"== building {said}: minutes the first time\n")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        _go("build", *_flags(name), "-o", f"{work}/", *programs.values(), cwd=FOLDER / name)
        for program, package in programs.items():
            (Path(work) / re.sub(r"/v\d+$", "", package).rpartition("/")[2]).replace(folder / program)
    sys.stderr.write(f"== built {said} in {(time.monotonic() - began) / 60:.1f} min\n")


def _joined(path: str, package: str) -> str:
    return f"{path}/{package}" if package else path


def _ldflags(name: str) -> str:
    """Clients refuse an API server that does not say its version; the upstreams' own builds set the same variables."""
    flags = ["-s", "-w"]
    if MODULES[name].path == "k8s.io/kubernetes":
        major, minor, _ = version(name).removeprefix("v").split(".", 2)
        said = {"gitVersion": version(name), "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean",
                "gitCommit": "unknown", "buildDate": "2026-01-01T00:00:00Z"}  # fmt: skip
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
            flags += [f"-X {package}.{key}={value}" for key, value in said.items()]
    elif name == "kwok":
        flags.append(f"-X sigs.k8s.io/kwok/pkg/consts.Version={version(name)}")
    elif name == "keda":
        flags.append(f"-X github.com/kedacore/keda/v2/version.Version={version(name).removeprefix('v')}")
    return " ".join(flags)


def _go(*arguments: str, cwd: Path) -> str:
    """Run go, three times if need be, as a download may fail, and return what it prints. Raises CannotBuild."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuild(
            "go is not on PATH: install Go 1.26 or newer, or set KUBEBUILDER_ASSETS to a folder of programs"
        )
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-buildvcs=false",
        "GOWORK": "off",
    }
    parallel = ["-p", str(min(2, os.cpu_count() or 1))] if arguments[0] == "build" else []
    command = [go, arguments[0], *parallel, *arguments[1:]]
    for _ in range(3):
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout
    lines = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading")]
    raise CannotBuild("\n".join([f"go {' '.join(arguments[:2])} in {cwd} failed:", *lines[-10:]]))


def main(argv: Sequence[str] | None = None) -> int:
    """Build programs and print where they are."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.programs", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"{', '.join(MODULES)}; those of .ci/run cluster if none is named")
    parser.add_argument("--installs", action="store_true", help="those of `.ci/run installs`: all but autoscalers")
    options = parser.parse_args(argv)
    try:
        for name in () if options.name else RESOURCES:
            definitions(name)
        names = options.name or (INSTALLS if options.installs else CLUSTER)
        paths(*names)
        for name in names:
            for program, path in paths(name).items():
                sys.stdout.write(f"{program} {path}\n")
    except CannotBuild as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
