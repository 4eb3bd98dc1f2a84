"""Nodes and how kwok plays what is on them: no kubelet runs, a pod is ready after a time and gone after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

GPU_TAINT: Final = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Played:
    """How long pods take, in seconds, by the component that their labels name."""

    gateway_ready: float = 5.0
    triton_ready: float = 30.0
    other_ready: float = 1.0
    gone: float = 2.0
    """From its deletion until a pod is gone."""


@dataclass(frozen=True)
class Machines:
    """How many nodes, and what one has."""

    cpu_nodes: int = 4
    gpu_nodes: int = 4
    cpus: int = 32
    gpus: int = 4

    def objects(self) -> list[dict[str, Any]]:
        """Nodes as they are created; kwok makes them ready."""
        plain = [_node(f"cpu-{number}", self.cpus) for number in range(self.cpu_nodes)]
        return plain + [_node(f"gpu-{number}", self.cpus, self.gpus) for number in range(self.gpu_nodes)]


def _node(name: str, cpus: int, gpus: int = 0) -> dict[str, Any]:
    has = {"cpu": str(cpus), "memory": "256Gi", "pods": "110", "ephemeral-storage": "2Ti"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    spec: dict[str, Any] = {}
    if gpus:
        has["nvidia.com/gpu"] = str(gpus)
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": "NVIDIA-L4",
            "nvidia.com/gpu.count": str(gpus),
        }
        spec["taints"] = [GPU_TAINT]
    metadata = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec,
        "status": {"capacity": has, "allocatable": has},
    }  # fmt: skip


_LABEL: Final = '.metadata.labels["app.kubernetes.io/component"]'
_ALIVE: Final = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}

_NODE: Final = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- {type: {{ .type | Quote }}, status: {{ .status | Quote }}, reason: {{ .reason | Quote }},
   message: {{ .message | Quote }},
   lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
- {type: Hostname, address: {{ NodeName | Quote }}}
nodeInfo: {architecture: amd64, bootID: "", containerRuntimeVersion: kwok, kernelVersion: kwok, kubeProxyVersion: kwok,
  kubeletVersion: kwok, machineID: "", operatingSystem: linux, osImage: "", systemUUID: ""}
phase: Running
"""

_STARTED: Final = """
{{ $now := Now }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "False", reason: ContainersNotReady, lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: "", ready: false, restartCount: 0, started: true,
   state: {running: {startedAt: {{ $now | Quote }}}}}
{{ end }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
phase: Running
startTime: {{ $now | Quote }}
"""

_READY: Final = """
{{ $now := Now }}
conditions:
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: "", ready: true, restartCount: 0, started: true,
   state: {running: {startedAt: {{ $now | Quote }}}}}
{{ end }}
"""


def stages(played: Played) -> str:
    """Return kwok's configuration: what becomes of nodes and of pods, and when."""
    gateway, triton = {"key": _LABEL, "operator": "In", "values": ["gateway"]}, {
        "key": _LABEL, "operator": "In", "values": ["triton"],
    }  # fmt: skip
    neither = {"key": _LABEL, "operator": "NotIn", "values": ["gateway", "triton"]}
    waiting = [
        _ALIVE,
        {"key": ".status.phase", "operator": "In", "values": ["Running"]},
        {"key": '.status.conditions.[] | select( .type == "Ready" ) | .status', "operator": "In", "values": ["False"]},
    ]
    no_address = {"key": ".status.podIP", "operator": "DoesNotExist"}
    not_ready = {
        "key": '.status.conditions.[] | select( .type == "Ready" ) | .status',
        "operator": "NotIn",
        "values": ["True"],
    }
    found = [
        _stage("node-ready", [not_ready], 0, {"statusTemplate": _NODE}, kind="Node"),
        _stage("pod-start", [_ALIVE, no_address], 0, {"statusTemplate": _STARTED}),
        _stage("gateway-ready", [*waiting, gateway], played.gateway_ready, {"statusTemplate": _READY}),
        _stage("triton-ready", [*waiting, triton], played.triton_ready, {"statusTemplate": _READY}),
        _stage("other-ready", [*waiting, neither], played.other_ready, {"statusTemplate": _READY}),
        _stage(
            "pod-gone", [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}], played.gone,
            {"finalizers": {"empty": True}, "delete": True},
        ),
    ]  # fmt: skip
    return yaml.safe_dump_all(found)


def _stage(
    name: str, when: list[dict[str, Any]], delay: float, then: dict[str, Any], kind: str = "Pod"
) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": when},
            "delay": {"durationMilliseconds": int(delay * 1000)},
            "next": then,
        },
    }  # fmt: skip
