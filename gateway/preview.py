"""Previews what a gateway would make of a serving Task: what it would serve, and what it could not.

Public: ``deploy`` may import it, so the command line refuses what a gateway would refuse. It uses the gateway's own
compiler, and only reads. It must never decide differently from a gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.control.compile import compile_spec
from gateway.errors import SpecFault
from gateway.path import canary
from gateway.registry.port import Registry
from gateway.spec import CanarySpec, Fault, ServingSpec, known_of


@dataclass(frozen=True, slots=True)
class Preview:
    """What a gateway would make of the serving Task."""

    spec: ServingSpec
    models: Mapping[str, str]
    """The id of the model of each url that would be served; empty for code only."""
    routes: Mapping[str, Mapping[str, float]]
    """Canary → url → share."""
    faults: tuple[Fault, ...]
    """Faults of the Task, the entries of which are not served, and versions whose model is missing or has no data."""


def preview(registry: Registry, spec: ServingSpec) -> Preview:
    """Return what a gateway would make of ``spec`` with the models of ``registry``. Raises the registry's errors."""
    records = registry.records(spec.model_ids)
    plan = compile_spec(spec, default_triton="", models=records)
    routes = {name: canary.weighted(chosen).shares for name, chosen in plan.canaries.items()}
    models = {url: endpoint.spec.model_id or "" for url, endpoint in plan.endpoints.items()}
    faults = [*plan.faults]
    for url, model_id in models.items():
        if model_id and model_id not in records:
            faults.append(Fault(f"endpoint {url}", f"model {model_id} is not in the registry"))
        elif model_id and not records[model_id].has_data:
            faults.append(Fault(f"endpoint {url}", f"model {model_id} has no data: its upload did not finish"))
    return Preview(spec, models, routes, tuple(faults))


def check_weights(spec: ServingSpec, endpoint: str, shares: Sequence[tuple[str, float]]) -> None:
    """Raise ``SpecFault`` with the reason if a gateway could not route ``endpoint`` by these weights."""
    if len({url for url, _ in shares}) != len(shares):
        raise SpecFault("a version is named twice", hint="give each version one weight")
    for url, _ in shares:
        if url not in spec.endpoints:
            raise SpecFault(f"there is no endpoint {url}", hint=known_of(spec.endpoints))
    rule = CanarySpec(endpoint, tuple(weight for _, weight in shares), tuple(url for url, _ in shares))
    try:
        canary.resolve(rule, spec.endpoints)
    except SpecFault as fault:
        raise SpecFault(f"canary {endpoint} {fault.message}") from fault
