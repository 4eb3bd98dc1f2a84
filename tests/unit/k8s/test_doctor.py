"""``doctor --kube`` through the real kubectl, against a server that speaks what is asked of the API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy.cli.doctor.kube import Kubectl, check
from tests import kube_tools
from tests.sites import Asked, site

NAMESPACE = "triton-gateway"
RESOURCES = {
    "v1": [("pods", "Pod", True)],
    "apps/v1": [("deployments", "Deployment", True)],
    "autoscaling/v2": [("horizontalpodautoscalers", "HorizontalPodAutoscaler", True)],
    "keda.sh/v1alpha1": [("scaledobjects", "ScaledObject", True)],
}  # fmt: skip


def discovery() -> dict[str, Any]:
    """What kubectl asks before it asks anything."""
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.4"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
            {"name": v.split("/")[0], "versions": [{"groupVersion": v, "version": v.split("/")[1]}],
             "preferredVersion": {"groupVersion": v, "version": v.split("/")[1]}} for v in RESOURCES if "/" in v]},
    }  # fmt: skip
    for version, resources in RESOURCES.items():
        path = "/api/v1" if version == "v1" else f"/apis/{version}"
        answers[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": [
            {"name": name, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced,
             "verbs": ["get", "list"]}
            for name, kind, namespaced in resources]}  # fmt: skip
    return answers


def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """One object."""
    version = next(v for v, found in RESOURCES.items() if any(kind == each[1] for each in found))
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


def listed(kind: str, *items: dict[str, Any]) -> dict[str, Any]:
    """A list of objects."""
    version = next(v for v, found in RESOURCES.items() if any(kind == each[1] for each in found))
    return {"apiVersion": version, "kind": f"{kind}List", "metadata": {}, "items": list(items)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Kubectl]]:
    """Start a server with these answers by path; returns kubectl pointed at it."""
    sites = ExitStack()

    def start(answers: dict[str, Any]) -> Kubectl:
        known = {**discovery(), **answers}

        def answer(asked: Asked) -> tuple[int, Any]:
            found = known.get(urlsplit(asked.path).path)
            if found is not None and not isinstance(found, int):
                return 200, found
            code = found or 404
            return code, {
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "reason": {403: "Forbidden", 404: "NotFound"}[code], "message": f"{asked.path}: {code}",
            }  # fmt: skip

        address = sites.enter_context(site(answer))
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
        }))  # fmt: skip
        program = tmp_path / "kubectl"
        program.write_text(
            f"#!/bin/sh\nexport KUBECONFIG={config} KUBECACHEDIR={tmp_path}/cache HOME={tmp_path}\n"
            f'unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY\nexec {kube_tools.unpacked("kubectl")} "$@"\n'
        )
        program.chmod(0o755)
        return Kubectl(NAMESPACE, program=str(program))

    with sites:
        yield start


def test_a_cluster_that_has_everything(cluster: Callable[[dict[str, Any]], Kubectl]) -> None:
    """Every question is one that the real kubectl understands, and its answer is read right."""
    inside = f"/namespaces/{NAMESPACE}"
    answers = {
        f"/apis/autoscaling/v2{inside}/horizontalpodautoscalers": listed("HorizontalPodAutoscaler", named(
            "HorizontalPodAutoscaler", "triton-gateway", status={"currentReplicas": 2}, spec={
                "scaleTargetRef": {"name": "triton-gateway"}, "minReplicas": 2, "maxReplicas": 9})),
        f"/apis/keda.sh/v1alpha1{inside}/scaledobjects": listed("ScaledObject", named(
            "ScaledObject", "triton", spec={"scaleTargetRef": {"name": "triton"}})),
        f"/apis/apps/v1{inside}/deployments": listed("Deployment", named(
            "Deployment", "triton-gateway", spec={"replicas": 2}, status={"readyReplicas": 2})),
        f"/api/v1{inside}/pods": listed("Pod"),
    }  # fmt: skip
    found = list(check(cluster(answers)))
    assert {"hpa/triton-gateway", "scaledobject/triton"} == {each.subject for each in found}
    assert {"ok"} == {each.state for each in found}


def test_an_empty_cluster_and_narrow_rights(cluster: Callable[[dict[str, Any]], Kubectl]) -> None:
    """Nothing deployed is a note; what may not be seen is said."""
    deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    [one] = check(cluster({deployments: listed("Deployment")}))
    assert ("deployments", "note") == (one.subject, one.state)
    [one] = check(cluster({deployments: 403}))
    assert ("cluster", "missing", True) == (one.subject, one.state, "orbidden" in one.detail)
