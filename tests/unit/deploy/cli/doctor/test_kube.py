"""The doctor's findings on a cluster, with a fake kubectl, and with the real one without a server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.doctor import Finding
from deploy.cli.doctor.kube import Kubectl, check
from deploy.cli.main import main
from tests.unit.deploy.cli.doctor.kubectl_says import condition, deployment, hpa, items, of_keda, scaled


def found(kubectl: Kubectl) -> dict[str, Finding]:
    """Findings by subject; each that is not ok has a remedy."""
    seen = {each.subject: each for each in check(kubectl)}
    assert all(each.remedy for each in seen.values() if each.state == "missing")
    return seen


def bad(kubectl: Kubectl) -> list[str]:
    """The subjects that are not ok."""
    return sorted(name for name, each in found(kubectl).items() if each.state != "ok")


def test_a_healthy_cluster_has_nothing_missing(kubectl: Any) -> None:
    """With autoscalers of both kinds."""
    both = kubectl(
        get_horizontalpodautoscalers=(0, items(hpa("g"), of_keda()), ""), get_scaledobjects=(0, items(scaled()), "")
    )
    seen = found(both)
    assert {"ok"} == {each.state for each in seen.values()}
    assert {"hpa/g", "scaledobject/triton", "who may load models"} <= set(seen)
    assert {"who may load models", "version of deployment/triton"} == set(found(kubectl()))


def test_a_triton_that_anybody_may_load_into_is_missing_its_key(kubectl: Any) -> None:
    """The check runs in model sync's container; without the permission for it, the finding says so."""
    subject, doors = "who may load models", "gRPC 127.0.0.1:8001\nHTTP 127.0.0.1:8000\n"
    said = "anyone who can reach gRPC 127.0.0.1:8001 or HTTP 127.0.0.1:8000, and can therefore run code there"
    assert ("missing", said) == (found(kubectl(exec=(0, doors, "")))[subject].state,
                                 found(kubectl(exec=(0, doors, "")))[subject].detail)  # fmt: skip
    assert "note" == found(kubectl(exec=(1, "", "pods exec is forbidden")))[subject].state
    of_theirs = items(deployment("chat", 1, 1, "gateway"), deployment("triton-chat", 1, 1, "triton"))
    named = found(kubectl(exec=(0, doors, ""), get_deployments=(0, of_theirs, "")))
    assert "missing" == named[subject].state
    assert "version of deployment/triton-chat" in named


def test_the_version_of_a_deployed_triton_is_told(kubectl: Any) -> None:
    """It is read in its pod; an unknown version is a note."""
    subject = "version of deployment/triton"
    assert found(kubectl())[subject].detail.startswith("2.72.0. NVIDIA lists vulnerabilities by version: ")
    says = {"exec deployment/triton --container=sync -- python -c": (1, "", "refused")}
    assert "note" == found(kubectl(**says))[subject].state


def test_nothing_deployed_yet_is_a_note(kubectl: Any) -> None:
    """Also in a wrong namespace, which is named."""
    seen = found(kubectl(get_deployments=(0, items(), "")))
    assert [("deployments", "note", "none in triton-gateway")] == [
        (s, one.state, one.detail) for s, one in seen.items()
    ]


@pytest.mark.parametrize(
    ("kind", "scaler", "subject", "said"),
    [
        ("horizontalpodautoscalers", hpa("g", condition("ScalingActive", "False", "no s0")), "hpa/g", "no s0"),
        ("scaledobjects", scaled(condition("Ready", "False", "no secret")), "scaledobject/triton", "no secret"),
        ("scaledobjects", scaled(condition("Fallback", "True", "away")), "scaledobject/triton", "away"),
    ],
)
def test_an_autoscaler_that_does_not_scale_says_why(
    kubectl: Any, kind: str, scaler: Any, subject: str, said: str
) -> None:
    """As its own conditions say it; one that works is fine."""
    seen = found(kubectl(**{f"get_{kind}": (0, items(scaler), "")}))[subject]
    assert ("missing", True) == (seen.state, said in seen.detail)
    fine = items({**scaler, "status": {"conditions": [condition("Ready", "True")]}})
    assert [] == bad(kubectl(**{f"get_{kind}": (0, fine, "")}))


def test_two_autoscalers_of_one_deployment_are_told(kubectl: Any) -> None:
    """For example after other manifests were applied; the HPA that KEDA makes is not a second one."""
    alone = {"get_scaledobjects": (0, items(scaled()), "")}
    assert [] == bad(kubectl(get_horizontalpodautoscalers=(0, items(of_keda()), ""), **alone))
    both = kubectl(get_horizontalpodautoscalers=(0, items(hpa("triton"), of_keda()), ""), **alone)
    assert ["autoscaler of triton"] == bad(both)
    assert "hpa/triton and scaledobject/triton" in found(both)["autoscaler of triton"].detail


def test_the_command_prints_findings_and_ends_with_what_it_found(
    kubectl: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 when nothing is missing; 1, with the count in the last line, otherwise."""
    folder = Path(kubectl().program).parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert 0 == main(["doctor", "--kube"])
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is missing"
    kubectl(get_horizontalpodautoscalers=(0, items(hpa("g", condition("ScalingActive", "False", "no s0"))), ""))
    assert 1 == main(["doctor", "--kube"])
    text = capsys.readouterr().out
    assert "MISSING  hpa/g: ScalingActive is False: no s0" in text
    assert "→ kubectl describe hpa/g" in text
    assert text.splitlines()[-1] == "1 missing"


@pytest.mark.parametrize("program", ["real", "not-there"])
def test_no_cluster_is_one_finding_with_the_reason(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both for the real kubectl without a server and for no kubectl: no traceback, and no long wait."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    path = shutil.which("kubectl") if program == "real" else "/nowhere/kubectl"
    seen = list(check(Kubectl("n", program=path or "kubectl")))
    assert [("cluster", "missing")] == [(each.subject, each.state) for each in seen]
    assert seen[0].detail
