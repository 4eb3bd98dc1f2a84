"""What the rendered manifests mean, where a schema says nothing: names that must meet, and rules that must hold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest

from dashboards import boards
from tests.kube_tools import EVERY_RULE

from .objects import (
    Objects,
    Render,
    containers,
    environment,
    labels_of,
    matches,
    named,
    of,
    pods,
    read_settings,
    variables_of,
)

CUSTOM = {
    "monitoring.coreos.com/v1": {"ServiceMonitor", "PrometheusRule"},
    "keda.sh/v1alpha1": {"ScaledObject"},
}
"""Kinds of operators, for which no schema is at hand; anything else without a schema is a mistake."""
CREDENTIALS = {"CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"}
CLEARML = {"CLEARML_API_HOST", "CLEARML_FILES_HOST", "CLEARML_WEB_HOST", *CREDENTIALS}
LIVE = {
    "gateway": "/livez", "controlplane": "/healthz", "sync": "/livez", "controller": "/healthz",
    "triton": "/v2/health/live",
}  # fmt: skip
"""Where each kind of container says that it lives, whatever the state of ClearML and of Triton."""
READY = {"gateway": "/readyz", "controlplane": "/healthz", "sync": "/readyz", "triton": "/v2/health/ready"}


@pytest.fixture(params=("default", "gpu", "dev", "existing", "sync"))
def objects(request: pytest.FixtureRequest, helm: Render) -> Objects:
    """The objects of each values file."""
    return helm(request.param)


def kind_of(container: Mapping[str, Any]) -> str:
    """What runs in a container of ours."""
    if container["name"] == "controller":
        return "controller"
    name = container["image"].rpartition("/")[2].partition(":")[0]
    ours = {"triton-gateway": "gateway", "triton-gateway-sync": "sync", "triton-gateway-controlplane": "controlplane"}
    return ours.get(name, "triton")


@pytest.mark.parametrize("version", ["1.28.0", "1.32.0", "1.37.0"])
def test_every_object_is_valid_in_every_supported_version(objects: Objects, version: str) -> None:
    """Strictly: an unknown field, a wrong type and an API version that does not exist are failures."""
    for each in objects:
        if each["kind"] not in CUSTOM.get(each["apiVersion"], ()):
            kubernetes_validate.validate(each, version, strict=True)


def test_selectors_select(objects: Objects) -> None:
    """Services, budgets and policies each find exactly the pods they are named after; no pod is without a policy."""
    labels = {name: each for name, each, _ in pods(objects)}
    for each in of(objects, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        found = [name for name, having in labels.items() if matches(labels_of(each["spec"]), having)]
        assert [each["metadata"]["name"].removesuffix("-peers")] == found, each
    policies = of(objects, "NetworkPolicy")
    assert labels.keys() == {each["metadata"]["name"] for each in policies}
    for each in policies:
        assert ["Ingress"] == each["spec"]["policyTypes"]
        for peer in (peer for rule in each["spec"].get("ingress", []) for peer in rule.get("from", [])):
            assert any(matches(peer["podSelector"]["matchLabels"], having) for having in labels.values()), each


def test_ports_are_where_they_are_looked_for(objects: Objects) -> None:
    """Service targets, policies and ServiceMonitors name ports that exist."""
    ports = {
        name: {p["name"] for c in spec["containers"] for p in c.get("ports", [])} for name, _, spec in pods(objects)
    }
    services = of(objects, "Service")
    for each in services:
        pod = each["metadata"]["name"].removesuffix("-peers")
        assert {p["targetPort"] for p in each["spec"]["ports"]} <= ports[pod]
        # A pod is ready if its model sync is, too; gateways call every Triton that answers.
        is_triton = each["metadata"]["labels"].get("app.kubernetes.io/component") == "triton"
        assert is_triton == each["spec"].get("publishNotReadyAddresses", False), pod
        assert not is_triton or "None" == each["spec"]["clusterIP"]
    for each in of(objects, "NetworkPolicy"):
        named = {p["port"] for r in each["spec"].get("ingress", []) for p in r.get("ports", [])}
        assert {p for p in named if isinstance(p, str)} <= ports[each["metadata"]["name"]]
    for each in of(objects, "ServiceMonitor"):
        selector = each["spec"]["selector"]["matchLabels"]
        [found] = [one for one in services if matches(selector, one["metadata"]["labels"])]
        assert {e["port"] for e in each["spec"]["endpoints"]} <= {p["name"] for p in found["spec"]["ports"]}


def test_targets_have_the_labels_that_rules_read(objects: Objects) -> None:
    """The job's name is set, not left to the operator; release and pool tell deployments apart; and the operator's
    `endpoint`, a port's name, does not hide the endpoint of our metrics. Whoever can fail unseen is a target.
    """
    monitors = {each["metadata"]["name"]: each["spec"]["endpoints"] for each in of(objects, "ServiceMonitor")}
    for name, endpoints in monitors.items():
        for endpoint in endpoints:
            relabelled = {r.get("targetLabel"): r.get("replacement") for r in endpoint["relabelings"]}
            assert name == relabelled["job"]
            assert {"release"} | ({"pool"} if name == "triton" else set()) <= relabelled.keys()
            assert {"action": "labeldrop", "regex": "endpoint"} in endpoint["relabelings"]
    services = {each["metadata"]["name"] for each in of(objects, "Service")}
    for service, monitor in (("triton", "model-sync"), ("controller", "controller")):
        assert not monitors or (service in services) == (monitor in monitors)


def test_every_container_can_run(objects: Objects) -> None:
    """Its probes are routes of its own that depend on nothing outside; its variables are settings of its command: a
    misspelt one would be ignored in silence; secrets are referred to by name; memory is guaranteed, CPU not throttled.
    """
    for name, container in containers(objects):
        kind = kind_of(container)
        is_ours_to_watch = container["name"] in ("gateway", "triton", "sync", "controlplane")
        assert not is_ours_to_watch or {"readinessProbe", "livenessProbe"} <= container.keys(), name
        own = {p["name"] for p in container.get("ports", [])}
        for probe, paths in (("startupProbe", LIVE), ("livenessProbe", LIVE), ("readinessProbe", READY)):
            if found := container.get(probe, {}).get("httpGet"):
                assert (paths[kind], True) == (found["path"], found["port"] in own), (name, probe)
        if start := container.get("startupProbe"):
            assert start["failureThreshold"] * start["periodSeconds"] >= 60, name

        given = {entry["name"] for entry in container.get("env", [])}
        if kind == "triton":
            assert set() == given, name
        elif container.get("command", [""])[0] == "python":
            assert given <= CLEARML, name
        else:
            arguments = container.get("args") or container["command"][2].split()[2:]
            assert given <= variables_of(arguments[0]) | CLEARML, name
        said = environment(objects, container)
        if kind == "gateway" and "TRITON_GATEWAY_TRITON_GRPC" in said:
            settings = read_settings(said)
            assert ("0.0.0.0", 8080) == (settings.host, settings.port), name
            assert settings.drain_timeout >= settings.request_timeout, name
        for entry in container.get("env", []):
            is_secret = any(word in entry["name"] for word in ("SECRET", "ACCESS_KEY", "PASSWORD", "TOKEN"))
            reference = entry.get("valueFrom", {}).get("secretKeyRef", {})
            assert ({"name", "key"} if is_secret else set()) == {*reference}, (name, entry["name"])

        resources = container["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"], name
        assert ("cpu" in resources["requests"], "cpu" in resources["limits"]) == (True, False), name


def test_every_triton_of_ours_starts_with_a_key_that_sync_has_and_gateways_have_not(objects: Objects) -> None:
    """Whoever may load models runs code in Triton; a pod without the Secret says so instead of starting open. Model
    sync sees the processes of the python backend, of which a killed one is noticed by nobody else.
    """
    made = [each["metadata"]["name"] for each in of(objects, "Secret")]
    assert {"triton-gateway-triton-key"} >= {*made}
    for name, _, spec in pods(objects):
        keys = [volume["secret"] for volume in spec.get("volumes", []) if volume["name"] == "triton-key"]
        kinds = {}
        for container in spec["containers"]:
            mounts = [one for one in container.get("volumeMounts", []) if one["mountPath"].startswith("/keys")]
            kinds[kind_of(container)] = [(one["name"], one["readOnly"]) for one in mounts]
        holders = {kind for kind, mounts in kinds.items() if mounts}
        # A Triton of others has none unless it is named.
        assert holders == ({"sync", "triton"} & kinds.keys() if made else set()), name
        for kind in holders:
            assert [("triton-key", True)] == kinds[kind]
            assert (made, [{"key": "key", "path": "triton"}]) == ([keys[0]["secretName"]], keys[0]["items"])
            assert bool(keys[0].get("optional")) == ("triton" not in kinds), name
        engines = {environment(objects, one).get("TRITON_GATEWAY_TRITON_ENGINE") for one in spec["containers"]}
        assert bool(spec.get("shareProcessNamespace")) == ("triton" in kinds and "python" in engines), name


def test_gateways_roll_without_a_gap_and_both_tiers_are_spread(objects: Objects) -> None:
    """A new pod first, then an old one less; over nodes, gateways also over zones. One autoscaler per Deployment, no
    `replicas` beside it, and at least two, as a drain takes one away.
    """
    for name, _, spec in pods(objects):
        keys = {constraint["topologyKey"] for constraint in spec.get("topologySpreadConstraints", [])}
        assert name not in ("triton-gateway", "triton") or "kubernetes.io/hostname" in keys, name
        assert name != "triton-gateway" or "topology.kubernetes.io/zone" in keys
        strategy = named(objects, "Deployment", name)["spec"]["strategy"]
        assert name != "triton-gateway" or 0 == strategy["rollingUpdate"]["maxUnavailable"]
        assert (strategy["type"] == "Recreate") == (name in ("controlplane", "controller", "sync"))
    for each in of(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        spec = each["spec"]
        assert "replicas" not in named(objects, "Deployment", spec["scaleTargetRef"]["name"])["spec"]
        assert 2 <= spec.get("minReplicas", spec.get("minReplicaCount"))


def test_rules_are_those_of_the_dashboards_package(objects: Objects) -> None:
    """Same rules in the same order; every board is there, small enough for `kubectl apply`."""
    if not (rules := of(objects, "PrometheusRule")):
        return
    assert EVERY_RULE == [each for group in rules[0]["spec"]["groups"] for each in group["rules"]]
    configs = [each for each in of(objects, "ConfigMap") if each["metadata"]["name"] != "triton-gateway"]
    assert {*boards.files()} == set(itertools.chain.from_iterable(each["data"] for each in configs))
    for each in configs:
        assert "1" == each["metadata"]["labels"]["grafana_dashboard"]
        assert len(next(iter(each["data"].values()))) < 200_000, "client-side apply keeps a copy in an annotation"
