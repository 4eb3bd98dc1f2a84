"""``triton-gateway default``: show or choose the default version of an endpoint."""

from __future__ import annotations

import time

import click

from deploy.cli.commands._options import OpenRegistry, registry_options, who
from deploy.controller import default_versions
from deploy.tools.errors import DeployError


@click.command(name="default")
@click.argument("endpoint")
@click.argument("version", required=False)
@registry_options
def command(endpoint: str, version: str | None, open_registry: OpenRegistry) -> int:
    """Show or choose which version answers requests that name ENDPOINT without a version.

    Until you choose, it is the first version that was added. A canary of the same name overrides the choice. A version
    that is added later gets none of these requests until you choose it here or promote it (`canary promote`).

    \b
    Examples:
      triton-gateway default faq
      triton-gateway default faq 2
    """
    endpoint = endpoint.strip("/")
    store = open_registry()
    serving = store.spec()
    if version is None:
        click.echo(f"{endpoint}: {serving.bare_name(endpoint)}")
        return 0
    url = serving.url_of(endpoint, version)
    if serving.endpoints[url].endpoint != endpoint:
        raise DeployError(
            f"{url} is not a version of {endpoint}", hint=f"its endpoint is {serving.endpoints[url].endpoint}"
        )
    store.write({}, [default_versions.chosen(endpoint, url, now=time.time(), by=who(), why="default")])
    click.echo(f"{endpoint}: {store.spec().bare_name(endpoint)}")
    return 0
