"""``triton-gateway clearml-log``: the serving Task's console and scalars tell what the gateway does."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import click

from deploy.admin.commands._options import OpenRegistry, registry_options
from gateway.settings import parse_duration


@click.command(name="clearml-log", short_help="Report what a gateway does to the serving Task in ClearML.")
@click.option(
    "--url", envvar="TRITON_GATEWAY_URL", show_envvar=True,
    help="The gateway to follow.  [default: the one `up` uses, else http://127.0.0.1:8080]",
)  # fmt: skip
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway"),
    show_default=True, envvar="TRITON_GATEWAY_STATE_DIR", show_envvar=True, help="State directory of `up`, if any.",
)  # fmt: skip
@click.option("--every", default="1m", show_default=True, envvar="TRITON_GATEWAY_CLEARML_LOG_EVERY", show_envvar=True,
              help="How often; 10s at the least.")  # fmt: skip
@registry_options
def command(url: str | None, state_dir: Path, every: str, open_registry: OpenRegistry) -> int:
    """Follow a gateway and write rate, failures, latency and drift as scalars, and what changes as console lines.

    Runs until it is stopped, beside the gateway, never in the way of a request. One per gateway is enough: its page
    adds up all workers.

    \b
    Example:
      triton-gateway clearml-log --url http://gateway:8080 --every 1m
    """
    from deploy.admin import clearml_log
    from deploy.laptop.state_dir import StateDir
    from deploy.tools import http_client

    try:
        seconds = parse_duration(every)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--every") from error
    if seconds < 10:
        raise click.BadParameter("10s is the least: it is an account, not a monitor", param_hint="--every")
    registry = open_registry()
    task_id = registry.followed()
    address = (url or str(StateDir.at(state_dir).recall().get("gateway") or "http://127.0.0.1:8080")).rstrip("/")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def ask() -> dict[str, Any] | None:
        answer = http_client.call_gateway(f"{address}/v1/status")
        return answer.content if answer and answer.status == 200 and isinstance(answer.content, dict) else None

    click.echo(f"following {address}, reporting to {registry.link('task', '', task_id)}", err=True)
    clearml_log.follow(
        ask, registry, task_id, every=seconds, wait=stop.wait, say=lambda text: click.echo(text, err=True)
    )
    return 0
