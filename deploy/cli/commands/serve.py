"""``triton-gateway serve``: run only the gateway, as in production."""

from __future__ import annotations

from typing import Any

import click

from deploy.cli.commands._options import make_settings, settings_options
from deploy.tools import ports
from deploy.tools.errors import DeployError
from gateway import __main__, settings

PREDICTOR_PORT = 9000


@click.command(
    name="serve",
    epilog="SIGTERM or Ctrl-C stops it after the requests in flight are answered.",
)
@settings_options(settings.Settings)
@click.option(
    "--predictor_host", default="", envvar=["TRITON_GATEWAY_PREDICTOR_HOST"], show_envvar=True,
    metavar="HOST[:PORT]", help="Host of the Triton behind this gateway, gRPC on port 9000. KServe passes this "
    "option to a transformer.",
)  # fmt: skip
@click.option("--model_name", default="", hidden=True)
@click.option("--http_port", default="", hidden=True)
@click.option("--predictor_protocol", default="", hidden=True)
def command(predictor_host: str, model_name: str, http_port: str, predictor_protocol: str, **given: Any) -> int:
    """Run the gateway: answer requests for the endpoints of a serving Task, with the models in Triton.

    It needs a ClearML server (CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or a clearml.conf)
    and a Triton whose models `triton-gateway sync`, or you, keep loaded.

    \b
    Example:
      export CLEARML_API_HOST=https://api.clearml.example CLEARML_API_ACCESS_KEY=… CLEARML_API_SECRET_KEY=…
      triton-gateway keys create --file keys.json --tenant my-team
      triton-gateway serve --host 0.0.0.0 --keys-file keys.json --triton-grpc triton:8001 --poll-frequency 5s
    """
    del model_name, predictor_protocol  # names come from the serving Task; Triton is always asked over gRPC
    if predictor_host:
        given["triton_grpc"] = given["triton_grpc"] or predictor_address(predictor_host)
    given["port"] = given["port"] or http_port
    chosen = make_settings(settings.Settings, given)
    ports.require_free(chosen.host, chosen.port, what="gateway", option="--port")
    ports.require_free(chosen.host, chosen.grpc_port, what="gateway's gRPC", option="--grpc-port")
    return __main__.run(chosen)


def refuse_strangers(host: str) -> None:
    """Raise ``DeployError`` if a gateway at ``host`` would answer unknown callers from other machines."""
    if settings.Settings(host=host).answers_strangers:
        raise DeployError(
            f"the gateway would answer everyone who can reach {host}",
            hint="set TRITON_GATEWAY_KEYS_FILE (`triton-gateway keys create --file …`), or "
            "TRITON_GATEWAY_ALLOW_ANONYMOUS=true if a proxy in front of it authenticates the callers",
        )


def predictor_address(host: str) -> str:
    """Return Triton's gRPC address behind a KServe predictor's host; KServe's own port for gRPC is 9000.

    KServe adds ``--predictor_host`` (and ``--model_name``, ``--http_port``) to a transformer's arguments by itself.
    """
    name, _, port = host.partition("://")[2].partition(":") if "://" in host else host.partition(":")
    return f"dns:///{name.rstrip('/')}:{port.rstrip('/') or PREDICTOR_PORT}"
