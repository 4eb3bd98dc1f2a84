"""``triton-gateway serve``: run only the gateway, as in production."""

from __future__ import annotations

import os

import click

from deploy.tools import ports
from deploy.tools.errors import DeployError
from gateway import __main__, settings

PREDICTOR_PORT = 9000


@click.command(
    name="serve",
    epilog="SIGTERM or Ctrl-C stops it after the requests in flight are answered.",
)
# what KServe adds to the arguments of a transformer
@click.option("--predictor_host", default="", hidden=True)
@click.option("--model_name", default="", hidden=True)
@click.option("--http_port", default="", hidden=True)
@click.option("--predictor_protocol", default="", hidden=True)
def command(predictor_host: str, model_name: str, http_port: str, predictor_protocol: str) -> int:
    """Run the gateway: answer requests for the endpoints of a serving Task, with the models in Triton.

    Its settings are environment variables: docs/settings.md lists them.

    It needs a ClearML server (CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or a clearml.conf)
    and a Triton whose models `triton-gateway sync`, or you, keep loaded.

    \b
    Example:
      export CLEARML_API_HOST=https://api.clearml.example CLEARML_API_ACCESS_KEY=… CLEARML_API_SECRET_KEY=…
      triton-gateway keys create --file keys.json --tenant my-team
      export TRITON_GATEWAY_HOST=0.0.0.0 TRITON_GATEWAY_KEYS_FILE=keys.json TRITON_GATEWAY_TRITON_GRPC=triton:8001
      triton-gateway serve
    """
    del model_name, predictor_protocol  # names come from the serving Task; Triton is always asked over gRPC
    for given, field in ((predictor_host and predictor_address(predictor_host), "triton_grpc"), (http_port, "port")):
        names = settings.variables_of(field)
        if given and not any(map(os.environ.get, names)):
            os.environ[names[0]] = given
    return __main__.main(_require_free_ports)


def _require_free_ports(chosen: settings.Settings) -> None:
    """Raise ``PortTaken``, which names the process that holds a port."""
    for name, port, variable in (("gateway", chosen.port, "PORT"), ("gateway's gRPC", chosen.grpc_port, "GRPC_PORT")):
        ports.require_free(chosen.host, port, what=name, option=f"TRITON_GATEWAY_{variable}")


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
