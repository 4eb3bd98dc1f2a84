"""``triton-gateway doctor``: check this machine or a cluster for missing parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click


@click.command(
    name="doctor",
    epilog="It changes nothing. The exit code is 1 if something is missing; notes alone give 0.",
)
@click.option("--kube", is_flag=True, envvar="TRITON_GATEWAY_DOCTOR_KUBE", show_envvar=True,
              help="Check a Kubernetes cluster through kubectl instead of this machine.")  # fmt: skip
@click.option("--namespace", default="triton-gateway", show_default=True, envvar="TRITON_GATEWAY_NAMESPACE",
              show_envvar=True, help="Namespace of the deployment.")  # fmt: skip
@click.option("--context", default="", envvar="TRITON_GATEWAY_KUBE_CONTEXT", show_envvar=True,
              help="kubectl context to use.  [default: the current one]")  # fmt: skip
@click.option(
    "--values", type=click.Choice(["gpu", "cpu", "dev", "existing", "kserve", "sync"]), default="gpu",
    show_default=True, envvar="TRITON_GATEWAY_VALUES", show_envvar=True,
    help="Values file of the chart that is installed, or will be. It decides which parts must exist.",
)  # fmt: skip
@click.option("--kubectl", default="kubectl", show_default=True, envvar="KUBECTL", show_envvar=True,
              help="kubectl program to run.")  # fmt: skip
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway"),
    show_default=True, envvar="TRITON_GATEWAY_STATE_DIR", show_envvar=True, help="Folder that `up` would write to.",
)  # fmt: skip
@click.option(
    "--triton-grpc", default="", metavar="HOST:PORT",
    envvar=["TRITON_GATEWAY_TRITON_GRPC", "CLEARML_DEFAULT_TRITON_GRPC_ADDR"], show_envvar=True,
    help="Address of a Triton that must answer.",
)  # fmt: skip
@click.option(
    "--triton-key-file", default="", envvar="TRITON_GATEWAY_TRITON_KEY_FILE", show_envvar=True, metavar="FILE",
    help="File with the key of that Triton's control APIs.  [default: STATE_DIR/triton/key, if it exists]",
)  # fmt: skip
@click.option(
    "--serving-task-id", default="", envvar=["TRITON_GATEWAY_SERVING_TASK_ID", "CLEARML_SERVING_TASK_ID"],
    show_envvar=True, help="Id of the serving Task.  [default: the only running one]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(
    kube: bool, namespace: str, context: str, values: str, kubectl: str, state_dir: Path, triton_grpc: str,
    triton_key_file: str, serving_task_id: str, as_json: bool,
) -> int:  # fmt: skip
    """Check this machine: Python, packages, Triton, ports, disk and registry. With --kube, check a cluster instead.

    \b
    Examples:
      triton-gateway doctor
      triton-gateway doctor --triton-grpc triton:8001
      triton-gateway doctor --kube --values gpu --namespace triton-gateway
    """
    from deploy.cli.doctor import finding
    from deploy.cli.doctor import kube as cluster
    from deploy.cli.doctor import local as machine
    from deploy.cli.doctor.kubectl import Kubectl

    if kube:
        checks = cluster.check(Kubectl(namespace, context, kubectl), values)
    else:
        options = machine.Options(
            state_dir=state_dir, triton_grpc=triton_grpc, serving_task_id=serving_task_id,
            ports={"gateway": 8080, "control plane": 8008}, triton_key_file=triton_key_file,
        )  # fmt: skip
        checks = machine.check(options, os.environ)
    findings = []
    for each in checks:
        findings.append(each)
        if not as_json:
            for line in finding.lines([each]):
                click.echo(line)
    if as_json:
        click.echo(json.dumps(finding.document(findings), indent=1))
    else:
        click.echo(finding.summary(findings))
    return 1 if any(each.state == "missing" for each in findings) else 0
