"""Compiles a spec to a plan: which endpoint versions to serve and how, or why not. Pure; raises nothing.

Each fault concerns one entry, and all faults are reported together; valid entries are served. The CLI uses the same
function, so that it refuses at once what a gateway would refuse later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.errors import SpecFault
from gateway.hooks.engines import ENGINES
from gateway.metrics import declared
from gateway.path import canary
from gateway.pools import ANY, DEFAULT, address_of
from gateway.spec import EndpointSpec, Fault, ModelRecord, ServingSpec, pools_of


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """One endpoint version to serve. Versions with equal fingerprints need no rebuild."""

    spec: EndpointSpec
    triton_address: str
    """Empty if it needs no Triton."""
    fingerprint: str
    pool: str = ""
    """The pools of Tritons it runs on, separated by commas."""
    record: ModelRecord | None = None
    """Its model's record; None if the registry has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All endpoint versions to serve at one revision."""

    revision: str
    endpoints: Mapping[str, EndpointPlan]
    canaries: Mapping[str, Sequence[tuple[str, float]]]
    """Url and weight of each choice, of the canaries that can be routed."""
    spec: ServingSpec
    faults: tuple[Fault, ...]


def compile_spec(
    spec: ServingSpec,
    *,
    default_triton: str,
    pools: Mapping[str, str] | None = None,
    models: Mapping[str, ModelRecord] = MappingProxyType({}),
) -> Plan:
    """Return the plan for ``spec``. Entries that cannot be served are in ``faults``; nothing is raised.

    The Task's own ``triton_grpc_server`` overrides ``default_triton``, as in clearml-serving. ``pools`` maps each pool
    of Tritons to its address, and ``default`` to an override of ``default_triton``; None accepts every pool. ``models``
    are the known records: a model whose files were replaced under its id is built again.
    """
    faults = list(spec.faults)
    address = spec.settings.get("triton_grpc_server") or default_triton
    known = {ANY: address or "anywhere"} if pools is None else {DEFAULT: address, **pools}
    unknown: dict[str, list[str]] = {}
    endpoints: dict[str, EndpointPlan] = {}
    for url, endpoint in spec.endpoints.items():
        record = models.get(endpoint.model_id or "")
        on = pools_of(endpoint, record) if endpoint.engine == "triton" else ()
        at, lacking = address_of(known, on)
        message = _refusal(endpoint)
        if on and not at:
            message = (
                f"pool {', '.join(on)} has no Tritons here; this gateway knows {', '.join(sorted(known))}: name its "
                "address in TRITON_GATEWAY_POOLS, or add the endpoint with another --aux-config gateway.pool"
            )
        if message:
            faults.append(Fault(f"endpoint {url}", message))
            continue
        for pool in lacking:
            unknown.setdefault(pool, []).append(url)
        files = record.uri if record is not None and record.has_data else None
        endpoints[url] = EndpointPlan(endpoint, at, _digest((endpoint, at or address, files)), ",".join(on), record)
    for pool, urls in unknown.items():
        faults.append(Fault(f"pool {pool}", f"has no Tritons here; {', '.join(urls)} run on their other pools only"))
    canaries: dict[str, Sequence[tuple[str, float]]] = {}
    for name, rule in spec.canaries.items():
        try:
            canaries[name] = canary.resolve(rule, endpoints)
        except SpecFault as fault:
            faults.append(Fault(f"canary {name}", fault.message))
            continue
        chosen = {url for url, _ in canaries[name]}
        faults.extend(
            Fault(f"canary {name}", f"endpoint {url} does not exist; its share goes to the others")
            for url in rule.load_endpoints
            if url not in chosen
        )
    for name, metrics in spec.metrics.items():
        _, messages = declared.check(metrics)
        faults.extend(Fault(f"metrics {name}", message) for message in messages)
    revision = _digest((spec.revision, sorted((url, plan.fingerprint) for url, plan in endpoints.items())))
    return Plan(revision, endpoints, canaries, spec, tuple(faults))


def _digest(identity: object) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def _refusal(endpoint: EndpointSpec) -> str:
    if (
        endpoint.engine not in ("custom", "custom_async")
        and not endpoint.model_id
        and not (endpoint.engine in ENGINES and endpoint.preprocess is not None)
    ):
        return "has no model; add it again with --model-id, or --name and --project of a registered model"
    # A model folder may contain preprocess code; that is known only after it has been fetched.
    if endpoint.engine in ("custom", "custom_async") and endpoint.preprocess is None and not endpoint.model_id:
        return f"engine {endpoint.engine} needs --preprocess with a Preprocess class that has a process method"
    return ""
