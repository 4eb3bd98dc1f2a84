"""The checks of ``triton-gateway doctor``: the embedded Triton's needs, the serving Task, Triton.

Called by the command ``doctor``. A check changes nothing and never raises: something that cannot be read is a finding
too, with a remedy.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from deploy.laptop.state_dir import StateDir
from deploy.sync.client import AdminClient
from deploy.sync.open_addresses import REMEDY, open_addresses
from deploy.tools import ports
from deploy.tools.errors import DeployError, GatewayError, RegistryRefused
from deploy.tritonserver.launcher import PathServer, Wheel, detect_server
from gateway import preview, registry, triton

_MISSING_LIBRARY = re.compile(r"^\s*(\S+) => not found", re.M)

State = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``missing``: something does not work; ``note``: an optional part is limited."""

    subject: str
    state: State
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return it as text, with its remedy below it."""
        mark = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}[self.state]
        fix = f"\n         → {self.remedy}" if self.remedy and self.state != "ok" else ""
        return f"{mark}  {self.subject}: {self.detail}{fix}"


def check(state_dir: Path, triton_grpc: str, task_id: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check this machine, cheapest checks first."""
    if not triton_grpc:
        yield from triton_server(environ)
    yield from clearml(task_id, environ)
    key_file = triton.key.key_file(environ.get("TRITON_GATEWAY_TRITON_KEY_FILE", ""), state_dir)
    if triton_grpc:
        tls = triton.tls.in_environment(environ)
        yield from triton_at(
            triton_grpc, http=environ.get("TRITON_GATEWAY_TRITON_HTTP", "auto"), key_file=key_file, tls=tls
        )
    else:  # that of an `up` which runs in this folder
        known = StateDir.at(state_dir).recall().get("ports", {})
        grpc = int(known.get("triton_grpc", 0))
        if grpc and not ports.is_free("127.0.0.1", grpc):
            yield from triton_at(f"127.0.0.1:{grpc}", http=str(known.get("triton_http", 0)), key_file=key_file)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def version_of(server: str, version: str) -> Finding:
    """Return the finding on a Triton's version (empty: unknown), which says where its vulnerabilities are listed."""
    where = "NVIDIA lists vulnerabilities by version: https://github.com/NVIDIA/product-security"
    return Finding(f"version of {server}", "ok" if version else "note", f"{version or 'unknown'}. {where}")


def triton_server(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check which Triton would be used, and whether the one from the wheel could run here."""
    try:
        server = detect_server()
    except DeployError as error:
        yield Finding("Triton server", "note", error.line())
        return
    if isinstance(server, PathServer):
        yield Finding("Triton server", "ok", str(server.executable))
        if version := environ.get("TRITON_SERVER_VERSION", ""):  # set in NVIDIA's images
            yield version_of(str(server.executable), version)
    else:
        wheel = f"nvidia-pytriton {_version('nvidia-pytriton')}"
        yield Finding("Triton server", "ok", f"{wheel} (CPU, ONNX models)")
        yield version_of("the embedded Triton", f"that of {wheel}")
        yield from _wheel(server.wheel)


def _wheel(wheel: Wheel) -> Iterator[Finding]:
    numpy = _version("numpy")
    if int(numpy.partition(".")[0] or 0) >= 2:
        yield Finding(
            "numpy", "note", f"with numpy {numpy} the embedded Triton cannot pass texts, so text generation does not "
            "work", 'pip install "numpy<2" (Python 3.11 or 3.12)',
        )  # fmt: skip
    lacking = missing_libraries(wheel.stub, wheel.libraries) if wheel.stub is not None else []
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


def clearml(
    task_id: str, environ: Mapping[str, str], connect: Callable[[str], Any] = registry.ClearMLRegistry
) -> Iterator[Finding]:
    """Check the ClearML server, the credentials and the serving Task."""
    host = environ.get("CLEARML_API_HOST") or environ.get("CLEARML_CONFIG_FILE") or "~/clearml.conf"
    try:
        store = connect(task_id)
        plan = preview.preview(store, store.spec())
    except GatewayError as error:
        if "no ClearML credentials" in error.message:
            yield Finding(
                "ClearML", "note", "no server is configured; `up` starts its own control plane",
                "to use your server, set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY",
            )  # fmt: skip
        elif isinstance(error, RegistryRefused) and "serving service" in error.message:  # none, or several
            yield Finding("ClearML", "ok", f"answers ({host})")
            yield Finding("serving Task", "missing", error.message, error.hint)
        else:
            hint = error.hint or "check that the server runs and can be reached from here"
            yield Finding("ClearML", "missing", f"{error.message} ({host})", hint)
        return
    yield Finding("ClearML", "ok", f"answers ({host})")
    what = f"{plan.spec.name} ({plan.spec.task_id}), {len(plan.spec.endpoints)} endpoints"
    if plan.faults:
        first = plan.faults[0]
        yield Finding(
            "serving Task", "missing", f"{what}, {len(plan.faults)} faults: {first.subject} {first.message}",
            "`triton-gateway status --plan` shows them all",
        )  # fmt: skip
    else:
        yield Finding("serving Task", "ok", what)


def who_may_load(addresses: list[str]) -> Finding:
    """Return the finding on the addresses at which a Triton loads models without a key."""
    if not addresses:
        return Finding("who may load models", "ok", "only callers with Triton's key")
    who = f"anyone who can reach {' or '.join(addresses)}, and can therefore run code there"
    return Finding("who may load models", "missing", who, REMEDY)


def triton_at(
    address: str, *, http: str = "auto", key_file: Path | None = None, tls: triton.tls.TritonTls | None = None
) -> Iterator[Finding]:
    """Check that Triton answers, and that loading models needs its key, which is in ``key_file``.

    ``http`` and ``tls``: like the gateways' settings of these names.
    """
    grpc = address.removeprefix("dns:///")
    client = AdminClient(grpc, key_file=key_file, tls=tls)
    try:
        if not client.is_live():
            remedy = "start Triton, or correct --triton-grpc"
            yield Finding(f"Triton at {address}", "missing", "does not answer", remedy)
            return
        version = client.version()
        loaded = [name for name, state in client.index().items() if state == "ready"]
        yield Finding(f"Triton at {address}", "ok", f"answers, {len(loaded)} models are ready")
    except GatewayError as error:
        version = ""
        yield Finding(f"Triton at {address}", "missing", error.message, error.hint)
    finally:
        client.close()
    over_http = triton.addresses.http_beside(http)(grpc)
    yield who_may_load(open_addresses(grpc, "{}:{}".format(*over_http) if over_http else "", tls))
    yield version_of(f"Triton at {address}", version)
