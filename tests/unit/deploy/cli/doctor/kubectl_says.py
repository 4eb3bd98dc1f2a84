"""A healthy cluster as kubectl prints it, and the script that prints it."""

from __future__ import annotations

from typing import Any

HEAD = """#!/bin/sh
cd "$(dirname "$0")"
line=
for word in "$@"; do case $word in --request-timeout*) ;; *) line="$line $word" ;; esac; done
line=${line# }
printf '%s\\n' "$line" >> asked
case $line in
"""
TAIL = """esac
echo "Error from server (NotFound): $line not found" >&2
exit 1
"""
"""A shell: the doctor asks two dozen times, and Python takes longer to start than to answer."""


def items(*found: dict[str, Any]) -> dict[str, Any]:
    """A list as kubectl prints it."""
    return {"kind": "List", "items": list(found)}


def deployment(name: str, wanted: int, ready: int, component: str = "") -> dict[str, Any]:
    """A Deployment as kubectl prints it; its component is its name if nothing else is said."""
    metadata = {"name": name, "labels": {"app.kubernetes.io/component": component or name}}
    return {"metadata": metadata, "spec": {"replicas": wanted}, "status": {"readyReplicas": ready}}


def condition(kind: str, status: str, message: str = "") -> dict[str, str]:
    """One condition of a status."""
    return {"type": kind, "status": status, "message": message}


def hpa(target: str, *conditions: dict[str, str]) -> dict[str, Any]:
    """An HPA of a deployment."""
    return {"metadata": {"name": target}, "spec": {"scaleTargetRef": {"name": target}},
            "status": {"conditions": list(conditions)}}  # fmt: skip


def scaled(*conditions: dict[str, str]) -> dict[str, Any]:
    """A ScaledObject of Tritons."""
    return hpa("triton", *conditions)


def of_keda() -> dict[str, Any]:
    """The HPA that KEDA makes for it."""
    owners = [{"kind": "ScaledObject", "name": "triton"}]
    return {**hpa("triton"), "metadata": {"name": "keda-hpa-triton", "ownerReferences": owners}}


HEALTHY: dict[str, tuple[int, Any, str]] = {
    "exec": (0, "", ""),
    "exec deployment/triton --container=sync -- python -c": (0, "2.72.0", ""),
    "get horizontalpodautoscalers": (0, items(), ""),
    "get scaledobjects": (0, items(), ""),
    "get deployments": (0, items(deployment("triton-gateway", 2, 2, "gateway"), deployment("triton", 1, 1)), ""),
}  # fmt: skip
