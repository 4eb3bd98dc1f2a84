"""What values of the chart reach: settings of the ClearML server, policies, storage, what has to change its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .objects import Objects, named

ROOT = Path(__file__).parents[3]

Render = Callable[..., Objects]


def pod(objects: Objects, name: str) -> dict[str, Any]:
    """The pod of a Deployment."""
    return dict(named(objects, "Deployment", name)["spec"]["template"])


def variables(objects: Objects, name: str, container: str) -> dict[str, str]:
    """What a container's environment says in the end: ConfigMaps, then its own variables over them."""
    [found] = [each for each in pod(objects, name)["spec"]["containers"] if each["name"] == container]
    said: dict[str, str] = {}
    for each in found.get("envFrom", []):
        said |= named(objects, "ConfigMap", each["configMapRef"]["name"])["data"]
    return said | {each["name"]: each["value"] for each in found.get("env", []) if "value" in each}


def entries(value: Any, field: str) -> Iterator[Any]:
    """Every value of a field, wherever it is."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key == field:
                yield each
            yield from entries(each, field)
    elif isinstance(value, list):
        for each in value:
            yield from entries(each, field)


# --- the ClearML server ------------------------------------------------------------------------------------------


def test_the_server_is_said_once_for_gateways_and_sync(helm: Render) -> None:
    """In a ConfigMap."""
    objects = helm(clearml__apiHost='"https://api.example"', clearml__servingTaskId='"0a1b"')
    for where in (("triton-gateway", "gateway"), ("triton", "sync")):
        found = variables(objects, *where)
        assert ("https://api.example", "0a1b") == (found["CLEARML_API_HOST"], found["CLEARML_SERVING_TASK_ID"])
    assert "CLEARML_SERVING_TASK_ID" not in variables(helm(), "triton-gateway", "gateway")


def test_other_settings_make_other_pods(helm: Render) -> None:
    """A ConfigMap alone would reach only pods that start later."""
    before, after = helm(), helm(clearml__apiHost='"https://api.example"')
    for name in ("triton-gateway", "triton"):
        assert pod(before, name)["metadata"]["annotations"] != pod(after, name)["metadata"]["annotations"]


# --- policies ----------------------------------------------------------------------------------------------------


def test_callers_can_be_named(helm: Render) -> None:
    """As peers of a NetworkPolicy; our controller is among them."""
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
    objects = helm(networkPolicy__callers=json.dumps([peer]))
    [ingress] = named(objects, "NetworkPolicy", "triton-gateway")["spec"]["ingress"]
    [ours, others] = ingress["from"]
    assert "controller" == ours["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
    assert peer == others


# --- a Triton of others ------------------------------------------------------------------------------------------


def test_gateways_for_a_triton_of_others_need_nothing_of_its_namespace(helm: Render) -> None:
    """Claims belong to one namespace: model sync goes to the Triton's, gateways may be anywhere."""
    gateways, sync = helm("existing"), helm("sync")
    assert [] == [*entries(gateways, "persistentVolumeClaim")]
    assert [{"claimName": "triton-models"}] == [*entries(sync, "persistentVolumeClaim")]
    assert {"ConfigMap", "Deployment", "NetworkPolicy", "ServiceAccount"} == {each["kind"] for each in sync}
    assert ["sync"] == [each["metadata"]["name"] for each in sync if each["kind"] == "Deployment"]
    account = pod(sync, "sync")["spec"]["serviceAccountName"]
    assert named(sync, "ServiceAccount", account)["automountServiceAccountToken"] is False


# --- storage -----------------------------------------------------------------------------------------------------


# --- what real clusters need -------------------------------------------------------------------------------------

PLACED = {
    "affinity": {"nodeAffinity": {}}, "priorityClassName": "high", "runtimeClassName": "nvidia",
    "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}],
    "initContainers": [{"name": "first", "image": "busybox:1"}],
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
}  # fmt: skip


@pytest.mark.parametrize(("tier", "name"), [("gateway", "triton-gateway"), ("triton", "triton")])
def test_pods_are_placed_and_extended_by_values(tier: str, name: str, helm: Render) -> None:
    """What a real cluster asks of every chart, without a patch."""
    extra = {
        "extraVolumes": [{"name": "own", "emptyDir": {}}], "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
        "extraEnv": [{"name": "OWN", "value": "1"}], "podLabels": {"team": "ml"},
        "podAnnotations": {"note": "x"},
    }  # fmt: skip
    placed = {key: value for key, value in PLACED.items() if (tier, key) != ("gateway", "runtimeClassName")}
    objects = helm("default", **{f"{tier}__{key}": json.dumps(value) for key, value in (placed | extra).items()})
    template = pod(objects, name)
    spec, metadata = template["spec"], template["metadata"]
    assert placed == {key: spec.get(key) for key in placed}
    container = spec["containers"][0]
    assert {"name": "own", "emptyDir": {}} in spec["volumes"]
    assert {"name": "own", "mountPath": "/own"} in container["volumeMounts"]
    assert {"name": "OWN", "value": "1"} in container["env"]
    assert ("ml", "x") == (metadata["labels"]["team"], metadata["annotations"]["note"])


def test_arguments_of_triton_are_added_to_its_images_own(helm: Render) -> None:
    """NVIDIA's are in its entrypoint; the CPU server's are its image's command, which arguments replace."""
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    [own] = [json.loads(line[4:]) for line in dockerfile.splitlines() if line.startswith('CMD ["triton"')]
    for values, before in (("gpu", []), ("default", own)):
        template = pod(helm(values, triton__extraArgs='["--log-verbose=1"]'), "triton")
        assert [*before, "--log-verbose=1"] == template["spec"]["containers"][0]["args"]
        assert "args" not in pod(helm(values), "triton")["spec"]["containers"][0]


def test_arguments_of_model_sync_are_added_wherever_it_runs(helm: Render) -> None:
    """Beside a Triton of ours, and alone beside one that is not."""
    for values, name in (("gpu", "triton"), ("sync", "sync")):
        template = pod(helm(values, sync__extraArgs='["--poll-frequency=10s"]'), name)
        [container] = [one for one in template["spec"]["containers"] if one["name"] == "sync"]
        assert ["sync", "--poll-frequency=10s"] == container["args"]


def test_what_is_taken_for_a_number_is_quoted(helm: Render) -> None:
    """Of sixteen hexadecimal digits some are a number, and the API refuses an annotation that is one."""
    for each in helm(arguments=["--set-string", "clearml.servingTaskId=1"]):
        for notes in entries(each, "annotations"):
            assert all(isinstance(value, str) for value in notes.values())


def test_gateways_speak_tls_all_the_way(helm: Render) -> None:
    """Certificate, probes and what Prometheus asks, or none of them."""
    objects = helm(gateway__tls__secret='"gateway-tls"')
    found = variables(objects, "triton-gateway", "gateway")
    [container] = pod(objects, "triton-gateway")["spec"]["containers"]
    assert "/tls" == found["TRITON_GATEWAY_TLS"]
    assert "/tls" in {mount["mountPath"] for mount in container["volumeMounts"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert "HTTPS" == container[probe]["httpGet"]["scheme"]
    [endpoint] = named(objects, "ServiceMonitor", "triton-gateway")["spec"]["endpoints"]
    assert ("https", {"insecureSkipVerify": True}) == (endpoint["scheme"], endpoint["tlsConfig"])
    assert [] == [*entries(helm(), "scheme")]


def trusted(objects: Objects, deployment: str, container: str) -> dict[str, str]:
    """The TLS variables of a container, with the files in their folder; what arguments name lies in a Secret."""
    template = pod(objects, deployment)
    [found] = [each for each in template["spec"]["containers"] if each["name"] == container]
    mounts = {each["mountPath"]: each["name"] for each in found["volumeMounts"]}
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}
    start = "TRITON_GATEWAY_TRITON_TLS"
    said = {
        name.removeprefix(start): value
        for name, value in variables(objects, deployment, container).items()
        if name.startswith(start)
    }
    for path in (each.partition("=")[2] for each in found.get("args", []) if re.match("--grpc-(server|root)-", each)):
        folder, _, file = path.rpartition("/")
        source = volumes[mounts[folder]]["secret"]
        assert source["secretName"]
        assert file in {each["path"] for each in source.get("items", [{"path": file}])}, path
    if "" in said:
        sources = volumes[mounts[said.pop("")]]["projected"]["sources"]
        said |= {
            item["path"]: each["secret"]["name"] for each in sources for item in each["secret"]["items"]
        }  # fmt: skip
    return said


def test_triton_its_model_sync_and_gateways_speak_tls_or_none_does(helm: Render) -> None:
    """With an authority of its own; loopback has no name, so model sync expects that of the Service."""
    authority = {"ca.crt": "triton-tls"}
    for values in ("gpu", "default"):
        objects = helm(values, triton__tls__secret='"triton-tls"', triton__pools='[{"name": "big"}]')
        assert authority == trusted(objects, "triton-gateway", "gateway")
        for name in ("triton", "triton-big"):
            assert authority | {"_NAME": name} == trusted(objects, name, "sync")
            assert {} == trusted(objects, name, "triton")
            arguments = pod(objects, name)["spec"]["containers"][0]["args"]
            assert "--grpc-use-ssl=true" in arguments
            assert values != "default" or "triton" == arguments[0]
        # The gateways' volumes do not hold Triton's key.
        volumes = pod(objects, "triton-gateway")["spec"]["volumes"]
        assert "triton-tls" not in {each.get("secret", {}).get("secretName") for each in volumes}
        # Models are not called over HTTP, which has no TLS in Triton.
        [rule, _] = named(objects, "NetworkPolicy", "triton")["spec"]["ingress"]
        assert ["grpc"] == [each["port"] for each in rule["ports"]]
    plain = helm()
    for name, container in (("triton-gateway", "gateway"), ("triton", "sync"), ("triton", "triton")):
        assert {} == trusted(plain, name, container)
        assert not [each for each in pod(plain, name)["spec"]["volumes"] if "tls" in each["name"]]
    assert "args" not in pod(plain, "triton")["spec"]["containers"][0]


def test_triton_asks_for_certificates_that_gateways_and_model_sync_have(helm: Render) -> None:
    """Mutual TLS; a Secret for clients alone would do nothing."""
    objects = helm(triton__tls='{"secret": "triton-tls", "clientSecret": "client-tls"}')
    pair = {"tls.crt": "client-tls", "tls.key": "client-tls"}
    assert pair.items() <= trusted(objects, "triton-gateway", "gateway").items()
    assert pair.items() <= trusted(objects, "triton", "sync").items()
    arguments = pod(objects, "triton")["spec"]["containers"][0]["args"]
    assert ["--grpc-use-ssl-mutual=true"] == [each for each in arguments if "use-ssl" in each]
    with pytest.raises(AssertionError, match=r"triton\.tls\.clientSecret"):
        helm(triton__tls__clientSecret='"client-tls"')


def test_a_triton_outside_the_chart_is_trusted_by_its_authority(helm: Render) -> None:
    """By gateways and by model sync alone; its name is that of the address unless another is said."""
    authority = {"ca.crt": "ca"}
    for values, name, container in (("existing", "triton-gateway", "gateway"), ("sync", "sync", "sync")):
        assert authority == trusted(helm(values, triton__tls__secret='"ca"'), name, container)
        objects = helm(values, triton__tls='{"secret": "ca", "name": "triton.example"}')
        assert authority | {"_NAME": "triton.example"} == trusted(objects, name, container)


def test_gateways_are_reached_through_an_ingress(helm: Render) -> None:
    """It names the Service and a port that it has."""
    objects = helm(release="a", gateway__ingress='{"enabled": true, "hosts": ["models.example"]}')
    ports = {port["name"] for port in named(objects, "Service", "a-triton-gateway")["spec"]["ports"]}
    [rule] = named(objects, "Ingress", "a-triton-gateway")["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert ("models.example", "a-triton-gateway") == (rule["host"], backend["name"])
    assert backend["port"]["name"] in ports
    with pytest.raises(AssertionError, match=r"gateway\.ingress\.hosts"):
        helm(gateway__ingress__enabled="true")


def test_the_service_account_and_the_security_of_pods_are_values(helm: Render) -> None:
    """One account for all pods, for roles of a cloud; another one's, or none; and ids that OpenShift chooses."""
    objects = helm("dev", serviceAccount__annotations='{"role": "arn"}')
    [account] = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert {"role": "arn"} == account["metadata"]["annotations"]
    for create, name, wanted in (("false", "", "default"), ("false", "own", "own"), ("true", "own", "own")):
        objects = helm("dev", serviceAccount__create=create, serviceAccount__name=f'"{name}"')
        assert {wanted} == {*entries(objects, "serviceAccountName")}
        assert (create == "true") == ("ServiceAccount" in {each["kind"] for each in objects})
    objects = helm(podSecurityContext__runAsUser="null", securityContext__privileged="false")
    assert "runAsUser" not in pod(objects, "triton")["spec"]["securityContext"]
    assert all(each["securityContext"]["privileged"] is False for each in pod(objects, "triton")["spec"]["containers"])
