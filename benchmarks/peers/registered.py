"""What a run registers in the embedded ClearML server with the stock CLI: two serving Tasks.

One Task is the gateway's (endpoints without code, two versions and a canary in front of each backend); the other is
stock clearml-serving's (endpoints with a hook).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.backends import Backend
from benchmarks.shared.command import Say
from gateway.registry.clearml import ClearMLRegistry
from gateway.spec import triton_model_name
from tests.stock import Client

_HOOK = Path(__file__).parent / "programs" / "clearml_hook.py"


@dataclass(frozen=True, slots=True)
class Registered:
    """Results of the CLI: Task ids and, by backend, Triton's names of the gateway's models."""

    gateway_task: str
    clearml_task: str
    triton_names: Mapping[str, Sequence[str]]


def register(client: Client, backends: Sequence[Backend], bundles: Mapping[str, Path], say: Say) -> Registered:
    """Register every backend for both systems, and return the names."""
    clearml, gateway = client.create("bench-clearml"), client.create("bench-gateway")
    for backend in backends:
        say(f"clearml-serving model upload / model add … for backend {backend.name}")
        model = client.upload(f"bench-{backend.name}", bundles[backend.name], project="benchmarks")
        described: list[str] = []
        for side, names, kind, width in (
            ("input", backend.inputs, "int64", -1), ("output", (backend.output,), "float32", backend.width),
        ):  # fmt: skip
            described += [f"--{side}-name", *names, f"--{side}-type", *([kind] * len(names))]
            described += [f"--{side}-size", *([json.dumps([-1, width])] * len(names))]
        add = ("model", "add", "--engine", "triton", "--model-id", model, *described)
        for url in versions(backend):
            endpoint, version = url.split("/")
            client.stock(*add, "--endpoint", endpoint, "--version", version)
        client.stock(
            "model", "canary", "--endpoint", backend.name, "--weights", *map(str, backend.weights),
            "--input-endpoints", *versions(backend),
        )  # fmt: skip
        client.task = clearml
        client.stock(*add, "--endpoint", hooked(backend), "--preprocess", str(_HOOK))
        client.task = gateway
    with client.here():
        return Registered(gateway, clearml, triton_names(ClearMLRegistry(gateway)))


def triton_names(registry: ClearMLRegistry) -> dict[str, list[str]]:
    """Return Triton's names of the serving Task's models by endpoint."""
    found: dict[str, list[str]] = {}
    for endpoint in registry.spec().endpoints.values():
        if endpoint.model_id:
            name = triton_model_name(endpoint, registry.model(endpoint.model_id))
            found.setdefault(endpoint.endpoint, []).append(name)
    return found


def versions(backend: Backend) -> tuple[str, str]:
    """Return the urls of the gateway's two versions of a backend; the canary route is the backend's name."""
    return f"{backend.name}/1", f"{backend.name}/2"


def hooked(backend: Backend) -> str:
    """Return the endpoint of stock clearml-serving for a backend, which is also its Triton model's name."""
    return f"{backend.name}-hook"
