"""Our InferenceService with KServe's real webhooks and controller: what they make of it, and what gateways find.

The tests of one form run in their order on one install; nothing here runs in pods, see ``nodes.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
import pytest
import yaml

from deploy.cli.commands.serve import predictor_address
from deploy.cli.main import group
from tests.cluster import kserve
from tests.cluster.autoscalers import ROOT
from tests.cluster.control_plane import Cluster
from tests.cluster.installs import Install, applied
from tests.cluster.nodes import STAYS_UNREADY
from tests.cluster.test_installs import EXPLAINED
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("kserve")
NAME: Final = "triton-gateway"
PARTS: Final = ("transformer", "predictor")
PODS: Final = {part: f"serving.kserve.io/inferenceservice={NAME},component={part}" for part in PARTS}
"""What selects the pods of a part, by KServe's labels."""
MADE: Final = {f"{kind}/{NAME}-{part}" for kind in ("Deployment", "Service") for part in PODS} | {f"Ingress/{NAME}"}
"""What the controller makes of it: no autoscaler."""


KSERVES: Final = {
    f"InferenceServiceNotReady InferenceService/{NAME}: .* is no longer Ready because of": "while pods are replaced",
    f"(InternalError|UpdateFailed) InferenceService/{NAME}: .* the object has been modified; please apply":
        "the controller's own two writers; it tries again at once",
}  # fmt: skip
"""Warnings of its controller that are as they should be, as patterns, and why."""


@pytest.fixture(scope="module")
def controlled(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with KServe."""
    with kserve.running(cluster):
        yield cluster


@pytest.fixture
def documented(controlled: Cluster) -> Iterator[dict[str, Any]]:
    """The InferenceService of docs/http-api.md, applied in a namespace of its own."""
    [text] = re.findall(
        r"```yaml\n(apiVersion: serving.kserve.io.*?)```", (ROOT / "docs" / "http-api.md").read_text(), re.S
    )
    written = yaml.safe_load(text)
    written["metadata"]["namespace"] = "documented"
    controlled.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "documented"}})
    controlled.apply(written)
    yield written
    controlled.kubectl("delete", "namespace", "documented", "--timeout=300s")


@pytest.fixture(scope="module", params=["kserve-client", "kserve-helm"])
def install(
    request: pytest.FixtureRequest, controlled: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Install]:
    """The values file, applied once."""
    with applied(controlled, request.param, tmp_path_factory.mktemp("own")) as made:
        yield made


def of(install: Install, kind: str, *arguments: str) -> list[dict[str, Any]]:
    """Objects in its namespace."""
    return list(install.cluster.get(kind, "--namespace", install.namespace, *arguments)["items"])


def of_kserve(install: Install, kinds: str) -> list[dict[str, Any]]:
    """Objects that KServe made; our controller's Deployment is the chart's own."""
    return [each for each in of(install, kinds) if each["metadata"].get("ownerReferences")]


def service(install: Install) -> dict[str, Any]:
    """The InferenceService as the API has it."""
    return dict(install.cluster.get(f"inferenceservice/{NAME}", "--namespace", install.namespace))


def settled(install: Install) -> None:
    """Wait until KServe says that it is ready, and each Deployment has what its autoscaler wants."""
    until(lambda: len(of_kserve(install, "deployments")) == len(PARTS), pause=1, what="the Deployments of both parts")
    install.settle()
    install.cluster.kubectl(
        "wait", "--for=condition=Ready", f"inferenceservice/{NAME}", "--namespace", install.namespace, "--timeout=300s"
    )


def pods(install: Install, part: str) -> dict[str, dict[str, Any]]:
    """The pods of a part that do not end, by name."""
    found = of(install, "pods", "--selector", PODS[part])
    return {each["metadata"]["name"]: each for each in found if "deletionTimestamp" not in each["metadata"]}


def behind(install: Install, name: str, *, ready: bool = True) -> dict[str, set[str]]:
    """Pods behind a Service, by port name: as a name server publishes them, or those that are not ready."""
    slices = of(install, "endpointslices", "--selector", f"kubernetes.io/service-name={name}")
    return {
        f"{port['name']}:{port['port']}": {
            endpoint["targetRef"]["name"] for endpoint in each["endpoints"] or ()
            if endpoint["conditions"]["ready"] == ready
        }
        for each in slices for port in each["ports"]
    }  # fmt: skip


def left_out(written: Any, stored: Any, path: str = "") -> list[str]:
    """Where what is stored differs from what was written; what was added beside it does not count."""
    if isinstance(written, Mapping) and isinstance(stored, Mapping):
        return [each for key, value in written.items() for each in left_out(value, stored.get(key), f"{path}.{key}")]
    if isinstance(written, list) and isinstance(stored, list) and len(written) == len(stored):
        both = enumerate(zip(written, stored, strict=True))
        return [each for number, pair in both for each in left_out(*pair, f"{path}[{number}]")]
    return [] if written == stored else [f"{path}: {written} → {stored}"]


def test_it_is_stored_as_it_was_written(install: Install) -> None:
    """KServe's webhook adds nothing to the resources, above all no CPU limit of one core below a request of two."""
    [written] = [each for each in yaml.safe_load_all(install.rendered()) if each and each["kind"] == "InferenceService"]
    stored = service(install)
    assert [] == left_out(written, stored)
    for part in PODS:
        for before, after in zip(written["spec"][part]["containers"], stored["spec"][part]["containers"], strict=True):
            assert before["resources"] == after["resources"]
    assert [] == install.warnings


def test_the_controller_makes_what_we_rely_on_and_every_pod_gets_ready(install: Install) -> None:
    """Two Deployments with our strategies, a Service of each, an Ingress, no autoscaler; nothing is refused."""
    settled(install)
    kinds = "deployments,services,ingresses,horizontalpodautoscalers,poddisruptionbudgets,serviceaccounts"
    assert {f"{each['kind']}/{each['metadata']['name']}" for each in of_kserve(install, kinds)} == MADE
    written = service(install)["spec"]
    for each in of_kserve(install, "deployments"):
        part = each["metadata"]["name"].removeprefix(f"{NAME}-")
        assert written[part]["deploymentStrategy"] == each["spec"]["strategy"]
        spec = each["spec"]["template"]["spec"]
        assert [one["name"] for one in written[part]["containers"]] == [one["name"] for one in spec["containers"]]
        for before, after in zip(written[part]["containers"], spec["containers"], strict=True):
            assert before["resources"] == after["resources"], "requests above limits would be refused"
            assert before.get("ports") == after.get("ports")
    assert pods(install, "transformer")
    for each in pods(install, "predictor").values():
        assert each["spec"]["nodeName"].startswith("gpu-"), "it tolerates the taint, and has a GPU"
    assert [] == install.warnings


def test_gateways_are_started_as_written_whatever_kserve_adds_to_their_arguments(install: Install) -> None:
    """The shell in between drops what follows its own name."""
    for each in pods(install, "transformer").values():
        [container] = each["spec"]["containers"]
        assert ["sh", "-c", "exec triton-gateway serve", "triton-gateway"] == container["command"]
        names = container["args"][::2]
        assert ["--model_name", "--predictor_host", "--http_port"] == names


def test_gateways_find_every_triton_by_name_and_themselves(install: Install) -> None:
    """Behind the names in their variables are the pods' addresses, at the ports that Triton and sync listen on."""
    settled(install)
    [variables] = {
        tuple((one["name"], one.get("value")) for one in each["spec"]["containers"][0]["env"])
        for each in pods(install, "transformer").values()
    }  # fmt: skip
    host, _, port = dict(variables)["TRITON_GATEWAY_TRITON_GRPC"].removeprefix("dns:///").partition(":")
    services = {each["metadata"]["name"]: each["spec"] for each in of(install, "services")}
    assert "None" == services[host]["clusterIP"], "the name resolves to pods: gateways spread their calls themselves"
    assert services[host]["publishNotReadyAddresses"]
    tritons = {*pods(install, "predictor")}
    wanted = {f"grpc:{port}": tritons, "http:8000": tritons, "metrics:8002": tritons, "health:8081": tritons}
    until(lambda: wanted == behind(install, host), pause=1, what="every Triton behind its name")
    peers = dict(variables)["TRITON_GATEWAY_REPLICAS"]
    gateways = {"http-peers:8080": {*pods(install, "transformer")}}
    until(lambda: gateways == behind(install, peers), pause=1, what="every gateway behind its name")


def test_every_pod_has_one_policy_and_one_budget_and_is_scraped_once(install: Install) -> None:
    """Selectors find the pods that KServe labels, and monitors one Service each: two would count everything twice."""
    settled(install)
    labels = {part: [each["metadata"]["labels"] for each in pods(install, part).values()] for part in PODS}
    for kind in ("networkpolicies", "poddisruptionbudgets"):
        found = [each["spec"] for each in of(install, kind)]
        selectors = [spec.get("podSelector", spec.get("selector"))["matchLabels"] for spec in found]
        for one in (each for of_part in labels.values() for each in of_part):
            assert 1 == sum(selector.items() <= one.items() for selector in selectors), kind
    services = of(install, "services")
    jobs = {}
    for each in of(install, "servicemonitors"):
        [endpoint] = each["spec"]["endpoints"]
        [name] = [
            one["metadata"]["name"] for one in services
            if each["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
            and endpoint["port"] in {port["name"] for port in one["spec"]["ports"]}
        ]  # fmt: skip
        jobs[each["metadata"]["name"]] = name
    ours = {"triton-gateway": f"{NAME}-transformer", "triton": "triton", "model-sync": "triton"}
    assert ours | {"controller": "controller"} == jobs
    scaled = {each["spec"]["scaleTargetRef"]["name"] for each in of(install, "horizontalpodautoscalers,scaledobjects")}
    assert {f"{NAME}-{part}" for part in PODS} == scaled


def test_a_model_sync_that_ends_again_and_again_takes_no_triton_from_the_gateways(install: Install) -> None:
    """KServe's own Service loses that pod; the Service that gateways ask has it, at every port."""
    settled(install)
    name, pod = next(iter(pods(install, "predictor").items()))
    where = ("--namespace", install.namespace)
    install.cluster.kubectl("annotate", "pod", name, f"{STAYS_UNREADY}=sync", *where)
    containers = pod["status"]["containerStatuses"]
    [sync] = [each for each in containers if each["name"] == "sync"]
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    sync |= {"ready": False, "started": False, "restartCount": 7, "state": waiting}
    changed = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    conditions = [changed, changed | {"type": "ContainersReady"}]
    patch = yaml.safe_dump({"status": {"conditions": conditions, "containerStatuses": containers}})
    install.cluster.kubectl("patch", "pod", name, "--subresource=status", f"--patch={patch}", *where)
    until(lambda: name in behind(install, f"{NAME}-predictor", ready=False)["grpc:8001"], pause=1, what="unready there")
    assert all(name in each for each in behind(install, "triton").values())
    install.cluster.kubectl("annotate", "pod", name, f"{STAYS_UNREADY}-", *where)
    until(lambda: name in behind(install, f"{NAME}-predictor")["grpc:8001"], pause=1, what="ready again")


def test_a_second_apply_changes_nothing(install: Install) -> None:
    """Neither ours nor what KServe makes of it; and the API has what the files say."""
    settled(install)
    before = service(install)["metadata"]["generation"], install.generations()
    said = install.apply()
    assert "" == install.difference()
    if install.way == "client":
        others = [line for line in said.splitlines() if not line.startswith("poddisruptionbudget.")]
        assert [] == [line for line in others if not line.endswith(" unchanged")]
    settled(install)
    assert before == (service(install)["metadata"]["generation"], install.generations())


def test_an_upgrade_reaches_the_pods_and_the_way_back_does_too(install: Install) -> None:
    """Other images come to both parts through KServe's controller."""
    for tag, change in (("0.1.1", lambda: install.apply(changed=True)), ("0.1.0", install.go_back)):
        change()

        def reached(tag: str = tag) -> bool:
            images = [
                container["image"] for part in PODS for each in pods(install, part).values()
                for container in each["spec"]["containers"]
            ]  # fmt: skip
            return all(image.endswith(f":{tag}") for image in images)

        until(reached, pause=1, what=f"images of {tag} in every pod")
        settled(install)


def test_no_event_warns_of_what_is_not_explained(install: Install) -> None:
    """Of everything that happened above."""
    explained = [*EXPLAINED, *KSERVES]
    unexplained = [event for event in install.events() if not any(re.match(each, event) for each in explained)]
    assert [] == unexplained
    assert [] == install.warnings


def test_nothing_is_left_behind(install: Install) -> None:
    """When it is removed: what KServe made goes with the InferenceService."""
    install.remove()
    until(lambda: install.objects() - install.before == set(), pause=1, what="nothing left")


def test_the_documented_transformer_finds_its_predictor(controlled: Cluster, documented: Mapping[str, Any]) -> None:
    """Our command takes the arguments that KServe adds, and its Service has the port to which they lead."""
    where = ("--namespace", "documented")
    name = documented["metadata"]["name"]
    ready = controlled.kubectl(
        "wait", "--for=condition=Ready", f"inferenceservice/{name}", *where, "--timeout=300s", ok=(0, 1)
    )
    assert 0 == ready.returncode, (controlled.folder / "kserve-manager.log").read_text()[-3000:]
    deployment = controlled.get(f"deployment/{name}-transformer", *where)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"] + container["args"]
    command = group.get_command(click.Context(group), arguments[0])
    assert command is not None
    given = command.make_context(program, arguments[1:]).params
    assert f"{name}-predictor.documented" == given["predictor_host"]
    port = int(predictor_address(given["predictor_host"]).rpartition(":")[2])
    service = controlled.get(f"service/{name}-predictor", *where)
    containers = controlled.get(f"deployment/{name}-predictor", *where)["spec"]["template"]["spec"]["containers"]
    [triton] = [each for each in containers if "triton" in each["image"] and "sync" not in each["image"]]
    assert f"--grpc-port={port}" in triton["args"]
    assert [port] == [each["targetPort"] for each in service["spec"]["ports"] if each["port"] == port]
