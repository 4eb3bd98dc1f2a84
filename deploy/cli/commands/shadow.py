"""``triton-gateway canary shadow``: mirror a share of an endpoint's requests to another version."""

from __future__ import annotations

import click

from deploy.cli.commands._options import OpenRegistry, registry_options, who
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

    Callers never see these answers and do not wait for them. Under load the copies are dropped first. Without --to and
    --off it says what is mirrored. `gateway_shadow_requests_total` counts how many answers agree.

    \b
    Examples:
      triton-gateway canary shadow --endpoint sentiment --to 2 --percent 5
      triton-gateway canary shadow --endpoint sentiment --off
    """
    from deploy.controller.rollouts import record

    endpoint = endpoint.strip("/")
    store = open_registry()
    spec = store.spec()
    if off:
        store.write({}, [record.shadow(endpoint, None, who())])
        click.echo(f"{endpoint}: nothing is mirrored")
        return 0
    if to is None:
        known = spec.shadows.get(endpoint)
        state = "nothing is mirrored" if known is None else f"{known.percent:g} % is mirrored to {known.to}"
        click.echo(f"{endpoint}: {state}")
        return 0
    if percent is None:
        raise DeployError("--to needs --percent", hint="for instance --percent 5")
    target = spec.url_of(endpoint, to)
    store.write({}, [record.shadow_of(spec, endpoint, target, percent, tolerance, who())])
    click.echo(f"{endpoint}: {percent:g} % of its requests are mirrored to {target}")
    return 0
