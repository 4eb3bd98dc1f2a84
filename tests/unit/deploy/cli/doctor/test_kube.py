"""The doctor's findings on a cluster, with a fake kubectl, and with the real one without a server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.doctor.kube import KEYS, NEEDS, check
from deploy.cli.doctor.kubectl import Kubectl
from deploy.cli.main import main
from tests.unit.deploy.cli.doctor.kubectl_says import HEALTHY, deployment, items


def found(kubectl: Kubectl, values: str = "gpu") -> dict[str, tuple[str, str]]:
    """State and detail by subject."""
    return {each.subject: (each.state, each.detail) for each in check(kubectl, values)}


@pytest.mark.parametrize("values", list(NEEDS))
def test_a_cluster_with_everything_has_nothing_missing(kubectl: Any, values: str) -> None:
    """This holds for every values file of the chart."""
    assert {"ok"} == {state for state, _ in found(kubectl(), values).values()}


def test_every_remedy_says_what_to_do(kubectl: Any) -> None:
    """In an empty cluster every finding has a remedy, and the exit code is 1."""
    bare = kubectl(**{name.replace(" ", "_"): None for name in HEALTHY if not name.startswith("version")})
    findings = [each for values in NEEDS for each in check(bare, values)]
    assert [] == [each for each in findings if each.state != "ok" and not each.remedy]
    missing = {each.subject for each in findings if each.state == "missing"}
    assert {
        "namespace triton-gateway", "secret clearml-credentials", "KEDA: scaledobjects.keda.sh",
        "resource metrics (HPA on CPU)", "own metrics (HPA on work in flight)", "storage",
    } <= missing  # fmt: skip


def test_a_triton_that_anybody_may_load_into_is_missing_its_key(kubectl: Any) -> None:
    """The check runs in model sync's container; without the permission for it, the finding says so."""
    doors = "gRPC 127.0.0.1:8001\nHTTP 127.0.0.1:8000\n"
    assert (
        "missing",
        "anyone who can reach gRPC 127.0.0.1:8001 or HTTP 127.0.0.1:8000, and can therefore run code there",
    ) == found(kubectl(exec=(0, doors, "")))["who may load models"]
    assert "note" == found(kubectl(exec=(1, "", "pods exec is forbidden")))["who may load models"][0]
    for name in ("chat-triton-gateway-triton", "triton-chat"):  # a release of that name, and a name of one's own
        of_theirs = items(deployment("chat", 1, 1, "gateway"), deployment(name, 1, 1, "triton"))
        named = found(kubectl(exec=(0, doors, ""), get_deployments=(0, of_theirs, "")))
        assert "missing" == named["who may load models"][0], name
        assert f"version of deployment/{name}" in named
    other = kubectl(**{"get_secret_triton-key": (0, "other", "")})
    assert ("missing", "has no key named `key`") == found(other)["secret triton-key"]


def test_the_version_of_a_deployed_triton_is_told(kubectl: Any) -> None:
    """It is read in its pod; an unknown version is a note."""
    says = "exec deployment/triton --container=sync -- python -c"
    subject = "version of deployment/triton"
    state, detail = found(kubectl())[subject]
    assert ("ok", True) == (state, detail.startswith("2.72.0. NVIDIA lists vulnerabilities by version: "))
    assert "note" == found(kubectl(**{says: (1, "", "refused")}))[subject][0]
    assert subject not in found(kubectl(exec=(1, "", "pods exec is forbidden")))


def test_values_of_secrets_are_never_asked_for(kubectl: Any, tmp_path: Path) -> None:
    """Only the names of the keys are read."""
    assert ("missing", "has no key CLEARML_API_SECRET_KEY") == found(kubectl(get_secret=(0, KEYS[0], "")))[
        "secret clearml-credentials"
    ]
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if "get secret" in line]
    assert asked
    assert all("go-template={{range $key, $_ := .data}}{{$key}} {{end}}" in line for line in asked)


def test_what_may_not_be_seen_is_not_called_missing(kubectl: Any) -> None:
    """Callers may have narrow rights."""
    refused = (1, "", 'Error from server (Forbidden): secrets "x" is forbidden: User "u" cannot get resource')
    seen = found(kubectl(get_secret=refused, get_customresourcedefinition=refused))
    assert "note" == seen["secret clearml-credentials"][0]
    assert "note" == seen["KEDA: scaledobjects.keda.sh"][0]


def test_an_hpa_of_gateways_needs_custom_metrics(kubectl: Any) -> None:
    """External metrics do not help it; if KEDA scales the gateways, custom metrics are not needed."""
    gone = (1, "", "Error from server (NotFound)")
    subject = "own metrics (HPA on work in flight)"
    assert ("ok", "custom.metrics.k8s.io") == found(kubectl())[subject]
    assert "missing" == found(kubectl(**{"get_RAW_/apis/custom": gone}))[subject][0]
    labels = {"app.kubernetes.io/part-of": "triton-gateway", "app.kubernetes.io/name": "triton-gateway"}
    by_keda = {"metadata": {"name": "g", "labels": labels}, "spec": {"scaleTargetRef": {"name": "g"}}}
    without = kubectl(**{"get_RAW_/apis/custom": gone, "get_scaledobjects": (0, items(by_keda), "")})
    assert "ok" == found(without)[subject][0]


def test_an_old_cluster_is_missing(kubectl: Any) -> None:
    """The manifests use fields that an old cluster drops silently."""
    old = {"serverVersion": {"major": "1", "minor": "24", "gitVersion": "v1.24.17"}}
    assert ("missing", "v1.24.17") == found(kubectl(**{"version_--output": (0, old, "")}))["cluster"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"containerStatuses": [{"name": "sync", "ready": False, "state": {"waiting": {
            "reason": "CreateContainerConfigError", "message": 'secret "clearml-credentials" not found'}}}]},
         'sync: CreateContainerConfigError secret "clearml-credentials" not found'),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node has nvidia.com/gpu"}]},
         "cannot be scheduled: no node has nvidia.com/gpu"),
        ({"phase": "Running", "containerStatuses": [
            {"name": "triton", "ready": True}, {"name": "sync", "ready": False}]},
         "running, not ready: sync"),
    ],
)  # fmt: skip
def test_a_deployment_that_is_not_ready_says_why(kubectl: Any, status: dict[str, Any], said: str) -> None:
    """The finding has the first reason of a pod."""
    seen = found(kubectl(
        get_deployments=(0, items(deployment("triton", 2, 1)), ""),
        get_pods=(0, items({"metadata": {"name": "triton-5f-x"}, "status": status}), ""),
    ))  # fmt: skip
    assert ("missing", f"1 of 2 pods are ready: {said}") == seen["deployment triton"]


def test_nothing_deployed_yet_is_a_note(kubectl: Any) -> None:
    """Nothing is deployed before the first apply."""
    assert "note" == found(kubectl(get_deployments=(0, items(), "")))["deployments"][0]


def test_the_command_prints_findings_and_ends_with_what_it_found(
    kubectl: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 when nothing is missing; 1, with the count in the last line, otherwise; JSON for machines."""
    healthy = kubectl().program
    assert 0 == main(["doctor", "--kube", "--kubectl", healthy])
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is missing"
    kubectl(get_namespace=None)
    assert 1 == main(["doctor", "--kube", "--kubectl", healthy])
    text = capsys.readouterr().out
    assert "MISSING  namespace triton-gateway" in text
    assert "→ kubectl create namespace triton-gateway" in text
    assert text.splitlines()[-1] == "1 missing"
    assert 1 == main(["doctor", "--kube", "--kubectl", healthy, "--json"])
    assert {"subject", "state", "detail", "remedy"} == {*json.loads(capsys.readouterr().out)[0]}


@pytest.mark.parametrize("program", ["real", "not-there"])
def test_no_cluster_is_one_finding_with_the_reason(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both for the real kubectl without a server and for no kubectl: no traceback, and no long wait."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    path = shutil.which("kubectl") if program == "real" else "/nowhere/kubectl"
    if path is None:
        path = "kubectl"
    seen = list(check(Kubectl("n", program=path), "gpu"))
    assert [("cluster", "missing")] == [(each.subject, each.state) for each in seen]
    assert seen[0].detail
