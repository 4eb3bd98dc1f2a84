"""The ways in which our manifests are installed: kustomize overlays by both kinds of apply, and the chart by Helm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.autoscalers import ROOT
from tests.cluster.control_plane import Cluster
from tests.waiting import until

CHART: Final = ROOT / "k8s" / "helm" / "triton-gateway"
OVERLAYS: Final = tuple(sorted(path.name for path in (ROOT / "k8s" / "overlays").iterdir()))
VALUES: Final = tuple(sorted(path.stem for path in (CHART / "values").glob("*.yaml")))
FORMS: Final = tuple(
    f"{name}-{way}" for names, ways in ((OVERLAYS, ("client", "server")), (VALUES, ("helm",))) for name in names
    for way in ways
)  # fmt: skip

_CHANGED: Final = {
    "gateway": {"resources": {"requests": {"cpu": "150m", "memory": "700Mi"}, "limits": {"memory": "700Mi"}}}
}
"""What an upgrade changes: the size of gateways, and every image's tag."""

_GATEWAYS: Final = "app.kubernetes.io/component=gateway"
"""What selects gateway pods."""

_WARNING: Final = re.compile(r"^W\w* ?.*|^Warning:.*", re.MULTILINE)


@dataclass
class Install:
    """One form of the product in the namespace; ``form`` is one of ``FORMS``."""

    cluster: Cluster
    form: str
    work: Path
    before: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)
    """What kubectl and helm warned of."""

    @property
    def name(self) -> str:
        """The overlay's or the values file's."""
        return self.form.rpartition("-")[0]

    @property
    def way(self) -> str:
        """client, server or helm."""
        return self.form.rpartition("-")[2]

    @property
    def namespace(self) -> str:
        """Where the overlay goes; the values file of that name goes there, too."""
        content = yaml.safe_load((ROOT / "k8s" / "overlays" / self.name / "kustomization.yaml").read_text())
        return str(content["namespace"])

    def prepare(self) -> None:
        """Make what the documentation says is there before: namespace, Secrets; and volumes, as a provisioner would."""
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        objects: list[Mapping[str, Any]] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}},
            _secret(
                self.namespace, "clearml-credentials", CLEARML_API_ACCESS_KEY="k" * 20, CLEARML_API_SECRET_KEY="s" * 40
            ),
            _secret(self.namespace, "triton-key", key="0" * 64),
        ]
        if self.name == "dev":
            objects.append(_volume("controlplane", "20Gi"))
        if self.name == "sync":
            objects += [_volume("models", "50Gi"), _claim(self.namespace, "triton-models", "50Gi")]
        self.cluster.apply(*objects)
        self.before = self.objects()

    def apply(self, *, changed: bool = False) -> str:
        """Install or upgrade; returns what was said of every object."""
        if self.way == "helm":
            done = self.cluster.helm(
                "upgrade", "--install", "triton-gateway", str(CHART), "--namespace", self.namespace, "--reset-values",
                "--values", str(CHART / "values" / f"{self.name}.yaml"), *(self._given() if changed else ()),
                within=240,
            )  # fmt: skip
        else:
            done = self.cluster.kubectl("apply", *self._how(), "--kustomize", self._folder(changed), within=240)
        self.warnings += _WARNING.findall(done.stderr)
        return done.stdout

    def difference(self, *, changed: bool = False) -> str:
        """Return what kubectl diff says: nothing, if the API has what was applied."""
        if self.way == "helm":
            manifest = self.cluster.helm("get", "manifest", "triton-gateway", "--namespace", self.namespace).stdout
            done = self.cluster.kubectl(
                "diff", "--namespace", self.namespace, "--filename", "-", given=manifest, ok=(0, 1)
            )
        else:
            done = self.cluster.kubectl("diff", *self._how(), "--kustomize", self._folder(changed), ok=(0, 1))
        return done.stdout

    def go_back(self) -> None:
        """Undo an upgrade."""
        if self.way == "helm":
            first = self.cluster.helm(
                "history", "triton-gateway", "--namespace", self.namespace, "--output", "yaml"
            ).stdout
            revision = yaml.safe_load(first)[-2]["revision"]
            self.cluster.helm("rollback", "triton-gateway", str(revision), "--namespace", self.namespace, within=240)
        else:
            self.apply()

    def settle(self) -> None:
        """Wait until every Deployment has the least that its autoscaler wants, and is as it should be."""
        until(self._least, pause=1, what="the least number of replicas")
        found = self.cluster.get("deployments", "--namespace", self.namespace)["items"]
        for name in (item["metadata"]["name"] for item in found):
            self.cluster.kubectl(
                "--namespace", self.namespace, "rollout", "status", f"deployment/{name}", "--timeout=180s", within=200
            )

    def _least(self) -> bool:
        items = self.cluster.get("deployments,horizontalpodautoscalers", "--namespace", self.namespace)["items"]
        has = {item["metadata"]["name"]: item["spec"]["replicas"] for item in items if item["kind"] == "Deployment"}
        hpas = [item["spec"] for item in items if item["kind"] == "HorizontalPodAutoscaler"]
        least = {each["scaleTargetRef"]["name"]: each["minReplicas"] for each in hpas}
        return all(count >= least.get(name, 0) for name, count in has.items())

    def remove(self) -> None:
        """Uninstall."""
        if self.way == "helm":
            self.cluster.helm("uninstall", "triton-gateway", "--namespace", self.namespace, "--wait", within=240)
        else:
            self.cluster.kubectl("delete", "--kustomize", self._folder(False), "--wait", within=240)

    def objects(self) -> frozenset[str]:
        """Return what is in the namespace, as kind/name: everything but events, and what comes with a namespace."""
        kinds = self.cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "--output=name").stdout.split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith(("events", "bindings")))
        lines = self.cluster.kubectl(
            "get", wanted, "--namespace", self.namespace, "--output=name", "--ignore-not-found"
        ).stdout.split()
        return frozenset(lines)

    def generations(self) -> dict[str, int]:
        """Return how often the wishes of every object of ours were changed."""
        kinds = "deployments,services,networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,replicasets"
        items = self.cluster.get(kinds, "--namespace", self.namespace)["items"]
        return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"].get("generation", 0) for one in items}

    def ready_gateways(self) -> set[str]:
        """Return the addresses of the gateway pods that are ready and do not end."""
        pods = self.cluster.get("pods", "--namespace", self.namespace, "--selector", _GATEWAYS)["items"]
        return {
            pod["status"]["podIP"] for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
            and _condition(pod, "Ready").get("status") == "True"
        }  # fmt: skip

    def counted(self) -> set[str]:
        """Return the addresses behind the name by which gateways count themselves, as a name server publishes them."""
        name = "kubernetes.io/service-name=triton-gateway-peers"
        slices = self.cluster.get("endpointslices", "--namespace", self.namespace, "--selector", name)["items"]
        return {
            address for each in slices for endpoint in each["endpoints"] or () for address in endpoint["addresses"]
            if endpoint["conditions"]["ready"]
        }  # fmt: skip

    def events(self) -> list[str]:
        """Return warnings among the events: reason, object and message."""
        items = self.cluster.get("events", "--namespace", self.namespace, "--field-selector=type=Warning")["items"]
        return sorted({
            f"{one['reason']} {one['involvedObject']['kind']}/{one['involvedObject']['name']}: {one['message']}"
            for one in items
        })  # fmt: skip

    def _how(self) -> tuple[str, ...]:
        return ("--server-side",) if self.way == "server" else ()

    def _folder(self, changed: bool) -> str:
        """The overlay, or one of the user's own on top of it, which lies beside ours as kustomize wants it."""
        overlay = ROOT / "k8s" / "overlays" / self.name
        if not changed:
            return str(overlay)
        self.work.mkdir(exist_ok=True)
        names = [f"triton-gateway{part}" for part in ("", "-sync", "-triton", "-triton-cpu", "-controlplane")]
        patch = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "triton-gateway"}, "spec": {
            "template": {"spec": {"containers": [{"name": "gateway", **_CHANGED["gateway"]}]}},
        }}  # fmt: skip
        content = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [os.path.relpath(overlay, self.work.resolve())],
            "images": [{"name": name, "newTag": "0.1.1"} for name in names],
            "patches": [{"patch": yaml.safe_dump(patch)}] if self.name not in ("kserve", "sync") else [],
        }  # fmt: skip
        (self.work / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return str(self.work)

    def _given(self) -> tuple[str, ...]:
        self.work.mkdir(exist_ok=True)
        path = self.work / "changed.yaml"
        path.write_text(yaml.safe_dump(_CHANGED | {"images": {"tag": "0.1.1"}}))
        return "--values", str(path)


def _condition(pod: Mapping[str, Any], kind: str) -> dict[str, str]:
    return next((each for each in pod["status"].get("conditions", ()) if each["type"] == kind), {})


@contextmanager
def applied(cluster: Cluster, form: str, work: Path) -> Iterator[Install]:
    """One form, applied once; at the end the namespace goes. ``work`` is a folder for an overlay of ours."""
    made = Install(cluster, form, work / "overlay")
    made.prepare()
    try:
        made.apply()
        yield made
    finally:
        cluster.kubectl("delete", "namespace", made.namespace, "--timeout=120s", within=150)


def _secret(namespace: str, name: str, **values: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def _volume(name: str, size: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": f"/data/{name}"},
        },
    }  # fmt: skip


def _claim(namespace: str, name: str, size: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}}},
    }  # fmt: skip
