"""The serving Task as commands meet it: opened, looked at as a gateway would, and what the registry knows of a model.

What commands use of the gateway for that is named here. Those that print their ``--help`` without it import this where
they use it: what speaks to ClearML takes longer to import than that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deploy.tools.errors import DeployError, RegistryRefused
from gateway import preview, registry, spec

Registry = registry.ClearMLRegistry
RegistryWriter = registry.RegistryWriter
ServingSpec = spec.ServingSpec
EndpointSpec = spec.EndpointSpec
Preview = preview.Preview

check_weights = preview.check_weights
check_counted = preview.check_counted


def connect(serving_task_id: str, say: Callable[[str], None] = lambda _text: None) -> Registry:
    """Return the registry of the serving Task (empty: of the only one that runs); ``say`` gets what it is waiting for.

    Raises ``RegistryRefused`` and ``RegistryUnavailable``.
    """
    return registry.ClearMLRegistry(serving_task_id, say=say)


def planned(store: Registry) -> Preview:
    """Return what a gateway would make of the serving Task as it is now. Raises the registry's errors."""
    return preview.preview(store, store.spec())


def lineage(store: Registry, asked: str) -> dict[str, Any]:
    """Return where the model of ``asked`` comes from: an endpoint with its version, or the id of a model.

    ``url`` is the endpoint that was asked for, ``served_as`` all that serve this model. Raises ``DeployError`` for what
    is neither, and what the registry raises.
    """
    endpoints = store.spec().endpoints
    endpoint = endpoints.get(asked.strip("/"))
    if endpoint is None and not registry.is_id(asked):
        raise DeployError(
            f"there is no endpoint {asked}",
            hint=f"the serving Task has {', '.join(sorted(endpoints)) or 'none'}; of a version that was removed, name "
            "the model's id (an answer's header x-model-id)",
        )
    if endpoint is not None and not endpoint.model_id:
        raise DeployError(f"{asked} has no model of the registry: it is code only")
    model_id = asked if endpoint is None else str(endpoint.model_id)
    urls = sorted(one.url for one in endpoints.values() if one.model_id == model_id)
    url = endpoint.url if endpoint is not None else ""
    try:
        found = registry.lineage_of(store, model_id)
    except RegistryRefused as error:
        if endpoint is not None:
            raise
        raise DeployError(f"ClearML has no model {asked}", hint="x-model-id of an answer names one") from error
    return {"url": url, "served_as": urls, **found}
