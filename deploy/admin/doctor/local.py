"""This machine: Python and packages, the embedded Triton's needs, ports, disk, the registry, Triton, Prometheus.

Every look is a function that returns findings; the outside (environment, addresses) comes as arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deploy.admin.doctor import vulnerabilities
from deploy.admin.doctor.finding import Finding
from deploy.laptop.state_dir import StateDir
from deploy.tools import ports
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused
from deploy.tools.extras import requirements
from deploy.tritonserver.launcher import ExternalServer, PathServer, TritonMissing, Wheel, WheelServer, detect_server
from gateway import pools, triton

EXTRAS = {
    "controlplane": "the embedded control plane (`up`, `controlplane`)",
    "triton": "the embedded Triton for CPUs (`up`)",
    "cli": "the stock clearml-serving CLI (`up`)",
    "laptop": "everything on one machine (`up --demo`)",
    "bundles": "making bundles of models (`optimize`)",
}
NEEDS_SHM_MB = 64
NEEDS_DISK_MB = 1000

_MISSING_LIBRARY = re.compile(r"^\s*(\S+) => not found", re.M)


@dataclass(frozen=True, slots=True)
class Options:
    """What to look at: the options of the command."""

    state_dir: Path
    triton_grpc: str
    serving_task_id: str
    ports: Mapping[str, int]
    triton_key_file: str = ""


def check(options: Options, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Return everything about this machine, cheapest first."""
    yield python()
    yield from packages(requirements())
    yield from triton_server(options.triton_grpc, environ=environ)
    yield from prometheus()
    yield from disk(options.state_dir)
    for what, port in options.ports.items():
        yield port_free(what, port)
    yield from clearml(options.serving_task_id, environ)
    if options.triton_grpc:
        http = environ.get("TRITON_GATEWAY_TRITON_HTTP", "auto")
        file = triton.key.key_file(options.triton_key_file, options.state_dir)
        yield from triton_at(options.triton_grpc, http=http, key_file=file)
    else:
        yield from _tritons_of_up(options.state_dir)


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Look at the interpreter."""
    shown = ".".join(str(part) for part in version[:3])
    if tuple(version[:2]) < (3, 11):
        return Finding("Python", "missing", shown, "3.11 or newer is needed")
    return Finding("Python", "ok", f"{shown} ({sys.executable})")


def packages(required: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Look for the packages of every extra."""
    lacking = [name for name in required.get("", ()) if _version(name) is None]
    if lacking:
        yield Finding("packages", "missing", f"not installed: {', '.join(lacking)}", "pip install triton-gateway")
    else:
        shown = ", ".join(f"{name} {_version(name)}" for name in ("clearml", "tritonclient", "tokenizers", "fastapi"))
        yield Finding("packages", "ok", shown)
    for extra, purpose in EXTRAS.items():
        lacking = [name for name in required.get(extra, ()) if _version(name) is None]
        if lacking:
            yield Finding(
                f"extra {extra}", "note", f"without {', '.join(lacking)}: no {purpose}",
                f'pip install "triton-gateway[{extra}]"',
            )  # fmt: skip
        else:
            yield Finding(f"extra {extra}", "ok", purpose)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def triton_server(
    address: str,
    *,
    environ: Mapping[str, str] = MappingProxyType({}),
    shm: Path = Path("/dev/shm"),  # noqa: S108 - the kernel's name
) -> Iterator[Finding]:
    """Look which Triton would be used, and whether the wheel's could run here."""
    try:
        server = detect_server(address)
    except TritonMissing as error:
        yield Finding("Triton server", "note", str(error))
        return
    if isinstance(server, ExternalServer):
        yield Finding("Triton server", "ok", f"the one at {server.address}")
    elif isinstance(server, PathServer):
        yield Finding("Triton server", "ok", str(server.executable))
        if version := environ.get("TRITON_SERVER_VERSION", ""):  # NVIDIA's images say it
            yield vulnerabilities.look(version, str(server.executable), has_key=True)
    elif isinstance(server, WheelServer):
        yield Finding("Triton server", "ok", f"nvidia-pytriton {_version('nvidia-pytriton')} (CPU, ONNX models)")
        version = vulnerabilities.WHEELS.get(_version("nvidia-pytriton") or "", "")
        yield vulnerabilities.look(version, "the embedded Triton", has_key=True, is_wheel=True)
        yield from _wheel(server.wheel)
        free = shutil.disk_usage(shm).free >> 20 if shm.is_dir() else 0
        if free < NEEDS_SHM_MB:
            yield Finding(
                "shared memory", "missing", f"{free} MB free in {shm}",
                "the python backend needs more: docker run --shm-size=1g, or an emptyDir with medium Memory",
            )  # fmt: skip


def _wheel(wheel: Wheel) -> Iterator[Finding]:
    numpy = _version("numpy")
    if numpy is not None and int(numpy.partition(".")[0]) >= 2:
        yield Finding(
            "numpy", "note", f"{numpy}: the wheel's python backend passes no texts with it, so no text generation",
            'pip install "numpy<2" (Python 3.11 or 3.12)',
        )  # fmt: skip
    if wheel.stub is not None:
        lacking = missing_libraries(wheel.stub, wheel.libraries)
        if lacking:
            yield Finding(
                "Triton's python backend", "missing", f"cannot load {', '.join(lacking)}: loading a model would hang",
                "install the library of this Python (Debian: apt install libpython3.11)",
            )  # fmt: skip


def missing_libraries(program: Path, *folders: Path) -> list[str]:
    """Return the shared libraries that the dynamic linker does not find for ``program``."""
    search = ":".join([str(sysconfig.get_config_var("LIBDIR") or ""), *map(str, folders)])
    try:
        done = subprocess.run(
            ["ldd", str(program)], capture_output=True, text=True, timeout=10, check=False,
            env={"LD_LIBRARY_PATH": search, "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return _MISSING_LIBRARY.findall(done.stdout)


def prometheus() -> Iterator[Finding]:
    """Look for the programs that `up` and the tests of rules use."""
    found = shutil.which("prometheus")
    if found:
        yield Finding("Prometheus", "ok", found)
    else:
        yield Finding(
            "Prometheus", "note", "not installed: `up` runs without it, and without alerts",
            "Debian: apt install prometheus",
        )  # fmt: skip


def disk(state_dir: Path) -> Iterator[Finding]:
    """Look whether the state directory can be written, and how much room there is."""
    folder = state_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free >> 20
    if not os.access(folder, os.W_OK):
        yield Finding("state directory", "missing", f"{folder} cannot be written", "choose another with --state-dir")
    elif free < NEEDS_DISK_MB:
        yield Finding(
            "state directory", "missing", f"{free} MB free at {folder}", "make room, or --state-dir elsewhere"
        )
    else:
        yield Finding("state directory", "ok", f"{state_dir}, {free / 1024:.0f} GB free")


def port_free(what: str, port: int) -> Finding:
    """Look who listens."""
    try:
        free = ports.is_free("127.0.0.1", port)
    except DeployError as error:
        return Finding(f"port {port}", "note", error.line())
    if free:
        return Finding(f"port {port}", "ok", f"free for the {what}")
    holder = ports.held_by(port)
    return Finding(
        f"port {port}", "note", f"taken{f' by {holder}' if holder else ''}: fine if that is our {what}",
        f"else choose another port for the {what}",
    )  # fmt: skip


def clearml(task_id: str, environ: Mapping[str, str], connect: Callable[[str], Any] | None = None) -> Iterator[Finding]:
    """Look at the ClearML server, the credentials and the serving Task."""
    from deploy.admin import serving_task

    connect = connect or serving_task.connect
    host = environ.get("CLEARML_API_HOST") or environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf"
    try:
        source = connect(task_id)
        decoded = source.spec()
    except RegistryRefused as error:
        if "no ClearML credentials" in error.message:
            yield Finding(
                "ClearML", "note", "no server is configured: `up` brings its own control plane",
                "for yours: CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY",
            )  # fmt: skip
        elif "serving service" in error.message:  # none, or several
            yield Finding("ClearML", "ok", f"answers ({host})")
            yield Finding("serving Task", "missing", error.message, error.hint)
        else:
            yield Finding("ClearML", "missing", f"{error.message} ({host})", error.hint)
        return
    except GatewayError as error:
        yield Finding(
            "ClearML", "missing", f"{error.message} ({host})", error.hint or "is it up, and reachable from here?"
        )
        return
    yield Finding("ClearML", "ok", f"answers ({host})")
    try:
        plan = serving_task.planned(source)
    except GatewayError as error:
        yield Finding("models", "missing", error.message, error.hint)
        return
    what = f"{decoded.name} ({decoded.task_id}), {len(decoded.endpoints)} endpoints"
    if plan.faults:
        first = plan.faults[0]
        yield Finding(
            "serving Task", "missing", f"{what}, {len(plan.faults)} faults: {first.subject} {first.message}",
            "`triton-gateway plan` shows them all",
        )  # fmt: skip
    else:
        yield Finding("serving Task", "ok", what)
    named = {url: one.pool.split(",") for url, one in plan.endpoints.items() if one.pool}
    yield from pools_of(named, environ.get("TRITON_GATEWAY_POOLS", ""))


def pools_of(
    named: Mapping[str, Sequence[str]], text: str, is_live: Callable[[str], bool] | None = None
) -> Iterator[Finding]:
    """Look whether each pool that endpoints name has Tritons. ``named``: url → its pools; ``text``: gateways' setting.

    Without any pool but the default one nothing is said.
    """
    wanted: dict[str, list[str]] = {}
    for url, names in sorted(named.items()):
        for name in names:
            wanted.setdefault(name, []).append(url)
    if not text and set(wanted) <= {pools.DEFAULT}:
        return
    try:
        known = pools.addresses(text)
    except ValueError as error:
        yield Finding("pools", "missing", f"TRITON_GATEWAY_POOLS: {error}", "docs/pools.md")
        return
    for name, urls in sorted(wanted.items()):
        address, lacking = pools.address_of(known, (name,))
        who = f"{len(urls)} endpoints ({', '.join(urls[:3])}{', …' if len(urls) > 3 else ''})"
        if lacking and name != pools.DEFAULT:
            yield Finding(
                f"pool {name}", "missing", f"no address for {who}",
                "name it for gateways: TRITON_GATEWAY_POOLS, and for its model sync: TRITON_GATEWAY_POOL",
            )  # fmt: skip
        elif address and not (is_live or _answers)(address):
            yield Finding(
                f"pool {name}", "missing", f"no Triton answers at {address}: {who}", "is it up, and reachable?"
            )
        elif address:
            yield Finding(f"pool {name}", "ok", f"{address}: {who}")


def _answers(address: str) -> bool:
    """Whether any Triton of ``address`` answers now."""
    from deploy.modelsync.client import AdminClient

    for part in triton.addresses.parts(address):
        target = triton.addresses.parse_address(part)
        for grpc in target.fixed or (f"{target.host}:{target.port}",):
            client = AdminClient(grpc)
            try:
                if client.is_live(timeout_s=3.0):
                    return True
            finally:
                client.close()
    return False


def _tritons_of_up(state_dir: Path) -> Iterator[Finding]:
    """Look at the Triton of an `up` that runs in this state directory; nothing runs, nothing is said."""
    known = StateDir.at(state_dir).recall().get("ports", {})
    grpc, http = int(known.get("triton_grpc", 0)), int(known.get("triton_http", 0))
    if grpc and not ports.is_free("127.0.0.1", grpc):
        yield from triton_at(f"127.0.0.1:{grpc}", http=str(http), key_file=triton.key.key_file("", state_dir))


def triton_at(address: str, *, http: str = "auto", key_file: Path | None = None) -> Iterator[Finding]:
    """Look whether Triton answers, lets models be loaded, and lets nobody else do so.

    ``http`` as the gateways' setting of that name; ``key_file`` holds the key it was started with.
    """
    from deploy.modelsync.client import AdminClient
    from deploy.modelsync.doors import REMEDY, open_doors

    grpc = address.removeprefix("dns:///")
    client = AdminClient(grpc, key_file=key_file, timeout_s=3.0)
    version = ""
    try:
        if not client.is_live():
            yield Finding(f"Triton at {address}", "missing", "does not answer", "start it, or correct --triton-grpc")
            return
        version = client.version()
        loaded = [name for name, entry in client.index().items() if entry.state == "ready"]
        yield Finding(f"Triton at {address}", "ok", f"answers, {len(loaded)} models are ready")
    except GatewayError as error:
        yield Finding(f"Triton at {address}", "missing", error.message, error.hint)
    finally:
        client.close()
    hosts = triton.addresses.http_hosts(grpc, http)
    doors = open_doors(grpc, "{}:{}".format(*hosts[0]) if hosts else "")
    if doors:
        yield Finding(
            "who may load models", "missing", f"whoever reaches {' or '.join(doors)}, and so runs code there", REMEDY
        )
    else:
        yield Finding("who may load models", "ok", "only who has Triton's key")
    yield vulnerabilities.look(version, f"Triton at {address}", has_key=not doors)
