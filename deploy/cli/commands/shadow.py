"""``triton-gateway canary shadow``: send copies of an endpoint's requests to another version, and compare answers."""

from __future__ import annotations

import click

from deploy.cli.commands._options import OpenRegistry, registry_options, who
from deploy.controller.rollouts import record
from deploy.tools.errors import DeployError


@click.command(name="shadow")
@click.option(
    "--endpoint", required=True,
    help="Endpoint whose requests are copied: all versions (`sentiment`) or one version (`sentiment/1`).",
)  # fmt: skip
@click.option("--to", "to", help="Version that answers the copies, e.g. `2`.")
@click.option("--percent", type=float, help="Share of the requests to copy, in percent: above 0 and up to 100.")
@click.option(
    "--tolerance", type=float, default=0.1, show_default=True,
    help="How far apart two numbers may be for answers to agree: an absolute difference, for numbers above 1 a "
    "relative one. Text and labels must be equal. 1: embeddings are compared by which texts they place near each "
    "other.",
)  # fmt: skip
@click.option("--off", is_flag=True, help="Stop the shadow traffic.")
@registry_options
def command(
    endpoint: str, to: str | None, percent: float | None, tolerance: float, off: bool,
    open_registry: OpenRegistry,
) -> int:  # fmt: skip
    """Send copies of an endpoint's requests to another version and compare its answers (shadow traffic).

    Callers never see these answers and do not wait for them. Under load the copies are dropped first.
    `gateway_shadow_requests_total` counts how many answers agree.

    \b
    Examples:
      triton-gateway canary shadow --endpoint sentiment --to 2 --percent 5
      triton-gateway canary shadow --endpoint sentiment --off
    """
    endpoint = endpoint.strip("/")
    store = open_registry()
    serving = store.spec()
    if off:
        store.write({}, [record.shadow(endpoint, None, who())])
        click.echo(f"{endpoint}: nothing is mirrored")
        return 0
    if to is None or percent is None:
        raise DeployError("give --to and --percent, or --off", hint="`triton-gateway status` shows what is mirrored")
    target = serving.url_of(endpoint, to)
    store.write({}, [record.shadow_of(serving, endpoint, target, percent, tolerance, who())])
    click.echo(f"{endpoint}: {percent:g} % of its requests are mirrored to {target}")
    return 0
