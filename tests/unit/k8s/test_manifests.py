"""What the rendered manifests mean, where a schema says nothing: names that must meet, and rules that must hold."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from dashboards import boards
from deploy.controlplane import Credentials
from deploy.controlplane.app import build as build_controlplane
from deploy.controlplane.store import Store
from gateway.app import Gateway
from gateway.settings import Settings
from tests.fakes import FakeBackend, FakeRegistry
from tests.kube_tools import EVERY_RULE

from .objects import Objects, labels_of, matches, named, of, pods, read_settings, variables_of

VALUES = ("default", "gpu", "dev", "existing", "sync")

CUSTOM = {
    "monitoring.coreos.com/v1": {"ServiceMonitor", "PrometheusRule"},
    "keda.sh/v1alpha1": {"ScaledObject"},
}
"""Kinds of operators, for which no schema is at hand; anything else without a schema is a mistake."""

VERSIONS = ("1.28.0", "1.32.0", "1.37.0")
CREDENTIALS = {"CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY"}

Render = Callable[[str], Objects]


def containers(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and spec of every container."""
    for name, _, spec in pods(objects):
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield f"{name}/{container['name']}", container


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Variables with a value that is written down; like the kubelet, it replaces `$(NAME)` only if NAME came before."""
    found: dict[str, str] = {}
    for entry in container.get("env", []):
        if "value" in entry:
            value = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), entry["value"])
            found[entry["name"]] = value
    return found


@pytest.fixture(params=VALUES)
def objects(request: pytest.FixtureRequest, helm: Render) -> Objects:
    """The objects of each values file."""
    return helm(request.param)


# --- schemas -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_in_every_supported_version(objects: Objects, version: str) -> None:
    """Strictly: an unknown field, a wrong type and an API version that does not exist are failures."""
    for each in objects:
        if each["kind"] in CUSTOM.get(each["apiVersion"], ()):
            continue
        kubernetes_validate.validate(each, version, strict=True)


# --- names that must meet ----------------------------------------------------------------------------------------


def test_selectors_select(objects: Objects) -> None:
    """Services, budgets and policies each find exactly the pods they are named after."""
    labels = {name: each for name, each, _ in pods(objects)}
    for each in of(objects, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        found = [name for name, having in labels.items() if matches(labels_of(each["spec"]), having)]
        assert [each["metadata"]["name"].removesuffix("-peers")] == found, each
    for each in of(objects, "NetworkPolicy"):
        for peer in (peer for rule in each["spec"].get("ingress", []) for peer in rule.get("from", [])):
            assert any(matches(peer["podSelector"]["matchLabels"], having) for having in labels.values()), each


def test_every_pod_has_a_policy(objects: Objects) -> None:
    """What no policy selects may talk to everything."""
    policies = [each["spec"]["podSelector"]["matchLabels"] for each in of(objects, "NetworkPolicy")]
    assert [] == [name for name, labels, _ in pods(objects) if not any(matches(p, labels) for p in policies)]
    assert all(["Ingress"] == each["spec"]["policyTypes"] for each in of(objects, "NetworkPolicy"))


def test_ports_are_where_they_are_looked_for(objects: Objects) -> None:
    """Service targets, probes, policies and ServiceMonitors name ports that exist."""
    ports = {
        name: {p["name"]: p["containerPort"] for c in spec["containers"] for p in c.get("ports", [])}
        for name, _, spec in pods(objects)
    }
    for each in of(objects, "Service"):
        pod = each["metadata"]["name"].removesuffix("-peers")
        assert {p["targetPort"] for p in each["spec"]["ports"]} <= {*ports[pod]}
    for each in of(objects, "NetworkPolicy"):
        named = {p["port"] for r in each["spec"].get("ingress", []) for p in r.get("ports", [])}
        assert {p for p in named if isinstance(p, str)} <= {*ports[each["metadata"]["name"]]}
    services = {each["metadata"]["name"]: each for each in of(objects, "Service")}
    for each in of(objects, "ServiceMonitor"):
        found = [
            s for s in services.values() if matches(each["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])
        ]
        assert 1 == len(found), each["metadata"]["name"]
        assert {e["port"] for e in each["spec"]["endpoints"]} <= {p["name"] for p in found[0]["spec"]["ports"]}
    for name, container in containers(objects):
        own = {p["name"] for p in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in own, (name, probe)


def test_a_model_sync_that_ends_again_and_again_takes_no_triton_from_the_gateways(objects: Objects) -> None:
    """A pod is ready if all of its containers are: behind the name are all pods, and gateways call what answers."""
    for each in of(objects, "Service"):
        is_triton = each["metadata"]["labels"].get("app.kubernetes.io/component") == "triton"
        assert is_triton == each["spec"].get("publishNotReadyAddresses", False), each["metadata"]["name"]
        assert not is_triton or "None" == each["spec"]["clusterIP"]


def test_a_number_of_gateways_replaces_the_service_that_counts_them(helm: Callable[..., Objects]) -> None:
    """The variable is written once, and an object that nothing uses is not made."""
    objects = helm("gpu", gateway__extraEnv='[{"name": "TRITON_GATEWAY_REPLICAS", "value": "4"}]')
    assert [] == [each for each in of(objects, "Service") if each["metadata"]["name"].endswith("-peers")]
    [gateway] = [container for _, container in containers(objects) if kind_of(container) == "gateway"]
    assert ["4"] == [each["value"] for each in gateway["env"] if each["name"] == "TRITON_GATEWAY_REPLICAS"]


def test_targets_have_the_labels_that_rules_read(objects: Objects) -> None:
    """The job's name is set, not left to the operator; release and pool tell deployments apart; and the operator's
    `endpoint`, a port's name, does not hide the endpoint of our metrics.
    """
    for each in of(objects, "ServiceMonitor"):
        for endpoint in each["spec"]["endpoints"]:
            relabelled = {r.get("targetLabel"): r.get("replacement") for r in endpoint["relabelings"]}
            assert each["metadata"]["name"] == relabelled["job"]
            assert {"release"} | ({"pool"} if each["metadata"]["name"] == "triton" else set()) <= relabelled.keys()
            assert {"action": "labeldrop", "regex": "endpoint"} in endpoint["relabelings"]


def test_what_model_sync_lacks_is_scraped(objects: Objects) -> None:
    """Its Triton goes on without it, so that no probe says that nothing new is loaded."""
    services = {each["metadata"]["name"] for each in of(objects, "Service")}
    monitors = {each["metadata"]["name"] for each in of(objects, "ServiceMonitor")}
    if monitors:
        assert ("triton" in services) == ("model-sync" in monitors)
        assert ("controller" in services) == ("controller" in monitors)
    for each in of(objects, "NetworkPolicy"):
        if each["metadata"]["name"] == "triton" and "triton" in services:
            everybody = [rule for rule in each["spec"]["ingress"] if "from" not in rule]
            assert {"metrics", "health"} == {port["port"] for rule in everybody for port in rule["ports"]}


# --- probes ------------------------------------------------------------------------------------------------------


def paths_of(app: Any) -> set[str]:
    """Paths of the routes of an application."""
    return {route.path for route in app.routes if hasattr(route, "path")}


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Paths that each kind of container really answers."""
    folder = tmp_path_factory.mktemp("state")
    gateway = Gateway(Settings(state_dir=folder), registry=FakeRegistry(), make_backend=lambda _address: FakeBackend())
    store = Store(folder / "registry.sqlite3")
    controlplane = build_controlplane(state_dir=folder, store=store, credentials=Credentials.load_or_create(folder))
    store.close()
    source = (Path(__file__).parents[3] / "deploy" / "sync" / "health.py").read_text()
    return {
        "gateway": paths_of(gateway._ops),
        "controlplane": paths_of(controlplane),
        "sync": set(re.findall(r'path == "([^"]+)"', source)),
        "controller": {"/healthz"},
        # the Open Inference Protocol's; the real server answers them in tests/integration and in the container leg
        "triton": {"/v2/health/live", "/v2/health/ready"},
    }


def kind_of(container: Mapping[str, Any]) -> str:
    """What runs in a container of ours."""
    if container["name"] == "controller":
        return "controller"
    name = container["image"].rpartition("/")[2].partition(":")[0]
    ours = {"triton-gateway": "gateway", "triton-gateway-sync": "sync", "triton-gateway-controlplane": "controlplane"}
    return ours.get(name, "triton")


def test_probes_are_real_routes(objects: Objects, routes: Mapping[str, set[str]]) -> None:
    """A path that nobody answers would restart pods for ever."""
    for name, container in containers(objects):
        for probe in {"startupProbe", "readinessProbe", "livenessProbe"} & container.keys():
            assert container[probe]["httpGet"]["path"] in routes[kind_of(container)], (name, probe)
        if container["name"] in ("gateway", "triton", "sync", "controlplane"):
            assert {"readinessProbe", "livenessProbe"} <= container.keys(), name


def test_liveness_depends_on_nothing_outside(objects: Objects) -> None:
    """Restarting a pod repairs neither ClearML nor Triton; and a start may take a minute."""
    for name, container in containers(objects):
        if start := container.get("startupProbe"):
            live = container["livenessProbe"]["httpGet"]["path"]
            assert live in ("/livez", "/healthz", "/v2/health/live"), name
            assert start["httpGet"]["path"] == live
            assert start["failureThreshold"] * start["periodSeconds"] >= 60, name


# --- settings ----------------------------------------------------------------------------------------------------


CLEARML = {"CLEARML_API_HOST", "CLEARML_FILES_HOST", "CLEARML_WEB_HOST", *CREDENTIALS}


def test_every_variable_is_a_setting_of_the_command_that_runs(objects: Objects) -> None:
    """A misspelt variable would be ignored in silence."""
    for name, container in containers(objects):
        kind = kind_of(container)
        given = {entry["name"] for entry in container.get("env", [])}
        if kind == "triton":
            assert set() == given, name
            continue
        if container.get("command", [""])[0] == "python":
            assert given <= CLEARML, name
            continue
        arguments = container.get("args") or container["command"][2].split()[2:]
        assert given <= variables_of(arguments[0]) | CLEARML, name


def test_the_gateways_settings_are_usable(objects: Objects) -> None:
    """Every value passes the settings' own validation; no request may take longer than its gateway waits."""
    for name, container in containers(objects):
        if kind_of(container) == "gateway" and "TRITON_GATEWAY_TRITON_GRPC" in environment(container):
            found = read_settings(environment(container))
            assert ("0.0.0.0", 8080) == (found.host, found.port), name
            assert found.drain_timeout >= found.request_timeout, name


def test_secrets_are_referred_to_and_never_written(objects: Objects) -> None:
    """By name; needed, so that a pod without it says so. Only the key of a Triton of ours is made by the chart."""
    assert {"triton-gateway-triton-key"} >= {each["metadata"]["name"] for each in of(objects, "Secret")}
    for name, container in containers(objects):
        for entry in container.get("env", []):
            is_secret = any(word in entry["name"] for word in ("SECRET", "ACCESS_KEY", "PASSWORD", "TOKEN"))
            reference = entry.get("valueFrom", {}).get("secretKeyRef")
            assert is_secret == (reference is not None), (name, entry["name"])
            assert not is_secret or {*reference} == {"name", "key"}


def test_every_triton_of_ours_starts_with_a_key_that_sync_has_and_gateways_have_not(objects: Objects) -> None:
    """Whoever may load models runs code in Triton; a pod without the Secret says so instead of starting open."""
    made = [each["metadata"]["name"] for each in of(objects, "Secret")]
    for name, _, spec in pods(objects):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        kinds = {kind_of(container) for container in spec["containers"]}
        for container in spec["containers"]:
            words = [*container.get("args", []), *container.get("command", [])]
            if {"controlplane", "controller"} & {*words} or any("deploy.laptop.demo" in word for word in words):
                continue
            mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"].startswith("/keys")]
            if not made or kind_of(container) == "gateway":
                assert [] == mounts, "a Triton of others has none unless it is named"
                continue
            assert ["triton-key"] == [mount["name"] for mount in mounts], (name, container["name"])
            assert mounts[0]["readOnly"]
            source = volumes["triton-key"]["secret"]
            assert (made, [{"key": "key", "path": "triton"}]) == ([source["secretName"]], source["items"])
            assert bool(source.get("optional")) == ("triton" not in kinds), name


# --- hardening ---------------------------------------------------------------------------------------------------


def test_memory_is_guaranteed_and_cpu_is_not_throttled(objects: Objects) -> None:
    """Requests equal limits for memory; no CPU limit, whose throttling shows as p99."""
    for name, container in containers(objects):
        resources = container["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"], name
        assert "cpu" in resources["requests"], name
        assert "cpu" not in resources["limits"], name


def test_pods_are_nobody_on_a_read_only_root_without_a_token(objects: Objects) -> None:
    """Beyond the restricted Pod Security Standard, which tests/cluster has enforced."""
    for name, _, spec in pods(objects):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsUser"] >= 10000, name
    for name, container in containers(objects):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name


# --- scale and disruption ----------------------------------------------------------------------------------------


def test_autoscalers_ask_for_their_own_releases_and_pools_numbers(helm: Callable[..., Objects]) -> None:
    """KEDA by namespace, release and pool in each query; an HPA reads the CPU of its own pods."""
    pools = '[{"name": "large", "autoscaling": {"max": 4}}]'
    every = {"triton-gateway": None, "triton": "default", "triton-large": "large"}
    kind = {"autoscaling__gateway__by": '"keda"', "autoscaling__triton__by": '"keda"', "triton__pools": pools}
    scaled = of(helm(**kind), "ScaledObject")
    assert every.keys() == {each["spec"]["scaleTargetRef"]["name"] for each in scaled}
    for each in scaled:
        queries = [t["metadata"]["query"] for t in each["spec"]["triggers"] if t["type"] == "prometheus"]
        pool = every[each["metadata"]["name"]]
        own = 'namespace="triton-gateway",release=~"|triton-gateway"' + (f',pool="{pool}"' if pool else "")
        assert queries
        assert [] == [query for query in queries if f"{{{own}}}" not in query]
    hpas = of(helm("default", triton__pools=pools), "HorizontalPodAutoscaler")
    assert every.keys() == {each["spec"]["scaleTargetRef"]["name"] for each in hpas}
    assert {"triton": 16, "triton-large": 4}.items() <= {
        each["metadata"]["name"]: each["spec"]["maxReplicas"] for each in hpas
    }.items()  # fmt: skip
    assert {"Resource"} == {metric["type"] for each in hpas for metric in each["spec"]["metrics"]}


def test_a_pool_may_have_no_triton_while_nobody_asks(helm: Callable[..., Objects]) -> None:
    """By KEDA, with a trigger that wakes it, whose empty answer is nobody; never gateways, never by HPA."""
    asleep = '[{"name": "large", "autoscaling": {"min": 0}}]'
    found = {each["metadata"]["name"]: each["spec"] for each in of(helm(triton__pools=asleep), "ScaledObject")}
    assert (0, 2) == (found["triton-large"]["minReplicaCount"], found["triton"]["minReplicaCount"])
    # KEDA looks by itself only while there is none; beyond that an HPA does, and these would say what nobody does
    assert [{"pollingInterval"}, set()] == [
        {"pollingInterval", "cooldownPeriod"} & found[name].keys() for name in ("triton-large", "triton")
    ]
    *others, wakes = (each["metadata"] for each in found["triton-large"]["triggers"])
    assert re.fullmatch(r"max\(gateway_pool_waiting_requests\{.*\} > bool 0\)", wakes["query"]), "one, not one for each"
    assert ("true", {"false"}) == (wakes["ignoreNullValues"], {each["ignoreNullValues"] for each in others})
    for pairs in ({"autoscaling__gateway__min": "0"}, {"triton__pools": asleep, "autoscaling__triton__by": '"hpa"'}):
        with pytest.raises(AssertionError, match=r"min: 0 is possible only for Tritons"):
            helm(**pairs)


def test_model_sync_sees_the_processes_that_it_counts(objects: Objects) -> None:
    """The python backend's, of which a killed one is noticed by nobody else; other containers share nothing."""
    for name, _, spec in pods(objects):
        kinds = {kind_of(container) for container in spec["containers"]}
        engines = {environment(container).get("TRITON_GATEWAY_TRITON_ENGINE") for container in spec["containers"]}
        assert bool(spec.get("shareProcessNamespace")) == ("triton" in kinds and "python" in engines), name


def test_gateways_roll_without_a_gap_and_both_tiers_are_spread(objects: Objects) -> None:
    """A new pod first, then an old one less; over nodes, gateways also over zones."""
    for name, _, spec in pods(objects):
        if name in ("triton-gateway", "triton"):
            keys = {constraint["topologyKey"] for constraint in spec["topologySpreadConstraints"]}
            assert "kubernetes.io/hostname" in keys, name
            assert name == "triton" or "topology.kubernetes.io/zone" in keys
        strategy = named(objects, "Deployment", name)["spec"]["strategy"]
        assert name != "triton-gateway" or 0 == strategy["rollingUpdate"]["maxUnavailable"]
        assert (strategy["type"] == "Recreate") == (name in ("controlplane", "controller", "sync"))


def test_nobody_decides_twice_how_many_pods_there_are(objects: Objects) -> None:
    """One autoscaler per Deployment, and no `replicas` beside it; at least two, as a drain takes one away."""
    for each in of(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        spec = each["spec"]
        assert "replicas" not in named(objects, "Deployment", spec["scaleTargetRef"]["name"])["spec"]
        assert 2 <= spec.get("minReplicas", spec.get("minReplicaCount"))
        assert each["metadata"]["name"] == spec["scaleTargetRef"]["name"]


# --- helm --------------------------------------------------------------------------------------------------------


def test_the_charts_values_reach_the_objects(helm: Callable[..., Objects]) -> None:
    """Registry, tag, pull secrets, settings: what people change first."""
    objects = helm(
        image__registry='"registry.example.com/ml"', image__tag='"1.2"', image__pullSecrets='[{"name": "pull"}]',
        gateway__replicas=7, gateway__env='{"TRITON_GATEWAY_ACCESS_LOG": true}',
        networkPolicy__enabled="false", monitoring__enabled="false",
    )  # fmt: skip
    assert set() == {each["kind"] for each in objects} & {"NetworkPolicy", "ServiceMonitor", "PrometheusRule"}
    gateway = named(objects, "Deployment", "triton-gateway")["spec"]
    assert 7 == gateway["replicas"]
    assert [{"name": "pull"}] == gateway["template"]["spec"]["imagePullSecrets"]
    variables = environment(gateway["template"]["spec"]["containers"][0])
    assert "true" == variables["TRITON_GATEWAY_ACCESS_LOG"]
    images = [container["image"] for _, container in containers(objects)]
    ours = {f"registry.example.com/ml/triton-gateway{part}:1.2" for part in ("", "-sync", "-triton")}
    assert ours == {*images}
    objects = helm(triton__image='"nvcr.io/t:1"')
    assert "nvcr.io/t:1" in {container["image"] for _, container in containers(objects)}


def test_no_pods_is_a_number_of_pods(helm: Callable[..., Objects]) -> None:
    """`replicas: 0` is written down; only null leaves the number to the autoscaler."""
    for replicas, wanted in (("0", 0), ("3", 3), ("null", None)):
        objects = helm(gateway__replicas=replicas, triton__replicas=replicas)
        found = {each["metadata"]["name"]: each["spec"].get("replicas") for each in of(objects, "Deployment")}
        assert {"triton": wanted, "triton-gateway": wanted, "controller": 1} == found


def test_the_charts_grpc_port_is_opened_all_the_way(helm: Callable[..., Objects]) -> None:
    """Service, policy, container and setting, or none of them."""
    objects = helm(gateway__grpcPort="8088")
    assert {"http", "grpc"} == {port["name"] for port in named(objects, "Service", "triton-gateway")["spec"]["ports"]}
    gateway = next(container for name, container in containers(objects) if name == "triton-gateway/gateway")
    assert "8088" == environment(gateway)["TRITON_GATEWAY_GRPC_PORT"]
    assert 8088 in {port["containerPort"] for port in gateway["ports"]}
    policy = named(objects, "NetworkPolicy", "triton-gateway")
    assert {"http", "grpc"} == {port["port"] for port in policy["spec"]["ingress"][0]["ports"]}


def test_a_secret_of_keys_reaches_the_gateway_and_prometheus_has_its_own(helm: Callable[..., Objects]) -> None:
    """Prometheus' key, which is readable there, is not mounted beside the hashes."""
    by_itself = next(c for name, c in containers(helm()) if name == "triton-gateway/gateway")
    assert "true" == environment(by_itself)["TRITON_GATEWAY_ALLOW_ANONYMOUS"]
    objects = helm(gateway__keysSecret='"gateway-keys"', gateway__allowAnonymous="false")
    gateway = next(container for name, container in containers(objects) if name == "triton-gateway/gateway")
    assert "/callers/keys.json" == environment(gateway)["TRITON_GATEWAY_KEYS_FILE"]
    assert "TRITON_GATEWAY_ALLOW_ANONYMOUS" not in environment(gateway)
    assert "/callers" in {mount["mountPath"] for mount in gateway["volumeMounts"]}
    deployment = named(objects, "Deployment", "triton-gateway")
    [volume] = [v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "callers"]
    assert {"keys.json", "keys.json.pepper"} == {item["key"] for item in volume["secret"]["items"]}
    monitors = {each["metadata"]["name"]: each["spec"]["endpoints"][0] for each in of(objects, "ServiceMonitor")}
    assert {"name": "gateway-keys", "key": "prometheus"} == monitors["triton-gateway"]["authorization"]["credentials"]
    assert "authorization" not in monitors["triton"]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"triton__enabled": "false"}, "triton.address"),
        ({"sync__claim": '"c"'}, "sync.address"),
        ({"gatway": "{}"}, "gatway"),
        ({"autoscaling__gateway__min": "9", "autoscaling__gateway__max": "8"}, "autoscaling.gateway.min"),
        ({"gateway__drainTimeout": '"300s"'}, "gateway.terminationGracePeriodSeconds: at least 317"),
        ({"triton__preStopSeconds": "26"}, "triton.terminationGracePeriodSeconds: at least 61"),
        (
            {"triton__pools": '[{"name": "a", "terminationGracePeriodSeconds": 49}]'},
            "triton.pools: a.terminationGracePeriodSeconds: at least 50",
        ),
        ({"gateway__grpcPort": "8080"}, "grpcPort"),
        ({"gateway__allowAnonymous": "false"}, "gateway: set keysSecret"),
        ({"gateway__env": '{"TRITON_GATEWAY_DRAIN_TIMEOUT": "300s"}'}, "gateway.env.TRITON_GATEWAY_DRAIN_TIMEOUT"),
        ({"gateway__env": '{"CLEARML_API_HOST": "http://elsewhere"}'}, "gateway.env.CLEARML_API_HOST"),
        ({"triton__pools": '[{"name": "default"}]'}, "two pools are called default"),
        ({"triton__pools": '[{"name": "a", "gpu": 1}]'}, "gpu"),
        ({"triton__pools": '[{"name": "a"}]', "triton__enabled": "false"}, "triton.pools: needs"),
        # of two entries with one name, Kubernetes takes the last without a word, and server-side apply refuses both
        (
            {"gateway__extraEnv": '[{"name": "TRITON_GATEWAY_PORT", "value": "9"}]'},
            "extraEnv: TRITON_GATEWAY_PORT",
        ),
        ({"gateway__extraEnv": '[{"name": "A", "value": "1"}]', "gateway__env": '{"A": "2"}'}, "extraEnv: A is set"),
        (
            {"sync__extraEnv": '[{"name": "CLEARML_API_ACCESS_KEY", "value": "k"}]'},
            "extraEnv: CLEARML_API_ACCESS_KEY",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused(pairs: dict[str, str], said: str, helm: Callable[..., Objects]) -> None:
    """With the value's name: not an object that never starts."""
    with pytest.raises(AssertionError, match=said):
        helm(**pairs)


def test_alerts_link_to_where_the_runbook_is(helm: Callable[..., Objects]) -> None:
    """In the repository, if nobody says another address."""
    for pairs, start in (({}, "docs/on-call.md"), ({"monitoring__runbook": '"https://wiki/r"'}, "https://wiki/r")):
        [rule] = of(helm(**pairs), "PrometheusRule")
        alerts = [each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each]
        assert {f"{start}#{each['alert'].lower()}" for each in alerts} == {
            each["annotations"]["runbook_url"] for each in alerts
        }


def test_rules_are_those_of_the_dashboards_package(objects: Objects) -> None:
    """Same rules in the same order; every board is there, small enough for `kubectl apply`."""
    if not of(objects, "PrometheusRule"):
        return
    rule = of(objects, "PrometheusRule")[0]
    assert EVERY_RULE == [each for group in rule["spec"]["groups"] for each in group["rules"]]
    configs = [each for each in of(objects, "ConfigMap") if each["metadata"]["name"] != "triton-gateway"]
    assert {*boards.files()} == set(itertools.chain.from_iterable(each["data"] for each in configs))
    for each in configs:
        assert "1" == each["metadata"]["labels"]["grafana_dashboard"]
        assert len(next(iter(each["data"].values()))) < 200_000, "client-side apply keeps a copy in an annotation"
