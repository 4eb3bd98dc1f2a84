"""``triton-gateway controller``: run only the controller, which decides for one serving Task."""

from __future__ import annotations

import click

from deploy.admin.commands._options import CLEARML_DURATION, PORT, stop_on_signal


@click.command(name="controller")
@click.option(
    "--serving-task-id", default="", envvar=["TRITON_GATEWAY_SERVING_TASK_ID", "CLEARML_SERVING_TASK_ID"],
    show_envvar=True, help="Id of the serving Task to follow.  [default: the only running one]",
)  # fmt: skip
@click.option(
    "--poll-frequency", "poll_s", type=CLEARML_DURATION, default="5s", show_default=True,
    envvar=["TRITON_GATEWAY_POLL_FREQUENCY", "CLEARML_SERVING_POLL_FREQ"], show_envvar=True,
    help="Time between two checks of the serving Task for changes. A bare number means minutes, as in "
    "clearml-serving.",
)  # fmt: skip
@click.option(
    "--files-rewrite", default="", envvar="TRITON_GATEWAY_FILES_REWRITE", show_envvar=True, metavar="FROM=TO,…",
    help="Replace this prefix of file addresses: FROM is what the uploader wrote, TO is what this machine can reach.",
)  # fmt: skip
@click.option(
    "--gateway", "gateways", multiple=True, envvar="TRITON_GATEWAY_URL", show_envvar=True, metavar="URL",
    help="Address of the gateways, whose counters decide about rollouts that have lost their runner. A name may stand "
    "for several. Keys: TRITON_GATEWAY_KEY, with the rights `metrics` and `status`.",
)  # fmt: skip
@click.option(
    "--health-port", type=PORT, default=None, envvar="TRITON_GATEWAY_CONTROLLER_HEALTH_PORT", show_envvar=True,
    help="Answer /healthz and /metrics on this port.  [default: no port]",
)  # fmt: skip
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
              envvar="TRITON_GATEWAY_LOG_FORMAT", show_envvar=True, help="Format of the log on stderr.")  # fmt: skip
def command(
    serving_task_id: str, poll_s: float, files_rewrite: str, gateways: tuple[str, ...], health_port: int | None,
    log_format: str,
) -> int:  # fmt: skip
    """Run the controller: number new models (auto-update), record defaults and changes, guard rollouts.

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
