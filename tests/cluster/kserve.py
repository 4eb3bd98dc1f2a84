"""KServe's real controller and webhooks beside a cluster, without Knative and with the configuration that it ships."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster import programs
from tests.cluster.control_plane import Cluster, free_port

NAMESPACE: Final = "kserve"


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[None]:
    """Run the controller; at the end its webhooks go before it, or nothing could be created any more."""
    cluster.define("kserve", "kserve-others")
    source = programs.source("kserve") / "config"
    [configuration] = _read(source / "configmap" / "inferenceservice.yaml")
    configuration["data"] = {key: text for key, text in configuration["data"].items() if key != "_example"}
    configuration["data"]["deploy"] = json.dumps({"defaultDeploymentMode": "Standard"})
    ingress = json.loads(configuration["data"]["ingress"]) | {"disableIstioVirtualHost": True}  # there is no Istio
    configuration["data"]["ingress"] = json.dumps(ingress)
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, configuration)
    folder = cluster.folder / "kserve"
    certificates = folder / "k8s-webhook-server" / "serving-certs"  # in the folder for temporary files, as it is built
    certificates.mkdir(parents=True)
    for name, path in zip(("tls.crt", "tls.key"), cluster.authority.sign("kserve", "kserve-webhook"), strict=True):
        (certificates / name).write_bytes(path.read_bytes())
    port, health = free_port(), free_port()
    cluster.run(
        "kserve-manager", programs.paths("kserve")["kserve-manager"], "--metrics-addr=0", f"--webhook-port={port}",
        f"--health-probe-addr=127.0.0.1:{health}",
        env={"KUBECONFIG": str(cluster.kubeconfig), "POD_NAMESPACE": NAMESPACE, "TMPDIR": str(folder)},
    )  # fmt: skip
    cluster.wait("kserve-manager", lambda: cluster.answers(f"http://127.0.0.1:{health}/readyz"))
    webhooks = _read(source / "webhook" / "manifests.yaml")
    authority = base64.b64encode(cluster.authority.certificate.read_bytes()).decode()
    for webhook in (one for each in webhooks for one in each["webhooks"]):
        path = webhook["clientConfig"].pop("service")["path"]
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
    cluster.apply(*webhooks)
    try:
        yield
    finally:
        for each in webhooks:
            cluster.kubectl("delete", each["kind"], each["metadata"]["name"])
        cluster.end("kserve-manager")
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _read(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]
