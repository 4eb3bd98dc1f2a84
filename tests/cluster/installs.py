"""The chart as it is installed, with each file of values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.control_plane import Cluster
from tests.kube_tools import CHART, YOURS
from tests.waiting import until

VALUES: Final = ("trial", "default", *sorted(path.stem for path in (CHART / "values").glob("*.yaml")))
"""Files of values; ``default`` is none, and ``trial`` the one value that makes a trial of it."""

_CHANGED: Final = {
    "gateway": {"resources": {"requests": {"cpu": "150m", "memory": "700Mi"}, "limits": {"memory": "700Mi"}}}
}
"""What an upgrade changes: the size of gateways, and every image's tag."""

_WARNING: Final = re.compile(r"^W\w* ?.*|^Warning:.*", re.MULTILINE)


@dataclass
class Install:
    """A release in its namespace; ``name`` is one of ``VALUES``."""

    cluster: Cluster
    name: str
    work: Path
    before: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)
    """What helm warned of."""

    @property
    def namespace(self) -> str:
        """Where it goes: to the Triton whose claim it needs, if there is one."""
        return "inference" if self.name == "sync" else "triton-gateway"

    def prepare(self) -> None:
        """Make what the documentation says is there before: namespace, Secrets; and volumes, as a provisioner would."""
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        objects: list[Mapping[str, Any]] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}},
            _secret(
                self.namespace, "clearml-credentials", CLEARML_API_ACCESS_KEY="k" * 20, CLEARML_API_SECRET_KEY="s" * 40
            ),
        ]
        if self.name in ("dev", "trial"):
            objects.append(_volume("controlplane", "20Gi"))
        if self.name == "sync":
            objects += [_volume("models", "50Gi"), _claim(self.namespace, "triton-models", "50Gi")]
        self.cluster.apply(*objects)
        self.before = self.objects()

    def apply(self, *, changed: bool = False) -> None:
        """Install or upgrade."""
        done = self.cluster.helm("upgrade", "--install", *self._chart(changed), "--reset-values")
        self.warnings += _WARNING.findall(done.stderr)

    def difference(self) -> str:
        """Return what kubectl diff says: nothing, if the API has what was applied."""
        manifest = self.cluster.helm("get", "manifest", "triton-gateway", "--namespace", self.namespace).stdout
        return self.cluster.kubectl(
            "diff", "--namespace", self.namespace, "--filename", "-", given=manifest, ok=(0, 1)
        ).stdout

    def go_back(self) -> None:
        """Undo an upgrade."""
        first = self.cluster.helm("history", "triton-gateway", "--namespace", self.namespace, "--output", "yaml").stdout
        revision = yaml.safe_load(first)[-2]["revision"]
        self.cluster.helm("rollback", "triton-gateway", str(revision), "--namespace", self.namespace)

    def settle(self) -> None:
        """Wait until every Deployment has the least that its autoscaler wants, and is as it should be."""
        until(self._least, pause=1, what="the least number of replicas")
        found = self.cluster.get("deployments", "--namespace", self.namespace)["items"]
        for name in (item["metadata"]["name"] for item in found):
            self.cluster.kubectl(
                "--namespace", self.namespace, "rollout", "status", f"deployment/{name}", "--timeout=300s"
            )

    def _least(self) -> bool:
        items = self.cluster.get("deployments,horizontalpodautoscalers", "--namespace", self.namespace)["items"]
        has = {item["metadata"]["name"]: item["spec"]["replicas"] for item in items if item["kind"] == "Deployment"}
        hpas = [item["spec"] for item in items if item["kind"] == "HorizontalPodAutoscaler"]
        least = {each["scaleTargetRef"]["name"]: each["minReplicas"] for each in hpas}
        return all(count >= least.get(name, 0) for name, count in has.items())

    def remove(self) -> None:
        """Uninstall."""
        self.cluster.helm("uninstall", "triton-gateway", "--namespace", self.namespace, "--wait")

    def objects(self) -> frozenset[str]:
        """Return what is in the namespace, as kind/name: everything but events, and what comes with a namespace."""
        kinds = self.cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "--output=name").stdout.split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith(("events", "bindings")))
        lines = self.cluster.kubectl(
            "get", wanted, "--namespace", self.namespace, "--output=name", "--ignore-not-found"
        ).stdout.split()
        return frozenset(lines)

    def generations(self) -> dict[str, int]:
        """Return how often the wanted state of every object of ours was changed."""
        kinds = "deployments,services,networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,replicasets"
        items = self.cluster.get(kinds, "--namespace", self.namespace)["items"]
        return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"].get("generation", 0) for one in items}

    def events(self) -> list[str]:
        """Return warnings among the events: reason, object and message."""
        items = self.cluster.get("events", "--namespace", self.namespace, "--field-selector=type=Warning")["items"]
        return sorted({
            f"{one['reason']} {one['involvedObject']['kind']}/{one['involvedObject']['name']}: {one['message']}"
            for one in items
        })  # fmt: skip

    def _chart(self, changed: bool) -> tuple[str, ...]:
        file = CHART / "values" / f"{self.name}.yaml"
        values = ["--values", str(file)] if file.exists() else []
        values += ["--set=controlplane.enabled=true"] if self.name in ("dev", "trial") else YOURS
        if changed:
            self.work.mkdir(exist_ok=True)
            path = self.work / "changed.yaml"
            path.write_text(yaml.safe_dump(_CHANGED | {"image": {"registry": "example.com", "tag": "0.1.1"}}))
            values += ["--values", str(path)]
        return ("triton-gateway", str(CHART), "--namespace", self.namespace, *values)


@contextmanager
def applied(cluster: Cluster, name: str, work: Path) -> Iterator[Install]:
    """One release, applied once; at the end the namespace goes. ``work`` is a folder for values of ours."""
    made = Install(cluster, name, work / "values")
    made.prepare()
    try:
        made.apply()
        yield made
    finally:
        cluster.kubectl("delete", "namespace", made.namespace, "--timeout=300s")


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
