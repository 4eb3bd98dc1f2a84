"""``triton-gateway up``: run everything on this machine, in the foreground."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click

from deploy.cli.commands._options import PORT
from deploy.tools.terminal import Terminal


@click.command(
    name="up",
    epilog="Ctrl-C or SIGTERM stops it: the gateway first answers the requests it has, then the other parts end in "
    "order.",
)
@click.option(
    "--demo", is_flag=True, envvar="TRITON_GATEWAY_DEMO", show_envvar=True,
    help="Also serve a demo model: all-MiniLM-L6-v2 as endpoint `minilm`.",
)  # fmt: skip
@click.option(
    "--model", default="", envvar="TRITON_GATEWAY_MODEL", show_envvar=True, metavar="MODEL",
    help="Also serve this model, as `triton-gateway deploy MODEL` does, which has more options: a folder, a file, a "
    "bundle, or a Hugging Face hub name.",
)  # fmt: skip
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway"),
    show_default=True, envvar="TRITON_GATEWAY_STATE_DIR", show_envvar=True,
    help="Folder for everything that `up` writes. Delete it to start from nothing.",
)  # fmt: skip
@click.option(
    "--host", default="127.0.0.1", show_default=True, envvar="TRITON_GATEWAY_HOST", show_envvar=True,
    help="Address the gateway listens on. The other parts always listen on 127.0.0.1. On a loopback address it answers "
    "only to local names, unless TRITON_GATEWAY_ALLOW_ANONYMOUS is set.",
)  # fmt: skip
@click.option(
    "--port", type=PORT, default=8080, show_default=True, envvar=["TRITON_GATEWAY_PORT", "CLEARML_SERVING_PORT"],
    show_envvar=True, help="Port of the gateway; 0 chooses a free one.",
)  # fmt: skip
@click.option(
    "--controlplane-port", type=PORT, default=None, show_default="8008", envvar="TRITON_GATEWAY_CONTROLPLANE_PORT",
    show_envvar=True, help="Port of the embedded control plane; 0 chooses a free one. Without this option, the first "
    "start in a folder chooses a free one if 8008 is taken.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 256), default=1, show_default=True,
    envvar=["TRITON_GATEWAY_WORKERS", "WEB_CONCURRENCY", "CLEARML_SERVING_NUM_PROCESS"], show_envvar=True,
    help="Number of gateway worker processes.",
)  # fmt: skip
def command(
    demo: bool,
    model: str,
    state_dir: Path,
    **given: Any,
) -> int:
    """Start everything on this machine: control plane, Triton, model sync and gateway.

    It needs no ClearML server, GPU or Docker. If CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY
    name a ClearML server, that server is used instead of the embedded control plane. A part that dies is restarted;
    one that dies twice within a minute ends everything. Their logs are in STATE_DIR/logs.

    \b
    Examples:
      triton-gateway up --demo
      triton-gateway up --model ./my-model
      triton-gateway up --port 9000 --workers 2 --state-dir /var/lib/triton-gateway
    """
    # imported here to keep --help fast: these import grpc and the control plane
    from deploy.bundles import prerequisites
    from deploy.bundles.model_kinds import recognise
    from deploy.laptop.stack import UpOptions, run
    from deploy.laptop.state_dir import StateDir

    if model:  # one that cannot be served is refused before anything starts
        prerequisites.check(recognise(model))
    options = UpOptions(
        state=StateDir.at(state_dir), environ=dict(os.environ), demo=demo,
        model=model,
        **given,
    )  # fmt: skip
    return asyncio.run(run(options, Terminal(sys.stdout)))
