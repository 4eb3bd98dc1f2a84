"""More than one of us in a namespace: names by release, and selectors that stay within one release and one pool."""

from __future__ import annotations

import json

import pytest

from .objects import Objects, Render, entries, environment, labels_of, matches, named, pods

POOL = "triton-gateway/pool"


def names(objects: Objects) -> set[tuple[str, str]]:
    """Kinds and names."""
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


@pytest.mark.parametrize("values", ["gpu", "default", "dev", "existing"])
def test_two_releases_in_one_namespace_share_nothing(values: str, helm: Render) -> None:
    """No name twice; no selector finds pods of the other; no word of one's objects names the other's."""
    one, other = (helm(values, release=name) for name in ("team-a", "team-b"))
    assert set() == names(one) & names(other)
    assert "team-b" not in json.dumps(one)
    services = (each for each in entries(one, "selector") if "matchLabels" not in each)
    for selector in (*entries(one, "matchLabels"), *services):
        foreign = [name for name, labels, _ in pods(other) if matches(selector, labels)]
        assert not foreign or {"kubernetes.io/metadata.name"} == {*selector}, selector


def test_objects_are_named_and_called_after_their_release(helm: Render) -> None:
    """As Helm's own charts do it; where that name is `triton-gateway`, names are short."""
    assert {("Deployment", "tg-triton-gateway"), ("Service", "tg-triton-gateway-triton")} <= names(helm(release="tg"))
    assert ("Deployment", "ml-triton-gateway-triton") in names(helm(release="ml-triton-gateway"))
    assert names(helm()) == names(helm(release="tg", fullnameOverride='"triton-gateway"'))
    assert all(len(name) <= 63 for _, name in names(helm(release="r" * 53)))
    text = json.dumps(helm("dev", release="a"))
    assert "dns:///a-triton-gateway-triton:8001" in text
    assert "http://a-triton-gateway-controlplane:8008/files" in text
    assert '"name": "TRITON_GATEWAY_REPLICAS", "value": "a-triton-gateway-peers"' in text


POOLS = """[
    {"name": "h100", "gpus": 2, "nodeSelector": {"gpu": "h100"}, "autoscaling": {"max": 4}, "replicas": 3,
     "image": "nvcr.io/nvidia/tritonserver:25.08-py3"},
    {"name": "cpu", "engine": "python", "gpus": 0, "tolerations": [], "resources": {"limits": {"memory": "4Gi"}}}
]"""


def test_each_pool_is_a_tier_of_its_own(helm: Render) -> None:
    """Deployment, Service, budget and policy, none of which finds a pod of another pool; gateways are told of each."""
    objects = helm(release="a", triton__pools=POOLS)
    start = "a-triton-gateway"
    tritons = {name: labels for name, labels, _ in pods(objects) if POOL in labels}
    assert {f"{start}-triton": "default", f"{start}-triton-h100": "h100", f"{start}-triton-cpu": "cpu"} == {
        name: labels[POOL] for name, labels in tritons.items()
    }
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        for name in tritons:
            selector = labels_of(named(objects, kind, name)["spec"])
            assert [name] == [other for other, labels in tritons.items() if matches(selector, labels)], kind
        # A Deployment's selector can never be changed: the pool is in it from the beginning.
        assert "default" == labels_of(named(helm(), kind, "triton")["spec"])[POOL], kind
    for these, wanted in (
        (objects, f"h100=dns:///{start}-triton-h100:8001 cpu=dns:///{start}-triton-cpu:8001"),
        (helm(release="a"), None),
    ):
        [gateway] = named(these, "Deployment", start)["spec"]["template"]["spec"]["containers"]
        assert wanted == environment(these, gateway).get("TRITON_GATEWAY_POOLS")


def test_a_pool_is_what_triton_says_with_its_own_words_over_it(helm: Render) -> None:
    """Maps are laid over each other, lists and numbers replaced, as Helm does it with values; nought is a number."""
    objects = helm(triton__pools=POOLS)
    found = {}
    for name in ("triton", "triton-h100", "triton-cpu"):
        spec = named(objects, "Deployment", name)["spec"]
        pod = spec["template"]["spec"]
        triton, sync = pod["containers"]
        said = environment(objects, sync)
        found[name] = (
            triton["image"], triton["resources"]["limits"], pod.get("nodeSelector"), bool(pod.get("tolerations")),
            spec.get("replicas"), spec["strategy"]["rollingUpdate"]["maxSurge"],
            said["TRITON_GATEWAY_TRITON_ENGINE"], said.get("TRITON_GATEWAY_POOL"),
        )  # fmt: skip
    assert {
        "triton": ("triton-gateway-triton:0.1.0", {"memory": "8Gi", "nvidia.com/gpu": "1"}, None, True, None, 0,
                   "native", None),
        "triton-h100": ("nvcr.io/nvidia/tritonserver:25.08-py3", {"memory": "8Gi", "nvidia.com/gpu": "2"},
                        {"gpu": "h100"}, True, 3, 0, "native", "h100"),
        "triton-cpu": ("triton-gateway-triton-cpu:0.1.0", {"memory": "4Gi"}, None, False, None, 1, "python", "cpu"),
    } == found  # fmt: skip
