"""``triton-gateway objective``: what an endpoint promises."""

from __future__ import annotations

import time

import click

from deploy.admin.commands._options import OpenRegistry, registry_options, who


@click.command(name="objective")
@click.argument("endpoint")
@click.option("--availability", help="Share of the requests that are answered, e.g. 99.9%; off: none is promised.")
@click.option("--latency", help="Time within which answers come, e.g. 300ms; off: none is promised.")
@click.option("--latency-share", help="Share of the answers that come within that time, e.g. 95%.")
@click.option("--reset", is_flag=True, help="Forget what was promised here: what the endpoint's options say holds.")
@registry_options
def command(
    endpoint: str, availability: str | None, latency: str | None, latency_share: str | None, reset: bool,
    open_registry: OpenRegistry,
) -> int:  # fmt: skip
    """Show what ENDPOINT promises, or promise something: alerts and boards follow within seconds.

    What is promised here goes before `clearml-serving model add … --aux-config gateway.availability=99.9%
    gateway.latency=0.3 gateway.latency_share=95%`, and that before the gateway's settings. What is not named here
    stays as it is. `triton-gateway status` says what is left of what the objective allows.

    \b
    Examples:
      triton-gateway objective sentiment --availability 99.95% --latency 300ms --latency-share 95%
      triton-gateway objective sentiment
      triton-gateway objective sentiment --reset
    """
    from deploy.history.recorder import recorded
    from deploy.rollout import objective

    endpoint = endpoint.strip("/")
    store = open_registry()
    task = store.task()
    objective.check_known(task, endpoint)
    given = {"availability": availability, "latency": latency, "latency_share": latency_share}
    wanted = {part: text for part, text in given.items() if text is not None}
    if reset and wanted:
        raise click.UsageError("--reset goes with no other option")
    if reset or wanted:
        kept = {} if reset else objective.recorded_parts(task, endpoint)
        parts = objective.checked({**kept, **wanted}, endpoint)
        with recorded(store):
            store.write({}, [objective.stated(endpoint, parts, now=time.time(), by=who())])
        task = store.task()
    click.echo(f"{endpoint}: {objective.in_words(task, endpoint)}")
    return 0
