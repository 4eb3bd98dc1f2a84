"""What values of the chart reach: settings, autoscalers, policies, TLS; and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dashboards import rules
from tests.kube_tools import RECORDS

from .objects import Objects, Render, containers, entries, environment, named, of

ROOT = Path(__file__).parents[3]


def pod(objects: Objects, name: str) -> dict[str, Any]:
    """The pod of a Deployment."""
    return dict(named(objects, "Deployment", name)["spec"]["template"])


def one(objects: Objects, place: str) -> dict[str, Any]:
    """The container POD/NAME."""
    return dict(containers(objects))[place]


def variables(objects: Objects, place: str) -> dict[str, str]:
    """What the environment of the container POD/NAME says in the end."""
    return environment(objects, one(objects, place))


PLACED = {
    "affinity": {"nodeAffinity": {}}, "priorityClassName": "high", "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "k", "operator": "Exists"}], "initContainers": [{"name": "first", "image": "busybox:1"}],
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    "extraVolumes": [{"name": "own", "emptyDir": {}}], "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
    "extraEnv": [{"name": "OWN", "value": "1"}], "podLabels": {"team": "ml"}, "podAnnotations": {"note": "x"},
}  # fmt: skip
"""What a real cluster asks of every chart, without a patch."""
FRAGMENTS = [json.dumps(value, sort_keys=True)[1:-1] for value in PLACED.values()]
GATEWAY, POLICY = "Deployment/triton-gateway", "NetworkPolicy/triton-gateway"
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ({"gateway__grpcPort": "8088"},
         {GATEWAY: ['"containerPort": 8088', '"TRITON_GATEWAY_GRPC_PORT", "value": "8088"'], POLICY: ['"port": "grpc"'],
          "Service/triton-gateway": ['"port": 8088', '"targetPort": "grpc"']}),
        # Prometheus' key, which is readable there, is not mounted beside the hashes.
        ({"gateway__keysSecret": '"gateway-keys"', "gateway__allowAnonymous": "false"},
         {GATEWAY: ['"TRITON_GATEWAY_KEYS_FILE", "value": "/callers/keys.json"', '"mountPath": "/callers"',
                    '"secretName": "gateway-keys", "items": [{"key": "keys.json", "path": "keys.json"}]'],
          "ServiceMonitor/triton-gateway": ['"credentials": {"name": "gateway-keys", "key": "prometheus"}']}),
        ({"gateway__tls__secret": '"gateway-tls"'},
         {GATEWAY: ['"TRITON_GATEWAY_TLS", "value": "/tls"', '"mountPath": "/tls"', '"secretName": "gateway-tls"',
                    *(f'"{probe}Probe": {{"httpGet": {{"path": "/{path}", "port": "http", "scheme": "HTTPS"}}'
                      for probe, path in (("startup", "livez"), ("readiness", "readyz"), ("liveness", "livez")))],
          "ServiceMonitor/triton-gateway": ['"scheme": "https"', '"tlsConfig": {"insecureSkipVerify": true}']}),
        ({"gateway__ingress": '{"enabled": true, "hosts": ["models.example"]}'},
         {"Ingress/triton-gateway": ['"models.example"', '{"name": "triton-gateway", "port": {"name": "http"}}']}),
        ({"networkPolicy__callers": json.dumps([PEER])}, {POLICY: [json.dumps(PEER)]}),
        ({f"gateway__{key}": json.dumps(value) for key, value in PLACED.items()}, {GATEWAY: FRAGMENTS}),
        ({f"triton__{key}": json.dumps(value) for key, value in PLACED.items()}, {"Deployment/triton": FRAGMENTS}),
        ({"triton__runtimeClassName": '"nvidia"'}, {"Deployment/triton": ['"runtimeClassName": "nvidia"']}),
        ({"triton__image": '"nvcr.io/t:1"', "securityContext__privileged": "true"},
         {"Deployment/triton": ['"image": "nvcr.io/t:1"', '"privileged": true']}),
        ({"gateway__replicas": "0", "triton__replicas": "0", "image__pullSecrets": '[{"name": "pull"}]'},
         {GATEWAY: ['"replicas": 0', '"imagePullSecrets": [{"name": "pull"}]'],
          "Deployment/triton": ['"replicas": 0']}),
    ],
    ids=["gRPC", "keys", "TLS", "ingress", "callers", "gateways", "Tritons", "runtime", "image", "no pods"],
)  # fmt: skip
def test_a_value_reaches_every_object_that_it_concerns(
    helm: Render, pairs: dict[str, str], found: dict[str, list[str]]
) -> None:
    """All the way, from the Service to the container; without it nothing of the kind is there."""
    before, after = (
        {f"{each['kind']}/{each['metadata']['name']}": json.dumps(each) for each in objects}
        for objects in (helm(), helm(**pairs))
    )
    for name, fragments in found.items():
        assert fragments == [fragment for fragment in fragments if fragment in after[name]], name
        assert [] == [fragment for fragment in fragments if fragment in before.get(name, "")], name
    if "gateway__allowAnonymous" in pairs:
        assert (True, False) == tuple("TRITON_GATEWAY_ALLOW_ANONYMOUS" in each[GATEWAY] for each in (before, after))


def test_what_people_change_first_reaches_the_objects(helm: Render) -> None:
    """Registry, tag, settings, runbook. A number of gateways replaces the Service that counts them."""
    objects = helm(
        image__registry='"registry.example.com/ml"', image__tag='"1.2"', monitoring__runbook='"https://wiki/r"',
        gateway__env='{"TRITON_GATEWAY_ACCESS_LOG": true}', networkPolicy__enabled="false",
        gateway__extraEnv='[{"name": "TRITON_GATEWAY_REPLICAS", "value": "4"}]',
    )  # fmt: skip
    assert [] == of(objects, "NetworkPolicy")
    found = variables(objects, "triton-gateway/gateway")
    assert ("true", "4") == (found["TRITON_GATEWAY_ACCESS_LOG"], found["TRITON_GATEWAY_REPLICAS"])
    assert not [each for each in of(objects, "Service") if each["metadata"]["name"].endswith("-peers")]
    ours = {f"registry.example.com/ml/triton-gateway{part}:1.2" for part in ("", "-sync", "-triton")}
    assert ours == {container["image"] for _, container in containers(objects)}
    assert {"https://wiki/r"} == {link.partition("#")[0] for link in entries(objects, "runbook_url")}


def test_the_server_is_said_once_for_gateways_and_sync(helm: Render) -> None:
    """In a ConfigMap, which alone would reach only pods that start later: another server makes other pods."""
    objects, before = helm(clearml__apiHost='"https://api.example"', clearml__servingTaskId='"0a1b"'), helm()
    for name, container in (("triton-gateway", "gateway"), ("triton", "sync")):
        found = variables(objects, f"{name}/{container}")
        assert ("https://api.example", "0a1b") == (found["CLEARML_API_HOST"], found["CLEARML_SERVING_TASK_ID"])
        assert pod(before, name)["metadata"]["annotations"] != pod(objects, name)["metadata"]["annotations"]
    assert "CLEARML_SERVING_TASK_ID" not in variables(before, "triton-gateway/gateway")
    # Of sixteen hexadecimal digits some are a number, and the API refuses an annotation that is one.
    for notes in entries(helm(arguments=["--set-string", "clearml.servingTaskId=1"]), "annotations"):
        assert all(isinstance(value, str) for value in notes.values())


def test_gateways_for_a_triton_of_others_need_nothing_of_its_namespace(helm: Render) -> None:
    """Claims belong to one namespace: model sync goes to the Triton's, gateways may be anywhere."""
    gateways, sync = helm("existing"), helm("sync")
    assert [] == [*entries(gateways, "persistentVolumeClaim")]
    assert [{"claimName": "triton-models"}] == [*entries(sync, "persistentVolumeClaim")]
    assert ["sync"] == [each["metadata"]["name"] for each in of(sync, "Deployment")]


# --- autoscalers -------------------------------------------------------------------------------------------------

ASLEEP = '[{"name": "large", "autoscaling": {"min": 0}}]'


def scalers(objects: Objects, kind: str) -> dict[str, dict[str, Any]]:
    """The specs of autoscalers by the Deployment that they scale."""
    return {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in of(objects, kind)}


def asked(scaled: dict[str, Any]) -> list[dict[str, str]]:
    """What KEDA asks Prometheus."""
    return [each["metadata"] for each in scaled["triggers"] if each["type"] == "prometheus"]


def test_autoscalers_ask_for_their_own_releases_and_pools_numbers(helm: Render) -> None:
    """KEDA by namespace, release and pool, for recorded series, so that boards read the same; an HPA reads the CPU of
    its own pods, within the same bounds and as fast. What is unknown takes nothing away.
    """
    pools = {"triton__pools": '[{"name": "large", "autoscaling": {"max": 4}}]'}
    by = {f"autoscaling__{tier}__by": '"keda"' for tier in ("gateway", "triton")}
    keda = scalers(helm("default", **pools, **by), "ScaledObject")
    hpas = scalers(helm("default", **pools), "HorizontalPodAutoscaler")
    pool_of = {"triton-gateway": None, "triton": "default", "triton-large": "large"}
    assert pool_of.keys() == keda.keys() == hpas.keys()
    assert (16, 4) == tuple(hpas[name]["maxReplicas"] for name in ("triton", "triton-large"))
    for name, pool in pool_of.items():
        own = 'namespace="triton-gateway",release=~"|triton-gateway"' + (f',pool="{pool}"' if pool else "")
        queries = [each["query"] for each in asked(keda[name])]
        assert (2, []) == (len(queries), [query for query in queries if f"{{{own}}}" not in query])
        ours, scaled = hpas[name], keda[name]
        assert (ours["minReplicas"], ours["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
        assert ours["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert ["cpu"] == [metric["resource"]["name"] for metric in ours["metrics"]]
        assert {"false"} == {each["ignoreNullValues"] for each in asked(scaled)}
        assert "currentReplicasIfHigher" == scaled["fallback"]["behavior"]
    recorded = re.findall(r"\bmax\(([\w:]+){", json.dumps([asked(each) for each in keda.values()]))
    assert {rules.WORK, "job:gateway_hold:total", rules.WANTED_BY_QUEUE, rules.WANTED_BY_LOAD} == {*recorded}
    assert {*recorded} <= RECORDS.keys()


def test_a_pool_may_have_no_triton_while_nobody_asks(helm: Render) -> None:
    """By KEDA, with a trigger that wakes it, whose empty answer is nobody; never gateways, never by HPA."""
    found = scalers(helm(triton__pools=ASLEEP), "ScaledObject")
    assert (0, 2) == (found["triton-large"]["minReplicaCount"], found["triton"]["minReplicaCount"])
    # KEDA looks by itself only while there is none; beyond that an HPA does, and these would say what nobody does
    assert [{"pollingInterval"}, set()] == [
        {"pollingInterval", "cooldownPeriod"} & found[name].keys() for name in ("triton-large", "triton")
    ]
    *others, wakes = asked(found["triton-large"])
    assert re.fullmatch(r"max\(gateway_pool_waiting_requests\{.*\} > bool 0\)", wakes["query"]), "one, not one for each"
    assert ("true", {"false"}) == (wakes["ignoreNullValues"], {each["ignoreNullValues"] for each in others})


def test_arguments_are_added_to_those_of_the_image(helm: Render) -> None:
    """NVIDIA's are in its entrypoint; the CPU server's are its image's command, which arguments replace. Model sync's
    wherever it runs.
    """
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    [own] = [json.loads(line[4:]) for line in dockerfile.splitlines() if line.startswith('CMD ["triton"')]
    for values, before in (("gpu", []), ("default", own)):
        changed = one(helm(values, triton__extraArgs='["--log-verbose=1"]'), "triton/triton")
        assert [*before, "--log-verbose=1"] == changed["args"]
        assert "args" not in one(helm(values), "triton/triton")
    for values, place in (("gpu", "triton/sync"), ("sync", "sync/sync")):
        assert ["sync", "--x=1"] == one(helm(values, sync__extraArgs='["--x=1"]'), place)["args"]


def trusted(objects: Objects, place: str) -> dict[str, str]:
    """The TLS variables of a container, with the files in their folder; what arguments name lies in a Secret."""
    found = one(objects, place)
    mounts = {each["mountPath"]: each["name"] for each in found["volumeMounts"]}
    volumes = {each["name"]: each for each in pod(objects, place.partition("/")[0])["spec"]["volumes"]}
    start = "TRITON_GATEWAY_TRITON_TLS"
    said = {name.removeprefix(start): v for name, v in variables(objects, place).items() if name.startswith(start)}
    for path in (each.partition("=")[2] for each in found.get("args", []) if re.match("--grpc-(server|root)-", each)):
        folder, _, file = path.rpartition("/")
        source = volumes[mounts[folder]]["secret"]
        assert source["secretName"]
        assert file in {each["path"] for each in source.get("items", [{"path": file}])}, path
    if "" in said:
        sources = volumes[mounts[said.pop("")]]["projected"]["sources"]
        said |= {item["path"]: each["secret"]["name"] for each in sources for item in each["secret"]["items"]}
    return said


AUTHORITY = {"ca.crt": "triton-tls"}


@pytest.mark.parametrize("values", ["gpu", "default"])
def test_triton_its_model_sync_and_gateways_speak_tls_or_none_does(helm: Render, values: str) -> None:
    """With an authority of its own; loopback has no name, so model sync expects that of the Service."""
    objects = helm(values, triton__tls__secret='"triton-tls"', triton__pools='[{"name": "big"}]')
    assert AUTHORITY == trusted(objects, "triton-gateway/gateway")
    for name in ("triton", "triton-big"):
        assert AUTHORITY | {"_NAME": name} == trusted(objects, f"{name}/sync")
        assert {} == trusted(objects, f"{name}/triton")
        arguments = one(objects, f"{name}/triton")["args"]
        assert "--grpc-use-ssl=true" in arguments
        assert values != "default" or "triton" == arguments[0]
    # The gateways' volumes do not hold Triton's key.
    secrets = [each for each in entries(pod(objects, "triton-gateway"), "secret") if "items" not in each]
    assert "triton-tls" not in {each.get("secretName") for each in secrets}
    # Models are not called over HTTP, which has no TLS in Triton.
    [rule, _] = named(objects, "NetworkPolicy", "triton")["spec"]["ingress"]
    assert ["grpc"] == [each["port"] for each in rule["ports"]]
    assert "TRITON_TLS" not in json.dumps(helm(values))


def test_triton_asks_for_certificates_that_gateways_and_model_sync_have(helm: Render) -> None:
    """Mutual TLS. A Triton outside the chart is trusted by its authority, and by the name of its address unless another
    is said.
    """
    objects = helm(triton__tls='{"secret": "triton-tls", "clientSecret": "client-tls"}')
    pair = {"tls.crt": "client-tls", "tls.key": "client-tls"}
    for place in ("triton-gateway/gateway", "triton/sync"):
        assert pair.items() <= trusted(objects, place).items()
    arguments = one(objects, "triton/triton")["args"]
    assert ["--grpc-use-ssl-mutual=true"] == [each for each in arguments if "use-ssl" in each]
    for values, place in (("existing", "triton-gateway/gateway"), ("sync", "sync/sync")):
        assert AUTHORITY == trusted(helm(values, triton__tls__secret='"triton-tls"'), place)
        objects = helm(values, triton__tls='{"secret": "triton-tls", "name": "triton.example"}')
        assert AUTHORITY | {"_NAME": "triton.example"} == trusted(objects, place)


def test_the_service_account_and_the_user_of_pods_are_values(helm: Render) -> None:
    """One account for all pods, for roles of a cloud; another one's, or none; and ids that OpenShift chooses."""
    [account] = of(helm("dev", serviceAccount__annotations='{"role": "arn"}'), "ServiceAccount")
    assert ({"role": "arn"}, False) == (account["metadata"]["annotations"], account["automountServiceAccountToken"])
    for create, name, wanted in (("false", "", "default"), ("false", "own", "own"), ("true", "own", "own")):
        objects = helm("dev", serviceAccount__create=create, serviceAccount__name=f'"{name}"')
        assert {wanted} == {*entries(objects, "serviceAccountName")}
        assert (create == "true") == bool(of(objects, "ServiceAccount"))
    assert "runAsUser" not in pod(helm(podSecurityContext__runAsUser="null"), "triton")["spec"]["securityContext"]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"triton__enabled": "false"}, "triton.address"), ({"sync__claim": '"c"'}, "sync.address"),
        ({"gatway": "{}"}, "gatway"), ({"gateway__grpcPort": "8080"}, "grpcPort"),
        ({"autoscaling__gateway__min": "9", "autoscaling__gateway__max": "8"}, "autoscaling.gateway.min"),
        ({"autoscaling__gateway__min": "0"}, "min: 0 is possible only for Tritons"),
        ({"triton__pools": ASLEEP, "autoscaling__triton__by": '"hpa"'}, "min: 0 is possible only for Tritons"),
        ({"gateway__drainTimeout": '"300s"'}, "gateway.terminationGracePeriodSeconds: at least 317"),
        ({"triton__preStopSeconds": "26"}, "triton.terminationGracePeriodSeconds: at least 61"),
        ({"triton__pools": '[{"name": "a", "terminationGracePeriodSeconds": 49}]'},
         "triton.pools: a.terminationGracePeriodSeconds: at least 50"),
        ({"gateway__allowAnonymous": "false"}, "gateway: set keysSecret"),
        ({"gateway__ingress__enabled": "true"}, "gateway.ingress.hosts"),
        ({"gateway__env": '{"TRITON_GATEWAY_DRAIN_TIMEOUT": "300s"}'}, "gateway.env.TRITON_GATEWAY_DRAIN_TIMEOUT"),
        ({"gateway__env": '{"CLEARML_API_HOST": "http://elsewhere"}'}, "gateway.env.CLEARML_API_HOST"),
        ({"triton__pools": '[{"name": "default"}]'}, "two pools are called default"),
        ({"triton__pools": '[{"name": "a", "gpu": 1}]'}, "gpu"),
        ({"triton__pools": '[{"name": "a"}]', "triton__enabled": "false"}, "triton.pools: needs"),
        ({"triton__tls__clientSecret": '"client-tls"'}, "triton.tls.clientSecret"),
        # of two entries with one name, Kubernetes takes the last without a word, and server-side apply refuses both
        ({"gateway__extraEnv": '[{"name": "TRITON_GATEWAY_PORT", "value": "9"}]'}, "extraEnv: TRITON_GATEWAY_PORT"),
        ({"gateway__extraEnv": '[{"name": "A", "value": "1"}]', "gateway__env": '{"A": "2"}'}, "extraEnv: A is set"),
        ({"sync__extraEnv": '[{"name": "CLEARML_API_ACCESS_KEY", "value": "k"}]'}, "extraEnv: CLEARML_API_ACCESS_KEY"),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(pairs: dict[str, str], said: str, helm: Render) -> None:
    """With the value's name: not an object that never starts."""
    with pytest.raises(AssertionError, match=re.escape(said)):
        helm(**pairs)
