"""Checks of a cluster through kubectl: whether it has what the chart needs, and whether the pods run.

Only reads, with the caller's own rights; anything that they do not permit to read is a note. Tests pass their own
program in place of kubectl to ``check``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from deploy.cli.doctor import local, scaling
from deploy.cli.doctor.finding import Finding
from deploy.cli.doctor.kubectl import Kubectl, last_line, unseen
from deploy.sync.doors import REMEDY

SECRET: Final = "clearml-credentials"  # noqa: S105 - its name
KEYS: Final = ("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY")
TRITON_SECRET: Final = "triton-key"  # noqa: S105 - its name
OLDEST: Final = (1, 28)

_OPERATORS: Final = {
    "servicemonitors.monitoring.coreos.com": ("Prometheus operator", "install kube-prometheus-stack"),
    "prometheusrules.monitoring.coreos.com": ("Prometheus operator", "install kube-prometheus-stack"),
    "scaledobjects.keda.sh": ("KEDA", "install KEDA, or scale Triton with prometheus-adapter"),
    "inferenceservices.serving.kserve.io": ("KServe", "install KServe"),
}
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu": ("monitoring", "metrics", "keda", "gpu"),
    "cpu": ("monitoring", "metrics"),
    "existing": ("monitoring", "metrics"),
    "kserve": ("monitoring", "metrics", "keda", "kserve", "gpu"),
    "dev": ("storage",),
    "sync": (),
}
"""Values file of the chart → what it needs of the cluster besides Pods and Services."""

_CRDS: Final = {
    "monitoring": ("servicemonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com"),
    "keda": ("scaledobjects.keda.sh",),
    "kserve": ("inferenceservices.serving.kserve.io",),
}
_VERSION: Final = (
    "import json, urllib.request as web;print(json.load(web.urlopen('http://127.0.0.1:8000/v2', timeout=3))['version'])"
)
"""Python code that prints the version of the Triton in the same pod; it runs in model sync's container."""
_COMPONENT: Final = "app.kubernetes.io/component"
_BAD_WAITS: Final = ("ErrImage", "ImagePull", "InvalidImage", "CreateContainer", "CrashLoop", "RunContainer")


def check(kubectl: Kubectl, values: str) -> Iterator[Finding]:
    """Check the cluster, in the order in which one would set it up."""
    server = kubectl("version", "--output=json")
    if server.code != 0 or not (server.json() or {}).get("serverVersion"):
        remedy = (
            "install kubectl" if server.code == 127 else "check the context: kubectl config current-context, --context"
        )
        yield Finding("cluster", "missing", last_line(server.err) or "kubectl sees no server", remedy)
        return
    yield _version(server.json()["serverVersion"])
    namespace = kubectl("get", "namespace", kubectl.namespace, "--output=json")
    if namespace.code != 0:
        yield unseen(f"namespace {kubectl.namespace}", namespace, f"kubectl create namespace {kubectl.namespace}")
    else:
        yield Finding(f"namespace {kubectl.namespace}", "ok", "exists")
    yield _secret(kubectl)
    if values not in ("existing", "sync"):  # these start no Triton
        yield _triton_secret(kubectl)
    needs = NEEDS[values]
    for need, names in _CRDS.items():
        if need in needs:
            yield from (_crd(kubectl, name) for name in names)
    if "metrics" in needs:
        yield _api(kubectl, "metrics.k8s.io", "resource metrics (HPA on CPU)", "install metrics-server")
    yield from scaling.metrics(kubectl, needs)
    yield from scaling.quota(kubectl)
    if "gpu" in needs:
        yield _gpus(kubectl)
    if "storage" in needs:
        yield _storage(kubectl)
    yield from _workloads(kubectl)


def _version(found: Mapping[str, Any]) -> Finding:
    shown = str(found.get("gitVersion", "?"))
    digits = tuple(int("".join(c for c in str(found.get(k, "0")) if c.isdigit()) or 0) for k in ("major", "minor"))
    if digits < OLDEST:
        return Finding("cluster", "missing", shown, f"Kubernetes {OLDEST[0]}.{OLDEST[1]} or newer is needed")
    return Finding("cluster", "ok", shown)


def _secret(kubectl: Kubectl) -> Finding:
    subject = f"secret {SECRET}"
    create = (
        f"kubectl -n {kubectl.namespace} create secret generic {SECRET} "
        + " ".join(f"--from-literal={key}=…" for key in KEYS)
    )  # fmt: skip
    # only the names of its keys: the values must not be read
    found = kubectl("get", "secret", SECRET, "--output=go-template={{range $key, $_ := .data}}{{$key}} {{end}}")
    if found.code != 0:
        return unseen(subject, found, create)
    lacking = [key for key in KEYS if key not in found.out.split()]
    if lacking:
        return Finding(subject, "missing", f"has no key {', '.join(lacking)}", create)
    return Finding(subject, "ok", "has both keys")


def _triton_secret(kubectl: Kubectl) -> Finding:
    subject = f"secret {TRITON_SECRET}"
    create = (
        f"kubectl -n {kubectl.namespace} create secret generic {TRITON_SECRET} "
        "--from-literal=key=$(openssl rand -hex 32)"
    )
    found = kubectl("get", "secret", TRITON_SECRET, "--output=go-template={{range $key, $_ := .data}}{{$key}} {{end}}")
    if found.code != 0:
        return unseen(subject, found, create)
    if "key" not in found.out.split():
        return Finding(subject, "missing", "has no key named `key`", create)
    return Finding(subject, "ok", "exists")


def _doors(kubectl: Kubectl, deployments: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Check from model sync's container whether Triton loads models without a key, and which version it is."""
    # By label: names differ by release.
    first = {each["metadata"].get("labels", {}).get(_COMPONENT): each["metadata"]["name"] for each in deployments[::-1]}
    triton, sync = first.get("triton", ""), first.get("sync", "")
    if triton:
        where = (f"deployment/{triton}", "127.0.0.1:8001", "127.0.0.1:8000")
    elif sync:
        address = kubectl(
            "get", "deployment", sync, "--output=jsonpath={.spec.template.spec.containers[0].env"
            "[?(@.name==\"TRITON_GATEWAY_TRITON_GRPC\")].value}",
        ).out.strip()  # fmt: skip
        where = (f"deployment/{sync}", address or "127.0.0.1:8001", "")
    else:
        return
    found = kubectl("exec", where[0], "--container=sync", "--", "python", "-m", "deploy.sync.doors", *where[1:])
    if found.code != 0:
        why = f"could not be checked: {last_line(found.err)}"
        remedy = "this check needs the permission for pods/exec and a Triton that answers"
        yield Finding("who may load models", "note", why, remedy)
        return
    if found.out.strip():
        doors = " or ".join(line for line in found.out.splitlines() if line)
        yield Finding("who may load models", "missing", local.anyone_loads(doors), REMEDY)
    else:
        yield Finding("who may load models", "ok", local.ONLY_WITH_KEY)
    if triton:
        said = kubectl("exec", where[0], "--container=sync", "--", "python", "-c", _VERSION)
        yield local.version_of(where[0], said.out.strip())


def _crd(kubectl: Kubectl, name: str) -> Finding:
    what, remedy = _OPERATORS[name]
    found = kubectl("get", "customresourcedefinition", name, "--output=name")
    return Finding(f"{what}: {name}", "ok", "defined") if found.code == 0 else unseen(f"{what}: {name}", found, remedy)


def _api(kubectl: Kubectl, group: str, what: str, remedy: str) -> Finding:
    found = kubectl("get", "--raw", f"/apis/{group}")
    return Finding(what, "ok", group) if found.code == 0 else unseen(what, found, remedy)


def _gpus(kubectl: Kubectl) -> Finding:
    found = kubectl("get", "nodes", "--output=json")
    nodes = (found.json() or {}).get("items")
    if nodes is None:
        return Finding(
            "GPUs",
            "note",
            f"nodes cannot be listed: {last_line(found.err)}",
            "ask the cluster's administrator for a node that offers nvidia.com/gpu",
        )
    counts = [int(node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", 0)) for node in nodes]
    if not sum(counts):
        return Finding(
            "GPUs", "missing", f"none of {len(nodes)} nodes offers nvidia.com/gpu",
            "install NVIDIA's device plugin (GPU operator), or use values/cpu.yaml",
        )  # fmt: skip
    return Finding("GPUs", "ok", f"{sum(counts)} on {sum(count > 0 for count in counts)} nodes")


def _storage(kubectl: Kubectl) -> Finding:
    found = kubectl("get", "storageclass", "--output=json")
    classes = (found.json() or {}).get("items", [])
    default = [
        each["metadata"]["name"] for each in classes
        if each["metadata"].get("annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    ]  # fmt: skip
    if default:
        return Finding("storage", "ok", f"default class {default[0]}")
    return Finding(
        "storage", "missing", "there is no default StorageClass, so the control plane's volume claim stays pending",
        "mark a StorageClass as default, or name one in the claim",
    )  # fmt: skip


def _workloads(kubectl: Kubectl) -> Iterator[Finding]:
    """Check the deployments; no deployment yet is a note."""
    label = "--selector=app.kubernetes.io/name=triton-gateway"
    deployments = (kubectl("get", "deployments", label, "--output=json").json() or {}).get("items", [])
    yield from scaling.autoscalers(kubectl, deployments)
    if not deployments:
        yield Finding("deployments", "note", "none yet", "helm install (docs/deploy-kubernetes.md)")
        return
    yield from _doors(kubectl, deployments)
    troubles = list(_troubles((kubectl("get", "pods", label, "--output=json").json() or {}).get("items", [])))
    for each in deployments:
        name, status = each["metadata"]["name"], each.get("status", {})
        wanted, ready = each.get("spec", {}).get("replicas", 1), status.get("readyReplicas", 0)
        if ready >= wanted > 0:
            yield Finding(f"deployment {name}", "ok", f"{ready} of {wanted} pods are ready")
        else:
            why = next((why for pod, why in troubles if pod.startswith(f"{name}-")), "")
            yield Finding(
                f"deployment {name}", "missing", f"{ready} of {wanted} pods are ready{f': {why}' if why else ''}",
                f"kubectl -n {kubectl.namespace} describe pod; a gateway's /readyz says what it is waiting for",
            )  # fmt: skip


def _troubles(pods: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        for condition in status.get("conditions", []):
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                yield name, f"cannot be scheduled: {condition.get('message', '')}"
        for container in status.get("containerStatuses", []):
            waiting = container.get("state", {}).get("waiting", {})
            if waiting.get("reason", "").startswith(_BAD_WAITS):
                yield name, f"{container['name']}: {waiting['reason']} {waiting.get('message', '')}".strip()
        if status.get("phase") == "Running" and not all(c.get("ready") for c in status.get("containerStatuses", [])):
            waiting_for = [c["name"] for c in status.get("containerStatuses", []) if not c.get("ready")]
            yield name, f"running, not ready: {', '.join(waiting_for)}"
