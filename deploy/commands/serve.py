"""``triton-gateway serve``: the gateway alone, as it runs in production."""

from __future__ import annotations

from typing import Any

import click

from deploy import ports
from deploy.commands._options import make_settings, settings_options
from deploy.errors import DeployError
from gateway.settings import Settings


@click.command(
    name="serve",
    short_help="Run the gateway alone, for an existing ClearML server and Triton.",
    epilog="Stop it with SIGTERM or Ctrl-C: requests in flight are answered first.",
)
@settings_options(Settings)
def command(**given: Any) -> int:
    """Answer REST calls: follow a serving Task in ClearML, run models on Triton.

    Needs CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY (or a clearml.conf), and a Triton that
    `triton-gateway sync` (or you) keeps loaded.

    \b
    Example:
      export CLEARML_API_HOST=https://api.clearml.example CLEARML_API_ACCESS_KEY=… CLEARML_API_SECRET_KEY=…
      triton-gateway serve --host 0.0.0.0 --serving-task-id 1a2b… --triton-grpc triton:8001 --poll-frequency 5s
    """
    settings = make_settings(Settings, given)
    ports.require_free(settings.host, settings.port, what="gateway", option="--port")
    from gateway.__main__ import run
    from gateway.errors import GatewayError

    try:
        return run(settings)
    except GatewayError as error:
        raise DeployError(error.message, hint=error.hint) from error
