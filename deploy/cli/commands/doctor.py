"""``triton-gateway doctor``: check this machine: the embedded Triton's needs, the serving Task, Triton.

A check changes nothing and never raises: something that cannot be read is a finding too, with a remedy.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import click

from deploy.cli.commands._options import SERVING_TASK
from deploy.laptop.state_dir import StateDir, uses_no_clearml
from deploy.sync.client import AdminClient
from deploy.sync.open_addresses import REMEDY, open_addresses
from deploy.tools import ports
from deploy.tools.errors import DeployError, GatewayError
from deploy.tritonserver.launcher import Wheel, detect_server
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


@click.command(
    name="doctor",
    epilog="It changes nothing. The exit code is 1 if something is missing; notes alone give 0.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway"),
    show_default=True, envvar="TRITON_GATEWAY_STATE_DIR", show_envvar=True, help="Folder that `up` writes to.",
)  # fmt: skip
@click.option(
    "--triton-grpc", default="", metavar="HOST:PORT",
    envvar=["TRITON_GATEWAY_TRITON_GRPC", "CLEARML_DEFAULT_TRITON_GRPC_ADDR"], show_envvar=True,
    help="Address of a Triton that must answer; TRITON_GATEWAY_TRITON_KEY_FILE names its key.",
)  # fmt: skip
@SERVING_TASK
def command(state_dir: Path, triton_grpc: str, serving_task_id: str) -> int:
    """Check this machine: the registry, the serving Task, Triton and who may load models into it.

    On Kubernetes, run it in model sync's container.

    \b
    Examples:
      triton-gateway doctor
      triton-gateway doctor --triton-grpc triton:8001
    """
    missing = 0
    for each in check(state_dir, triton_grpc, serving_task_id, os.environ):
        click.echo(each)
        missing += each.state == "missing"
    click.echo(f"{missing} missing" if missing else "nothing is missing")
    return 1 if missing else 0


def check(state_dir: Path, triton_grpc: str, task_id: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check this machine, cheapest checks first."""
    if not triton_grpc:
        yield from triton_server(environ)
    yield from clearml(task_id, environ)
    key_file = triton.key.key_file(environ.get("TRITON_GATEWAY_TRITON_KEY_FILE", ""), state_dir)
    if triton_grpc:
        tls = triton.tls.in_folder(*(environ.get(f"TRITON_GATEWAY_TRITON_{name}", "") for name in ("TLS", "TLS_NAME")))
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
    if server.wheel is None:
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
    if uses_no_clearml(environ):
        yield Finding(
            "ClearML", "note", "no server is configured; `up` starts its own control plane",
            "to use your server, set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY",
        )  # fmt: skip
        return
    try:
        store = connect(task_id)
        plan = preview.preview(store, store.spec())
    except GatewayError as error:
        hint = error.hint or "check that the server runs and can be reached from here"
        yield Finding("serving Task", "missing", error.message, hint)
        return
    what = f"{plan.spec.name} ({plan.spec.task_id}), {len(plan.spec.endpoints)} endpoints"
    if plan.faults:
        first = plan.faults[0]
        yield Finding(
            "serving Task", "missing", f"{what}, {len(plan.faults)} faults: {first.subject} {first.message}",
            "`triton-gateway status --plan` shows them all",
        )  # fmt: skip
    else:
        yield Finding("serving Task", "ok", what)


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
    if found := open_addresses(grpc, "{}:{}".format(*over_http) if over_http else "", tls):
        who = f"anyone who can reach {' or '.join(found)}, and can therefore run code there"
        yield Finding("who may load models", "missing", who, REMEDY)
    else:
        yield Finding("who may load models", "ok", "only callers with Triton's key")
    yield version_of(f"Triton at {address}", version)
