"""More than one of us in a namespace: names by release, and selectors that stay within one release and one pool."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .objects import Objects, labels_of, matches, named, pods

Render = Callable[..., Objects]

POOL = "triton-gateway/pool"


def names(objects: Objects) -> set[tuple[str, str]]:
    """Kinds and names."""
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


def selectors(value: Any, field: str = "") -> Iterator[dict[str, str]]:
    """Every set of labels that something selects pods or Services by, peers of policies included."""
    if isinstance(value, list):
        for each in value:
            yield from selectors(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if "matchLabels" == key or ("selector" == key and "matchLabels" not in each):
                yield each
            else:
                yield from selectors(each, key)


@pytest.mark.parametrize("values", ["gpu", "default", "dev", "existing"])
def test_two_releases_in_one_namespace_share_nothing(values: str, helm: Render) -> None:
    """No name twice; no selector finds pods of the other; no word of one's objects names the other's."""
    one, other = (helm(values, release=name) for name in ("team-a", "team-b"))
    assert set() == names(one) & names(other)
    for mine, others in ((one, other), (other, one)):
        for selector in selectors([each["spec"] for each in mine if "spec" in each]):
            foreign = [name for name, labels, _ in pods(others) if matches(selector, labels)]
            assert not foreign or {"kubernetes.io/metadata.name"} == {*selector}, selector
    assert "team-b" not in json.dumps(one)


def test_objects_are_named_after_their_release(helm: Render) -> None:
    """As Helm's own charts do it; where that name is `triton-gateway`, names are short."""
    assert {("Deployment", "tg-triton-gateway"), ("Service", "tg-triton-gateway-triton")} <= names(helm(release="tg"))
    assert ("Deployment", "ml-triton-gateway-triton") in names(helm(release="ml-triton-gateway"))
    assert names(helm()) == names(helm(release="tg", fullnameOverride='"triton-gateway"'))
    assert all(len(name) <= 63 for _, name in names(helm(release="r" * 53)))


def test_what_is_called_by_name_is_called_by_its_new_name(helm: Render) -> None:
    """Triton's Service, the control plane's, claims and ServiceAccounts."""
    objects = helm("dev", release="a")
    text = json.dumps(objects)
    assert "dns:///a-triton-gateway-triton:8001" in text
    assert "http://a-triton-gateway-controlplane:8008/files" in text
    assert '"name": "TRITON_GATEWAY_REPLICAS", "value": "a-triton-gateway-peers"' in text
    assert ("Service", "a-triton-gateway-peers") in names(objects)
    [account] = [each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"]
    assert "a-triton-gateway" == account


POOLS = """[
    {"name": "h100", "gpus": 2, "nodeSelector": {"gpu": "h100"}, "autoscaling": {"max": 4}, "replicas": 3,
     "image": "nvcr.io/nvidia/tritonserver:25.08-py3"},
    {"name": "cpu", "engine": "python", "gpus": 0, "tolerations": [], "resources": {"limits": {"memory": "4Gi"}}}
]"""


def test_each_pool_is_a_tier_of_its_own(helm: Render) -> None:
    """Deployment, Service, budget and policy, none of which finds a pod of another pool."""
    objects = helm(triton__pools=POOLS)
    tritons = {name: labels for name, labels, _ in pods(objects) if POOL in labels}
    assert {"triton": "default", "triton-h100": "h100", "triton-cpu": "cpu"} == {
        name: labels[POOL] for name, labels in tritons.items()
    }
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        for name in tritons:
            selector = labels_of(named(objects, kind, name)["spec"])
            assert [name] == [other for other, labels in tritons.items() if matches(selector, labels)], kind
        # A Deployment's selector can never be changed: the pool is in it from the beginning.
        assert "default" == labels_of(named(helm(), kind, "triton")["spec"])[POOL], kind


def test_a_pool_is_what_triton_says_with_its_own_words_over_it(helm: Render) -> None:
    """Maps are laid over each other, lists and numbers replaced, as Helm does it with values; nought is a number."""
    objects = helm(triton__pools=POOLS)
    found = {}
    for name in ("triton", "triton-h100", "triton-cpu"):
        spec = named(objects, "Deployment", name)["spec"]
        pod = spec["template"]["spec"]
        triton, sync = pod["containers"]
        found[name] = (
            triton["image"], triton["resources"]["limits"], pod.get("nodeSelector"), bool(pod.get("tolerations")),
            spec.get("replicas"), spec["strategy"]["rollingUpdate"]["maxSurge"],
            {each["name"]: each["value"] for each in sync["env"] if each["name"].endswith(("_POOL", "_ENGINE"))},
        )  # fmt: skip
    engine = "TRITON_GATEWAY_TRITON_ENGINE"
    assert {
        "triton": (
            "triton-gateway-triton:0.1.0", {"memory": "8Gi", "nvidia.com/gpu": "1"}, None, True, None, 0,
            {engine: "native"},
        ),
        "triton-h100": (
            "nvcr.io/nvidia/tritonserver:25.08-py3", {"memory": "8Gi", "nvidia.com/gpu": "2"}, {"gpu": "h100"}, True,
            3, 0, {engine: "native", "TRITON_GATEWAY_POOL": "h100"},
        ),
        "triton-cpu": (
            "triton-gateway-triton-cpu:0.1.0", {"memory": "4Gi"}, None, False, None, 1,
            {engine: "python", "TRITON_GATEWAY_POOL": "cpu"},
        ),
    } == found  # fmt: skip


def test_gateways_are_told_where_each_pool_is(helm: Render) -> None:
    """By the name of its headless Service; without pools nothing is said."""

    def addresses(objects: Objects) -> str | None:
        [gateway] = named(objects, "Deployment", "a-triton-gateway")["spec"]["template"]["spec"]["containers"]
        return {each["name"]: each.get("value") for each in gateway["env"]}.get("TRITON_GATEWAY_POOLS")

    assert "h100=dns:///a-triton-gateway-triton-h100:8001 cpu=dns:///a-triton-gateway-triton-cpu:8001" == addresses(
        helm(release="a", triton__pools=POOLS)
    )
    assert addresses(helm(release="a")) is None


def test_rules_and_boards_can_be_left_to_another_release(helm: Render) -> None:
    """What is scraped stays."""
    with_them, without = (names(helm(release="a", monitoring__rules=each)) for each in ("true", "false"))
    gone = with_them - without
    assert {"PrometheusRule", "ConfigMap"} == {kind for kind, _ in gone}
    assert all(kind == "PrometheusRule" or "-board-" in name for kind, name in gone)
    assert ("ConfigMap", "a-triton-gateway") in without
