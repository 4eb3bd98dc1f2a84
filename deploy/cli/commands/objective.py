"""``triton-gateway objective``: show or set the objective (SLO) of an endpoint."""

from __future__ import annotations

import time

import click

from deploy.cli import objective
from deploy.cli.commands._options import OpenRegistry, registry_options, who
from gateway import objectives, spec


@click.command(name="objective")
@click.argument("endpoint")
@click.option("--availability", help="Target share of requests that get an answer, e.g. 99.9%. off: no target.")
@click.option("--latency", help="Target time for answers, e.g. 300ms. off: no target.")
@click.option("--latency-share", help="Target share of answers within that time, e.g. 95%.")
@click.option("--reset", is_flag=True, help="Remove the objective; the default applies again.")
@registry_options
def command(
    endpoint: str, availability: str | None, latency: str | None, latency_share: str | None, reset: bool,
    open_registry: OpenRegistry,
) -> int:  # fmt: skip
    """Show or set the objective of ENDPOINT: availability and latency. Alerts and dashboards follow within seconds.

    Targets that you do not name stay as they are. The board `overview` shows how much of the error budget is left.

    \b
    Examples:
      triton-gateway objective sentiment --availability 99.95% --latency 300ms --latency-share 95%
      triton-gateway objective sentiment
      triton-gateway objective sentiment --reset
    """
    endpoint = endpoint.strip("/")
    store = open_registry()
    task = store.task()
    store.spec().bare_name(endpoint)  # raises if there is no such endpoint
    given = {"availability": availability, "latency": latency, "latency_share": latency_share}
    wanted = {part: text for part, text in given.items() if text is not None}
    if reset and wanted:
        raise click.UsageError("--reset cannot be combined with other options")
    if reset or wanted:
        kept = {} if reset else objectives.parts(spec.records_of(task, spec.OBJECTIVES).get(endpoint, {}))
        parts = objective.checked({**kept, **wanted}, endpoint)
        store.write({}, [objective.stated(endpoint, parts, now=time.time(), by=who())])
        task = store.task()
    click.echo(f"{endpoint}: {objective.in_words(task, endpoint)}")
    return 0
