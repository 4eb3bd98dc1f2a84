"""``triton-gateway controller``: run only the controller, which decides for one serving Task."""

from __future__ import annotations

import click

from deploy.cli.commands._options import PORT, following_options, stop_on_signal


@click.command(name="controller")
@following_options
@click.option(
    "--gateway", "gateways", multiple=True, envvar="TRITON_GATEWAY_URL", show_envvar=True, metavar="URL",
    help="Address of the gateways, whose counters decide about rollouts and drift. A name may stand for several. "
    "Keys: TRITON_GATEWAY_KEY, with the rights `metrics` and `status`.",
)  # fmt: skip
@click.option(
    "--health-port", type=PORT, default=None, envvar="TRITON_GATEWAY_CONTROLLER_HEALTH_PORT", show_envvar=True,
    help="Answer /healthz and /metrics on this port.  [default: no port]",
)  # fmt: skip
def command(
    serving_task_id: str, poll_s: float, files_rewrite: str, gateways: tuple[str, ...], health_port: int | None,
    log_format: str,
) -> int:  # fmt: skip
    """Run the controller: number new models (auto-update), record changes, carry out rollouts, judge drift.

    One is enough for a serving Task; of several, one decides, and another takes over within 20 seconds. While none
    runs, gateways and model syncs serve on, and nothing changes by itself. `up` runs it beside model sync.

    It needs a ClearML server: CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or a clearml.conf.

    \b
    Example:
      triton-gateway controller --poll-frequency 10s --health-port 8082
    """
    from deploy.controller.run import run

    run(
        serving_task_id=serving_task_id, poll_s=poll_s, files_rewrite=files_rewrite, health_port=health_port,
        gateways=gateways, log_format=log_format, stop=stop_on_signal(),
    )  # fmt: skip
    return 0
