"""``triton-gateway doctor``: check this machine for missing parts."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(
    name="doctor",
    epilog="It changes nothing. The exit code is 1 if something is missing; notes alone give 0.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway"),
    show_default=True, envvar="TRITON_GATEWAY_STATE_DIR", show_envvar=True, help="Folder that `up` writes to.",
)  # fmt: skip
@click.option(
    "--triton-grpc", default="", metavar="HOST:PORT",
    envvar=["TRITON_GATEWAY_TRITON_GRPC", "CLEARML_DEFAULT_TRITON_GRPC_ADDR"], show_envvar=True,
    help="Address of a Triton that must answer; TRITON_GATEWAY_TRITON_KEY_FILE names its key.",
)  # fmt: skip
@click.option(
    "--serving-task-id", default="", envvar=["TRITON_GATEWAY_SERVING_TASK_ID", "CLEARML_SERVING_TASK_ID"],
    show_envvar=True, help="Id of the serving Task.  [default: the only running one]",
)  # fmt: skip
def command(state_dir: Path, triton_grpc: str, serving_task_id: str) -> int:
    """Check this machine: the registry, the serving Task, Triton and who may load models into it.

    On Kubernetes, run it in model sync's container.

    \b
    Examples:
      triton-gateway doctor
      triton-gateway doctor --triton-grpc triton:8001
    """
    from deploy.cli import doctor

    missing = 0
    for each in doctor.check(state_dir, triton_grpc, serving_task_id, os.environ):
        click.echo(each)
        missing += each.state == "missing"
    click.echo(f"{missing} missing" if missing else "nothing is missing")
    return 1 if missing else 0
