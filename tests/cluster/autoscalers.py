"""A real Prometheus, prometheus-adapter and KEDA beside a cluster, and the API services that lead to the last two."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster import programs
from tests.cluster.control_plane import Cluster, NotStarted, free_port
from tests.kube_tools import RULES

ROOT: Final = Path(__file__).parents[2]

_LABELS: Final = {"service": "", "container": ""}
"""Labels that our ServiceMonitors leave beside namespace, pod, job, release and pool."""

_CPU: Final = {
    # two or three samples, as a metrics-server's numbers are of its last two
    "containerQuery": "sum by (<<.GroupBy>>) (rate(container_cpu_usage_seconds_total{<<.LabelMatchers>>}[45s]))",
    "nodeQuery": "sum by (<<.GroupBy>>) (rate(node_cpu_seconds_total{<<.LabelMatchers>>}[45s]))",
    "containerLabel": "container",
    "resources": {
        "overrides": {
            "node": {"resource": "node"},
            "namespace": {"resource": "namespace"},
            "pod": {"resource": "pod"},
        }
    },
}
_MEMORY: Final = _CPU | {
    "containerQuery": "sum by (<<.GroupBy>>) (container_memory_working_set_bytes{<<.LabelMatchers>>})",
    "nodeQuery": "sum by (<<.GroupBy>>) (node_memory_working_set_bytes{<<.LabelMatchers>>})",
}


def start_prometheus(cluster: Cluster, targets: str, *, scrape: str = "15s") -> str:
    """Start Prometheus with our rules and the targets that an address lists (http_sd); returns its address.

    Jobs are called as our ServiceMonitors' are; ``kubelet`` brings the CPU that containers use, as a kubelet does.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise NotStarted("prometheus is not on PATH (Debian: apt install prometheus)")
    jobs = [
        {"job_name": job, "honor_labels": job == "kubelet", "http_sd_configs": [
            {"url": f"{targets}/{job}", "refresh_interval": "5s"},
        ]}
        for job in ("triton-gateway", "triton", "kubelet")
    ]  # fmt: skip
    content = {
        "global": {"scrape_interval": scrape, "evaluation_interval": "15s"},
        "rule_files": [str(path) for path in sorted(RULES.glob("*.yml"))],
        "scrape_configs": jobs,
    }
    path = cluster.folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(content))
    address = f"127.0.0.1:{cluster.ports.setdefault('prometheus', free_port())}"
    cluster.run(
        "prometheus", program, f"--config.file={path}", f"--storage.tsdb.path={cluster.folder / 'prometheus'}",
        f"--web.listen-address={address}", "--log.level=warn",
    )  # fmt: skip
    cluster.wait("prometheus", lambda: cluster.answers(f"http://{address}/-/ready"))
    return f"http://{address}"


def start_adapter(cluster: Cluster, prometheus: str) -> None:
    """Start prometheus-adapter in place of a metrics-server, which would need kubelets: it serves the CPU of pods."""
    path = programs.paths("prometheus-adapter")["prometheus-adapter"]
    resources = {"cpu": _CPU, "memory": _MEMORY, "window": "45s"}
    config = cluster.folder / "adapter.yaml"
    config.write_text(yaml.safe_dump({"resourceRules": resources}))
    certificate, key = cluster.authority.sign("adapter", "adapter")
    port = cluster.ports.setdefault("adapter", free_port())
    cluster.run(
        "prometheus-adapter", path, f"--lister-kubeconfig={cluster.kubeconfig}",
        f"--authentication-kubeconfig={cluster.kubeconfig}", f"--authorization-kubeconfig={cluster.kubeconfig}",
        f"--prometheus-url={prometheus}", f"--config={config}", "--metrics-relist-interval=20s",
        "--metrics-max-age=10m", "--bind-address=127.0.0.1", f"--secure-port={port}", f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
    )  # fmt: skip
    _serve(cluster, "monitoring", "prometheus-adapter", port, ["metrics.k8s.io/v1beta1"])
    cluster.wait("prometheus-adapter", lambda: cluster.raw("/apis/metrics.k8s.io/v1beta1"))


def start_keda(cluster: Cluster) -> None:
    """Start KEDA's operator and its adapter, which owns ``external.metrics.k8s.io``."""
    paths = programs.paths("keda")
    cluster.define("keda")
    certificate, key = cluster.authority.sign("keda", "keda-operator")
    folder = cluster.folder / "keda"
    folder.mkdir(exist_ok=True)
    for name, source in (("ca.crt", cluster.authority.certificate), ("tls.crt", certificate), ("tls.key", key)):
        (folder / name).write_bytes(source.read_bytes())
    service, port = free_port(), free_port()
    variables = {
        "POD_NAMESPACE": "keda", "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda", "WATCH_NAMESPACE": "",
        "KUBECONFIG": str(cluster.kubeconfig),
    }  # fmt: skip
    cluster.kubectl("create", "namespace", "keda", ok=(0, 1))
    cluster.run(
        "keda-operator", paths["keda-operator"], f"--cert-dir={folder}", "--metrics-bind-address=127.0.0.1:0",
        f"--health-probe-bind-address=127.0.0.1:{free_port()}", f"--metrics-service-bind-address=127.0.0.1:{service}",
        "--enable-webhook-patching=false", "--enable-apiservice-patching=false", "--zap-log-level=info",
        env=variables,
    )  # fmt: skip
    cluster.run(
        "keda-adapter", paths["keda-adapter"], f"--metrics-service-address=localhost:{service}", f"--cert-dir={folder}",
        f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", f"--secure-port={port}",
        "--bind-address=127.0.0.1", f"--port={free_port()}", f"--authentication-kubeconfig={cluster.kubeconfig}",
        f"--authorization-kubeconfig={cluster.kubeconfig}", f"--lister-kubeconfig={cluster.kubeconfig}", env=variables,
    )  # fmt: skip
    _serve(cluster, "keda", "keda-metrics-apiserver", port, ["external.metrics.k8s.io/v1beta1"])
    cluster.wait("keda-adapter", lambda: cluster.raw("/apis/external.metrics.k8s.io/v1beta1"))


def _serve(cluster: Cluster, namespace: str, name: str, port: int, groups: list[str]) -> None:
    """Lead API groups to a server on loopback: the API server asks a Service of type ExternalName."""
    objects: list[Mapping[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
    ]  # fmt: skip
    for group, version in (each.split("/") for each in groups):
        objects.append({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": name, "namespace": namespace, "port": port},
            },
        })  # fmt: skip
    cluster.apply(*objects)


def target(address: str, path: str, namespace: str, pod: str) -> dict[str, Any]:
    """Return an entry of http_sd for a pod: where it is scraped, and the labels that a ServiceMonitor adds."""
    pool = "default" if "/triton/" in path else ""
    labels = _LABELS | {
        "__metrics_path__": path, "namespace": namespace, "pod": pod, "instance": f"{namespace}/{pod}",
        "release": "triton-gateway", "pool": pool,
    }  # fmt: skip
    return {"targets": [address], "labels": labels}
