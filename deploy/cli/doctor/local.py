"""Checks of this machine: Python, packages, the embedded Triton's needs, ports, disk, registry, Triton, Prometheus.

Each check is a function that returns findings; environment and addresses are arguments.
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

from deploy.cli.doctor.finding import Finding
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
"""Extra → what it is for."""
NEEDS_SHM_MB = 64
"""Free shared memory that Triton's python backend needs at least."""
NEEDS_DISK_MB = 1000
"""Free disk space that the state directory needs at least: models and logs."""
ONLY_WITH_KEY = "only callers with Triton's key"

_MISSING_LIBRARY = re.compile(r"^\s*(\S+) => not found", re.M)


@dataclass(frozen=True, slots=True)
class Options:
    """What to check: the options of the command."""

    state_dir: Path
    triton_grpc: str
    serving_task_id: str
    ports: Mapping[str, int]
    triton_key_file: str = ""


def check(options: Options, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check this machine, cheapest checks first."""
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
        tls = triton.tls.in_environment(environ)
        yield from triton_at(options.triton_grpc, http=http, key_file=file, tls=tls)
    else:
        yield from _tritons_of_up(options.state_dir)


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of Python."""
    shown = ".".join(str(part) for part in version[:3])
    if tuple(version[:2]) < (3, 11):
        return Finding("Python", "missing", shown, "install Python 3.11 or newer")
    return Finding("Python", "ok", f"{shown} ({sys.executable})")


def packages(required: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Check that the packages of the base and of each extra are installed."""
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
                f"extra {extra}", "note", f"not installed: {', '.join(lacking)}; needed for {purpose}",
                f'pip install "triton-gateway[{extra}]"',
            )  # fmt: skip
        else:
            yield Finding(f"extra {extra}", "ok", purpose)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def version_of(triton: str, version: str) -> Finding:
    """Return the finding on a Triton's version (empty: unknown), which says where its vulnerabilities are listed."""
    where = "NVIDIA lists vulnerabilities by version: https://github.com/NVIDIA/product-security"
    return Finding(f"version of {triton}", "ok" if version else "note", f"{version or 'unknown'}. {where}")


def triton_server(
    address: str,
    *,
    environ: Mapping[str, str] = MappingProxyType({}),
    shm: Path = Path("/dev/shm"),  # noqa: S108 - the kernel's name
) -> Iterator[Finding]:
    """Check which Triton would be used, and whether the one from the wheel could run here."""
    try:
        server = detect_server(address)
    except TritonMissing as error:
        yield Finding("Triton server", "note", str(error))
        return
    if isinstance(server, ExternalServer):
        yield Finding("Triton server", "ok", f"the one at {server.address}")
    elif isinstance(server, PathServer):
        yield Finding("Triton server", "ok", str(server.executable))
        if version := environ.get("TRITON_SERVER_VERSION", ""):  # set in NVIDIA's images
            yield version_of(str(server.executable), version)
    elif isinstance(server, WheelServer):
        wheel = f"nvidia-pytriton {_version('nvidia-pytriton')}"
        yield Finding("Triton server", "ok", f"{wheel} (CPU, ONNX models)")
        yield version_of("the embedded Triton", f"that of {wheel}")
        yield from _wheel(server.wheel)
        free = shutil.disk_usage(shm).free >> 20 if shm.is_dir() else 0
        if free < NEEDS_SHM_MB:
            yield Finding(
                "shared memory", "missing", f"{free} MB are free in {shm}; Triton's python backend needs "
                f"{NEEDS_SHM_MB} MB", "docker run --shm-size=1g, or in Kubernetes an emptyDir with medium Memory",
            )  # fmt: skip


def _wheel(wheel: Wheel) -> Iterator[Finding]:
    numpy = _version("numpy")
    if numpy is not None and int(numpy.partition(".")[0]) >= 2:
        yield Finding(
            "numpy", "note", f"with numpy {numpy} the embedded Triton cannot pass texts, so text generation does not "
            "work", 'pip install "numpy<2" (Python 3.11 or 3.12)',
        )  # fmt: skip
    if wheel.stub is not None:
        lacking = missing_libraries(wheel.stub, wheel.libraries)
        if lacking:
            yield Finding(
                "Triton's python backend", "missing", f"cannot find {', '.join(lacking)}: loading a model would hang",
                "install the shared library of this Python (Debian: apt install libpython3.11)",
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
    """Check that Prometheus is installed, which `up` and the tests of rules use."""
    found = shutil.which("prometheus")
    if found:
        yield Finding("Prometheus", "ok", found)
    else:
        yield Finding(
            "Prometheus", "note", "not installed: `up` runs without Prometheus and without alerts",
            "Debian: apt install prometheus",
        )  # fmt: skip


def disk(state_dir: Path) -> Iterator[Finding]:
    """Check that the state directory can be written and has enough space."""
    folder = state_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free >> 20
    if not os.access(folder, os.W_OK):
        yield Finding("state directory", "missing", f"{folder} cannot be written", "choose another with --state-dir")
    elif free < NEEDS_DISK_MB:
        yield Finding(
            "state directory",
            "missing",
            f"{free} MB are free in {folder}; {NEEDS_DISK_MB} MB are needed",
            "free some space, or choose another directory with --state-dir",
        )
    else:
        yield Finding("state directory", "ok", f"{state_dir}, {free / 1024:.0f} GB free")


def port_free(what: str, port: int) -> Finding:
    """Check whether a port is free."""
    try:
        free = ports.is_free("127.0.0.1", port)
    except DeployError as error:
        return Finding(f"port {port}", "note", error.line())
    if free:
        return Finding(f"port {port}", "ok", f"free for the {what}")
    holder = ports.held_by(port)
    return Finding(
        f"port {port}", "note", f"in use{f' by {holder}' if holder else ''}: fine if that is your running {what}",
        f"otherwise choose another port for the {what}",
    )  # fmt: skip


def clearml(task_id: str, environ: Mapping[str, str], connect: Callable[[str], Any] | None = None) -> Iterator[Finding]:
    """Check the ClearML server, the credentials and the serving Task."""
    from deploy.cli import serving_task

    connect = connect or serving_task.connect
    host = environ.get("CLEARML_API_HOST") or environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf"
    try:
        source = connect(task_id)
        decoded = source.spec()
    except RegistryRefused as error:
        if "no ClearML credentials" in error.message:
            yield Finding(
                "ClearML", "note", "no server is configured; `up` starts its own control plane",
                "to use your server, set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY",
            )  # fmt: skip
        elif "serving service" in error.message:  # none, or several
            yield Finding("ClearML", "ok", f"answers ({host})")
            yield Finding("serving Task", "missing", error.message, error.hint)
        else:
            yield Finding("ClearML", "missing", f"{error.message} ({host})", error.hint)
        return
    except GatewayError as error:
        yield Finding(
            "ClearML",
            "missing",
            f"{error.message} ({host})",
            error.hint or "check that the server runs and can be reached from here",
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
            "`triton-gateway status --plan` shows them all",
        )  # fmt: skip
    else:
        yield Finding("serving Task", "ok", what)
    named = {url: one.pool.split(",") for url, one in plan.endpoints.items() if one.pool}
    tls = triton.tls.in_environment(environ)
    yield from pools_of(named, environ.get("TRITON_GATEWAY_POOLS", ""), lambda address: _answers(address, tls))


def pools_of(
    named: Mapping[str, Sequence[str]], text: str, is_live: Callable[[str], bool] | None = None
) -> Iterator[Finding]:
    """Check that each pool that endpoints name has Tritons. ``named``: url → its pools; ``text``: TRITON_GATEWAY_POOLS.

    Returns nothing if there is only the default pool.
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
        count = "1 endpoint" if len(urls) == 1 else f"{len(urls)} endpoints"
        who = f"{count} ({', '.join(urls[:3])}{', …' if len(urls) > 3 else ''})"
        if lacking and name != pools.DEFAULT:
            yield Finding(
                f"pool {name}", "missing", f"has no address, and is used by {who}",
                "set its address in TRITON_GATEWAY_POOLS of the gateways, and TRITON_GATEWAY_POOL of its model sync",
            )  # fmt: skip
        elif address and not (is_live or _answers)(address):
            yield Finding(
                f"pool {name}",
                "missing",
                f"no Triton answers at {address}; the pool is used by {who}",
                "check that a Triton runs there and can be reached from here",
            )
        elif address:
            yield Finding(f"pool {name}", "ok", f"{address}: {who}")


def _answers(address: str, tls: triton.tls.TritonTls | None = None) -> bool:
    """Return True if any Triton of ``address`` answers now."""
    from deploy.sync.client import AdminClient

    for part in triton.addresses.parts(address):
        target = triton.addresses.parse_address(part)
        for grpc in target.fixed or (f"{target.host}:{target.port}",):
            client = AdminClient(grpc, tls=triton.tls.for_address(part, tls))
            try:
                if client.is_live(timeout_s=3.0):
                    return True
            finally:
                client.close()
    return False


def _tritons_of_up(state_dir: Path) -> Iterator[Finding]:
    """Check the Triton of an `up` that runs in this state directory. Returns nothing if none runs."""
    known = StateDir.at(state_dir).recall().get("ports", {})
    grpc, http = int(known.get("triton_grpc", 0)), int(known.get("triton_http", 0))
    if grpc and not ports.is_free("127.0.0.1", grpc):
        yield from triton_at(f"127.0.0.1:{grpc}", http=str(http), key_file=triton.key.key_file("", state_dir))


def anyone_loads(doors: str) -> str:
    """Return the detail of a finding: at ``doors`` Triton loads models without a key."""
    return f"anyone who can reach {doors}, and can therefore run code there"


def triton_at(
    address: str, *, http: str = "auto", key_file: Path | None = None, tls: triton.tls.TritonTls | None = None
) -> Iterator[Finding]:
    """Check that Triton answers, and that loading models needs its key.

    ``http`` and ``tls``: like the gateways' settings of these names. ``key_file`` holds the key that Triton was started
    with.
    """
    from deploy.sync.client import AdminClient
    from deploy.sync.doors import REMEDY, open_doors

    grpc = address.removeprefix("dns:///")
    client = AdminClient(grpc, key_file=key_file, timeout_s=3.0, tls=tls)
    version = ""
    try:
        if not client.is_live():
            yield Finding(
                f"Triton at {address}", "missing", "does not answer", "start Triton, or correct --triton-grpc"
            )
            return
        version = client.version()
        loaded = [name for name, entry in client.index().items() if entry.state == "ready"]
        yield Finding(f"Triton at {address}", "ok", f"answers, {len(loaded)} models are ready")
    except GatewayError as error:
        yield Finding(f"Triton at {address}", "missing", error.message, error.hint)
    finally:
        client.close()
    hosts = triton.addresses.http_hosts(grpc, http)
    doors = open_doors(grpc, "{}:{}".format(*hosts[0]) if hosts else "", tls)
    if doors:
        yield Finding("who may load models", "missing", anyone_loads(" or ".join(doors)), REMEDY)
    else:
        yield Finding("who may load models", "ok", ONLY_WITH_KEY)
    yield version_of(f"Triton at {address}", version)
