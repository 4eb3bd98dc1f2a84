"""The serving Task for commands: connects to it, previews what a gateway makes of it, and looks up a model's lineage.

Names all that commands use of the gateway for this. Commands import it inside functions, because the ClearML client
takes long to import and ``--help`` must be fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deploy.tools.errors import DeployError, RegistryRefused
from gateway import preview, registry, spec

Registry = registry.ClearMLRegistry
ServingSpec = spec.ServingSpec
ServingTask = spec.ServingTask
Preview = preview.Preview

check_weights = preview.check_weights


def connect(serving_task_id: str, say: Callable[[str], None] = lambda _text: None) -> Registry:
    """Return the registry of the serving Task (empty: the only running one); ``say`` gets progress lines.

    Raises ``RegistryRefused`` and ``RegistryUnavailable``.
    """
    return registry.ClearMLRegistry(serving_task_id, say=say)


def planned(store: Registry) -> Preview:
    """Return the plan that a gateway would make of the current serving Task. Raises the registry's errors."""
    return preview.preview(store, store.spec())


def lineage(store: Registry, asked: str) -> dict[str, Any]:
    """Return where a model comes from. ``asked``: an endpoint (with its version, else its default), or a model's id.

    In the result, ``url`` is the requested endpoint, and ``served_as`` lists all endpoints with this model. Raises
    ``DeployError`` if ``asked`` is neither, and the registry's errors.
    """
    serving = store.spec()
    endpoints, name = serving.endpoints, asked.strip("/")
    endpoint = endpoints.get(serving.defaults.get(name, name))
    if endpoint is None and not registry.is_id(asked):
        raise DeployError(
            f"there is no endpoint {asked}",
            hint=f"the serving Task has {', '.join(sorted(endpoints)) or 'none'}. For a version that was removed, give "
            "the id of its model (header x-model-id of its answers)",
        )
    if endpoint is not None and not endpoint.model_id:
        raise DeployError(f"{asked} has no model in the registry: it consists of code only")
    model_id = asked if endpoint is None else str(endpoint.model_id)
    urls = sorted(one.url for one in endpoints.values() if one.model_id == model_id)
    url = endpoint.url if endpoint is not None else ""
    try:
        found = registry.lineage_of(store, model_id)
    except RegistryRefused as error:
        if endpoint is not None:
            raise
        raise DeployError(
            f"ClearML has no model {asked}", hint="the header x-model-id of an answer is the id of its model"
        ) from error
    return {"url": url, "served_as": urls, **found}
