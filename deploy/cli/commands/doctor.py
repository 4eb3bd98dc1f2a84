"""``triton-gateway doctor``: check this machine or a cluster for missing parts."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(
    name="doctor",
    epilog="It changes nothing. The exit code is 1 if something is missing; notes alone give 0.",
)
@click.option("--kube", is_flag=True, help="Check a Kubernetes cluster through kubectl instead of this machine.")
@click.option("--namespace", default="triton-gateway", show_default=True, envvar="TRITON_GATEWAY_NAMESPACE",
              show_envvar=True, help="Namespace of the deployment.")  # fmt: skip
@click.option("--context", default="", help="kubectl context to use.  [default: the current one]")
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
def command(
    kube: bool, namespace: str, context: str, state_dir: Path, triton_grpc: str, serving_task_id: str
) -> int:  # fmt: skip
    """Check this machine: Triton and registry. With --kube, check a cluster instead: autoscalers, who may load models.

    \b
    Examples:
      triton-gateway doctor
      triton-gateway doctor --triton-grpc triton:8001
      triton-gateway doctor --kube --namespace triton-gateway
    """
    from deploy.cli.doctor import kube as cluster
    from deploy.cli.doctor import local

    checks = cluster.check(cluster.Kubectl(namespace, context)) if kube else local.check(
        state_dir, triton_grpc, serving_task_id, os.environ)  # fmt: skip
    missing = 0
    for each in checks:
        click.echo(each)
        missing += each.state == "missing"
    click.echo(f"{missing} missing" if missing else "nothing is missing")
    return 1 if missing else 0
