"""``triton-gateway clearml-log``: the serving Task's console and scalars tell what the gateway does."""

from __future__ import annotations

from typing import Any

import click

from deploy.cli.commands._options import DURATION, OpenRegistry, gateway_options, registry_options, stop_on_signal


@click.command(name="clearml-log")
@gateway_options
@click.option("--every", type=DURATION, default="1m", show_default=True, show_envvar=True,
              envvar="TRITON_GATEWAY_CLEARML_LOG_EVERY", help="Time between two reports; at least 10s.")  # fmt: skip
@registry_options
def command(gateway: str, every: float, open_registry: OpenRegistry) -> int:
    """Report a gateway's rate, failures, latency and drift to ClearML as scalars, and its changes as console lines.

    It runs until you stop it, as a process of its own that delays no request. Run one per gateway: it reports the sums
    over all workers.

    \b
    Example:
      triton-gateway clearml-log --url http://gateway:8080 --every 1m
    """
    from deploy.cli import clearml_log
    from deploy.tools import http_client

    if every < 10:
        raise click.BadParameter("the shortest time is 10s", param_hint="--every")
    registry = open_registry()
    task_id = registry.followed()
    stop = stop_on_signal()

    def ask() -> dict[str, Any] | None:
        answer = http_client.call_gateway(f"{gateway}/v1/status")
        return answer.content if answer and answer.status == 200 and isinstance(answer.content, dict) else None

    click.echo(f"following {gateway}, reporting to {registry.link('task', '', task_id)}", err=True)
    clearml_log.follow(ask, registry, task_id, every=every, wait=stop.wait, say=lambda text: click.echo(text, err=True))
    return 0
