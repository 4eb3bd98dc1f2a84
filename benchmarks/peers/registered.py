"""What a run registers in the embedded ClearML server with the stock CLI: two serving Tasks.

One Task is the gateway's (endpoints without code, two versions and a canary in front of each backend); the other is
stock clearml-serving's (endpoints with a hook). Registrations are stored in the state folder and reused.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.backends import Backend
from benchmarks.shared.command import Say
from deploy.laptop.registry_process import upload_model
from deploy.tools.clearml_serving import ClearMLServing
from tests import processes
from tests.stack import Registry

_HOOK = Path(__file__).parent / "programs" / "clearml_hook.py"
_FORMAT = 5


@dataclass(frozen=True, slots=True)
class Registered:
    """Results of the CLI: Task ids and, by backend, Triton's names of the gateway's models."""

    gateway_task: str
    clearml_task: str
    triton_names: Mapping[str, Sequence[str]]


def register(
    registry: Registry, state: Path, backends: Sequence[Backend], bundles: Mapping[str, Path], say: Say
) -> Registered:
    """Register every backend for both systems if it is missing, and return the names."""
    note = state / "registered.json"
    known: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {}
    if known.get("format") != _FORMAT:
        known = {"format": _FORMAT, "backends": []}
    cli = ClearMLServing(env=registry.env, log=state / "logs" / "clearml-serving.log")
    for side in ("gateway", "clearml"):
        if side not in known:
            say(f"clearml-serving create --name bench-{side}")
            known[side] = asyncio.run(cli.create_service(f"bench-{side}"))
    for backend in backends:
        if backend.name not in known["backends"]:
            say(f"clearml-serving model upload / model add … for backend {backend.name}")
            asyncio.run(_register(cli, known["gateway"], known["clearml"], backend, bundles[backend.name]))
            known["backends"].append(backend.name)
        note.write_text(json.dumps(known, indent=1) + "\n")
    return Registered(known["gateway"], known["clearml"], triton_names(registry, known["gateway"]))


def triton_names(registry: Registry, task_id: str) -> dict[str, list[str]]:
    """Return Triton's names of a serving Task's models by endpoint.

    It runs in its own process, because the clearml SDK keeps its session for the life of a process.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.registered", task_id], env=registry.env, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        raise processes.ServerFailed(f"the serving Task cannot be read: {done.stderr[-400:]}")
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def versions(backend: Backend) -> tuple[str, str]:
    """Return the urls of the gateway's two versions of a backend; the canary route is the backend's name."""
    return f"{backend.name}/1", f"{backend.name}/2"


def hooked(backend: Backend) -> str:
    """Return the endpoint of stock clearml-serving for a backend, which is also its Triton model's name."""
    return f"{backend.name}-hook"


async def _register(cli: ClearMLServing, gateway: str, clearml: str, backend: Backend, bundle: Path) -> None:
    name = f"bench-{backend.name}"
    model = await upload_model(gateway, bundle, project="benchmarks", name=name, env=cli.env, log=cli.log)
    described: list[str] = []
    for side, names, kind, width in (
        ("input", backend.inputs, "int64", -1), ("output", (backend.output,), "float32", backend.width),
    ):  # fmt: skip
        described += [f"--{side}-name", *names, f"--{side}-type", *([kind] * len(names))]
        described += [f"--{side}-size", *([json.dumps([-1, width])] * len(names))]
    add = ("model", "add", "--engine", "triton", "--model-id", model, *described)
    for url in versions(backend):
        endpoint, version = url.split("/")
        await cli.run("--id", gateway, *add, "--endpoint", endpoint, "--version", version)
    await cli.run(
        "--id", gateway, "model", "canary", "--endpoint", backend.name, "--weights", *map(str, backend.weights),
        "--input-endpoints", *versions(backend),
    )  # fmt: skip
    await cli.run("--id", clearml, *add, "--endpoint", hooked(backend), "--preprocess", str(_HOOK))


def main(task_id: str) -> None:
    """Print Triton's names of a serving Task's models by endpoint, as JSON."""
    from gateway.registry.clearml import ClearMLRegistry
    from gateway.spec import decode, triton_model_name

    registry = ClearMLRegistry(task_id)
    found: dict[str, list[str]] = {}
    for endpoint in decode(registry.task()).endpoints.values():
        if endpoint.model_id:
            name = triton_model_name(endpoint, registry.model(endpoint.model_id))
            found.setdefault(endpoint.endpoint, []).append(name)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
