"""``triton-gateway controlplane``: run only the embedded ClearML-compatible server."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from deploy.cli.commands._options import PORT


@click.command(
    name="controlplane",
    epilog="By default it listens on loopback only and generates its credentials. Do not expose it without a reason.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway/controlplane"),
    show_default=True, envvar="TRITON_GATEWAY_CONTROLPLANE_STATE_DIR", show_envvar=True,
    help="Folder for the database, the files and the credentials.",
)  # fmt: skip
@click.option(
    "--host", default="127.0.0.1", show_default=True, envvar="TRITON_GATEWAY_CONTROLPLANE_HOST", show_envvar=True,
    help="Address to listen on.",
)  # fmt: skip
@click.option(
    "--port", type=PORT, default=8008, show_default=True, envvar="TRITON_GATEWAY_CONTROLPLANE_PORT", show_envvar=True,
    help="Port to listen on; 0 chooses a free one and writes it to STATE_DIR/endpoint.json.",
)  # fmt: skip
@click.option(
    "--public-url", default=None, envvar="TRITON_GATEWAY_CONTROLPLANE_PUBLIC_URL", show_envvar=True,
    help="Address that clients receive, if it differs from host and port.",
)  # fmt: skip
@click.option(
    "--access-key", default="", envvar="TRITON_GATEWAY_CONTROLPLANE_ACCESS_KEY", show_envvar=True,
    help="Access key of the server's only user.  [default: generated]",
)  # fmt: skip
@click.option(
    "--secret-key", default="", envvar="TRITON_GATEWAY_CONTROLPLANE_SECRET_KEY", show_envvar=True,
    help="Secret key of the server's only user. Prefer the variable: others can see a command line.  [default: "
    "generated]",
)  # fmt: skip
@click.option(
    "--client-config", type=click.Path(path_type=Path, dir_okay=False), default=None,
    envvar="TRITON_GATEWAY_CONTROLPLANE_CLIENT_CONFIG", show_envvar=True,
    help="Write a clearml.conf with the address and the keys to this file, for clients that share the folder.",
)  # fmt: skip
@click.option(
    "--show-env", is_flag=True, help="Print the environment variables that the clearml-serving CLI needs, and exit."
)
def command(
    state_dir: Path, host: str, port: int, public_url: str | None, access_key: str, secret_key: str,
    client_config: Path | None, show_env: bool,
) -> int:  # fmt: skip
    """Run the embedded ClearML-compatible server, for the stock clearml SDK and clearml-serving CLI.

    \b
    Example, two terminals:
      triton-gateway controlplane
      source <(triton-gateway controlplane --show-env) && clearml-serving create --name my-service
    """
    import shlex

    from deploy.controlplane import ControlPlaneSettings, Credentials, environment, read_endpoint, run
    from deploy.tools import http_client, ports, proxies
    from deploy.tools.clearml_serving import LEADS_ELSEWHERE

    state_dir = state_dir.absolute()
    if show_env:
        running = read_endpoint(state_dir)
        address = public_url or (running["api"] if running else f"http://{http_client.reachable_host(host)}:{port}")
        variables = {
            **environment(Credentials.load_or_create(state_dir), address),
            **dict.fromkeys(LEADS_ELSEWHERE, ""),
        }
        for name, value in {**variables, **{name: os.environ[name] for name in proxies.NAMES}}.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return 0
    ports.require_free(host, port, what="control plane", option="--port")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(ControlPlaneSettings(
        state_dir=state_dir, host=host, port=port, public_url=public_url, client_config=client_config,
        access_key=access_key, secret_key=secret_key,
    ))  # fmt: skip
    return 0
