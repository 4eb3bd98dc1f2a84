"""Spec to plan: which endpoint versions this gateway should serve and how, or why it cannot. Pure and total.

Every fault is found at once and concerns one entry; the rest of the plan stands. The CLI uses the same function, so
what a gateway would refuse is refused at the keyboard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gateway.dataplane.routing import canary
from gateway.errors import SpecFault
from gateway.hooks.engines import ENGINES
from gateway.metrics import custom
from gateway.pace import unhurried
from gateway.spec import EndpointSpec, Fault, ModelRecord, ServingSpec

SERVED_ENGINES: Final = ("triton", "custom", "custom_async", "sklearn", "xgboost", "lightgbm")


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """One endpoint version to serve. Equal fingerprints mean nothing has to be rebuilt."""

    spec: EndpointSpec
    triton_address: str
    triton_compression: bool
    fingerprint: str
    content: str = ""
    """Of what is served alone, wherever it runs: equal for equal entries, models, code and options."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything to serve at one revision."""

    revision: str
    endpoints: Mapping[str, EndpointPlan]
    spec: ServingSpec
    faults: tuple[Fault, ...]


def compile_spec(
    spec: ServingSpec,
    *,
    default_triton: str,
    default_compression: bool = False,
    models: Mapping[str, ModelRecord] = MappingProxyType({}),
    namesakes: Mapping[str, Sequence[str]] = MappingProxyType({}),
    pause: Callable[[], None] = unhurried,
) -> Plan:
    """Return the plan for ``spec``; what cannot be served is in ``faults``, nothing is raised.

    The Task's own ``triton_grpc_server`` wins over ``default_triton``, as in clearml-serving. ``models`` are the
    records as far as they are known: a model whose files were replaced under its id is something new to serve.
    ``namesakes``: address → models (name and id) of the registry that share it.
    ``pause`` is called between entries.
    """
    faults = list(spec.faults)
    address = spec.settings.get("triton_grpc_server") or default_triton
    flag = spec.settings.get("triton_grpc_compression", "")
    compression = flag.strip().lower() in ("1", "true", "yes") if flag else default_compression
    endpoints: dict[str, EndpointPlan] = {}
    for url, endpoint in spec.endpoints.items():
        pause()
        message = _refusal(endpoint)
        if message:
            faults.append(Fault(f"endpoint {url}", message))
            continue
        record = models.get(endpoint.model_id or "")
        files = (record.uri, record.sha256) if record is not None and record.has_data else None
        endpoints[url] = EndpointPlan(
            endpoint, address, compression, _digest((endpoint, address, compression, files)), _digest((endpoint, files))
        )
    for model_id in spec.model_ids:
        record = models.get(model_id)
        if record is not None and record.uri in namesakes:
            faults.append(Fault(f"model {model_id}", shared_address(record.uri, namesakes[record.uri])))
    for name, rule in spec.canaries.items():
        pause()
        try:
            choices = canary.resolve(rule, endpoints)
        except SpecFault as fault:
            faults.append(Fault(f"canary {name}", fault.message))
            continue
        chosen = {url for url, _ in choices}
        faults.extend(
            Fault(f"canary {name}", f"endpoint {url} does not exist; its share goes to the others")
            for url in rule.load_endpoints
            if url not in chosen
        )
    for name, metrics in spec.metrics.items():
        pause()
        _, messages = custom.check(metrics)
        faults.extend(Fault(f"metrics {name}", message) for message in messages)
    revision = _digest((spec.revision, sorted((url, plan.fingerprint) for url, plan in endpoints.items())))
    return Plan(revision, endpoints, spec, tuple(faults))


def shared_address(uri: str, models: Sequence[str]) -> str:
    """Return what is wrong when several ``models`` (name and id) have one address."""
    return (
        f"has the same file as others ({', '.join(models)} are all at {uri}): the last upload has overwritten the "
        "others. Upload each from a folder or file of its own name, and add the endpoints with the new models' ids"
    )


def _digest(identity: object) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def _refusal(endpoint: EndpointSpec) -> str:
    if endpoint.engine not in SERVED_ENGINES:
        return f"engine {endpoint.engine} is not served by this version; {', '.join(SERVED_ENGINES)} are"
    if (
        endpoint.engine not in ("custom", "custom_async")
        and not endpoint.model_id
        and not (endpoint.engine in ENGINES and endpoint.preprocess is not None)
    ):
        return "has no model; add it again with --model-id, or --name and --project of a registered model"
    # A model folder may bring its preprocess code; whether it does is known when it has been fetched.
    if endpoint.engine in ("custom", "custom_async") and endpoint.preprocess is None and not endpoint.model_id:
        return f"engine {endpoint.engine} needs --preprocess with a Preprocess class that has a process method"
    return ""
