"""``triton-gateway lineage``: show where the model of a version comes from, with links to ClearML."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml

from deploy.cli.commands._options import OpenRegistry, registry_options
from deploy.tools.errors import DeployError, RegistryRefused
from gateway import registry


@click.command(name="lineage")
@click.argument("url", metavar="ENDPOINT[/VERSION]|MODEL_ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@registry_options
def command(url: str, as_json: bool, open_registry: OpenRegistry) -> int:
    """Show where a served model comes from: the Task that trained it, its parent, data sets and code.

    For a version that is no longer served, give the model's id. Every answer carried it in the header `x-model-id`.

    \b
    Examples:
      triton-gateway lineage sentiment/2
      triton-gateway lineage 3c4acb746d08fdb329a7167f9140fce3
    """
    found = lineage(open_registry(), url)
    as_yaml = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=120).rstrip()
    click.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else as_yaml)
    return 0


def lineage(store: registry.ClearMLRegistry, asked: str) -> dict[str, Any]:
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
        found = store.lineage(model_id)
    except RegistryRefused as error:
        if endpoint is not None:
            raise
        raise DeployError(
            f"ClearML has no model {asked}", hint="the header x-model-id of an answer is the id of its model"
        ) from error
    return {"url": url, "served_as": urls, **found}
