"""``triton-gateway serve``: run only the gateway, as in production."""

from __future__ import annotations

import click

from deploy.tools import ports
from gateway import __main__, settings


@click.command(
    name="serve",
    epilog="SIGTERM or Ctrl-C stops it after the requests in flight are answered.",
)
def command() -> int:
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
    return __main__.main(_require_free_ports)


def _require_free_ports(chosen: settings.Settings) -> None:
    """Raise ``DeployError``, which names the process that holds a port."""
    for name, port, variable in (("gateway", chosen.port, "PORT"), ("gateway's gRPC", chosen.grpc_port, "GRPC_PORT")):
        ports.require_free(chosen.host, port, what=name, option=f"TRITON_GATEWAY_{variable}")
