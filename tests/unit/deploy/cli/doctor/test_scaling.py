"""The doctor's findings on autoscalers, with a fake kubectl."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.cli.doctor.finding import Finding
from deploy.cli.doctor.kube import check
from tests.unit.deploy.cli.doctor.kubectl_says import definition, deployment, items

LABELS = {"app.kubernetes.io/part-of": "triton-gateway"}


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    """One condition of a status."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


def hpa(name: str = "triton-gateway", *conditions: dict[str, str], **changed: Any) -> dict[str, Any]:
    """An HPA with three metrics that all have values."""
    spec = {"scaleTargetRef": {"name": name}, "minReplicas": 2, "maxReplicas": 64, "metrics": [{}] * 3}
    status = {"currentReplicas": 2, "conditions": list(conditions), "currentMetrics": [{"type": "Pods"}] * 3}
    return {"metadata": {"name": name, "labels": LABELS}, "spec": spec, "status": status} | changed


def scaled(*conditions: dict[str, str], query: str = 'max(x{namespace="n"})', least: int = 2) -> dict[str, Any]:
    """A ScaledObject of Tritons."""
    triggers = [{"type": "prometheus", "metadata": {"query": query}}]
    return {
        "metadata": {"name": "triton", "namespace": "n", "labels": LABELS},
        "spec": {"scaleTargetRef": {"name": "triton"}, "minReplicaCount": least, "triggers": triggers},
        "status": {"conditions": list(conditions)},
    }


def of_keda(*conditions: dict[str, str]) -> dict[str, Any]:
    """The HPA that KEDA makes for it."""
    made = hpa("triton", *conditions)
    made["metadata"] = {"name": "keda-hpa-triton", "ownerReferences": [{"kind": "ScaledObject", "name": "triton"}]}
    return made


def found(kubectl: Any, values: str = "gpu", **said: Any) -> dict[str, Finding]:
    """Findings by subject; ``said`` are lists of objects by kind, or whole objects."""
    answers = {f"get_{kind}": (0, items(*each) if isinstance(each, list) else each, "") for kind, each in said.items()}
    return {each.subject: each for each in check(kubectl(**answers), values)}


def bad(findings: dict[str, Finding]) -> list[str]:
    """Return the subjects that are not ok; each must have a remedy."""
    assert all(each.remedy for each in findings.values() if each.state != "ok")
    return sorted(name for name, each in findings.items() if each.state != "ok")


def test_autoscalers_that_work_are_fine(kubectl: Any) -> None:
    """An HPA with all values, and a ScaledObject whose HPA has all values."""
    fine = condition("ScalingActive", "True")
    seen = found(
        kubectl, horizontalpodautoscalers=[hpa("triton-gateway", fine), of_keda(fine)],
        scaledobjects=[scaled(condition("Ready", "True"), condition("Fallback", "False"))],
    )  # fmt: skip
    assert [] == bad(seen)
    assert "2 of 2 to 64" == seen["hpa/triton-gateway"].detail


def test_external_metrics_that_are_not_kedas_are_missing(kubectl: Any) -> None:
    """KEDA still reports Ready without Fallback."""
    seen = found(kubectl, apiservice={"spec": {"service": {"namespace": "monitoring", "name": "prometheus-adapter"}}})
    assert ["external metrics (KEDA): external.metrics.k8s.io"] == bad(seen)
    assert "monitoring/prometheus-adapter" in seen["external metrics (KEDA): external.metrics.k8s.io"].detail


def test_what_an_hpa_says_is_told_also_of_kedas(kubectl: Any) -> None:
    """ScalingActive False is reported with its reason, for KEDA's own HPA even if the ScaledObject is Ready."""
    no_number = condition(
        "ScalingActive", "False", "FailedGetExternalMetric", "could not find the metric s0-prometheus"
    )
    seen = found(
        kubectl, scaledobjects=[scaled(condition("Ready", "True"), condition("Fallback", "False"))],
        horizontalpodautoscalers=[of_keda(no_number)],
    )  # fmt: skip
    assert ["scaledobject/triton"] == bad(seen)
    assert "could not find the metric s0-prometheus" in seen["scaledobject/triton"].detail
    few = hpa("triton-gateway", condition("ScalingActive", "True"))
    few["status"]["currentMetrics"] = [{"type": "Resource"}, {}]
    assert ["hpa/triton-gateway"] == bad(found(kubectl, horizontalpodautoscalers=[few]))


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([condition("Ready", "False", message='secret "clearml-credentials" not found')], "clearml-credentials"),
        ([condition("Ready", "True"), condition("Fallback", "True")], "Fallback"),
    ],
)
def test_a_scaled_object_that_does_not_scale_says_why(
    kubectl: Any, conditions: list[dict[str, str]], said: str
) -> None:
    """Not Ready: it has no HPA. Fallback: it gets no values."""
    seen = found(kubectl, scaledobjects=[scaled(*conditions)], horizontalpodautoscalers=[of_keda()])
    assert ["scaledobject/triton"] == bad(seen)
    assert said in seen["scaledobject/triton"].detail


def test_a_scaled_object_that_asks_for_anothers_load_is_told(kubectl: Any) -> None:
    """For example after `helm template` for one namespace was applied to another."""
    seen = found(kubectl, scaledobjects=[scaled(query='max(x{namespace="triton-gateway"})')])
    assert ["scaledobject/triton"] == bad(seen)
    assert "is in namespace n, but reads the load of namespace triton-gateway" in seen["scaledobject/triton"].detail


def test_a_keda_that_does_not_know_the_fallbacks_behavior_is_told(kubectl: Any) -> None:
    """kubectl refuses the field, Helm drops it."""
    seen = found(kubectl, customresourcedefinition=definition("failureThreshold", "replicas"))
    assert ["KEDA: fallback.behavior"] == bad(seen)
    assert "2.17" in seen["KEDA: fallback.behavior"].detail


def test_two_autoscalers_of_one_deployment_are_told(kubectl: Any) -> None:
    """For example after other manifests were applied, and the old autoscaler stayed."""
    ready = condition("Ready", "True")
    seen = found(
        kubectl, scaledobjects=[scaled(ready)], horizontalpodautoscalers=[hpa("triton"), of_keda()],
    )  # fmt: skip
    assert ["autoscaler of triton"] == bad(seen)
    assert "hpa/triton and scaledobject/triton" in seen["autoscaler of triton"].detail


def test_one_pod_under_a_budget_is_a_note(kubectl: Any) -> None:
    """Both the autoscaler's minimum and the Deployment's replicas are checked."""
    budgets = [{"metadata": {"name": "triton"}}]
    by_scaler = found(
        kubectl, scaledobjects=[scaled(condition("Ready", "True"), least=1)], horizontalpodautoscalers=[of_keda()],
        poddisruptionbudgets=budgets,
    )  # fmt: skip
    for seen in (by_scaler, found(kubectl, deployments=[deployment("triton", 1, 1)], poddisruptionbudgets=budgets)):
        assert ["least of triton"] == bad(seen)
        assert "note" == seen["least of triton"].state


def test_replicas_that_are_applied_beside_an_autoscaler_are_a_note(kubectl: Any) -> None:
    """Every apply resets the autoscaler's replicas; without the line, one pod is left."""
    applied = deployment("triton-gateway", 6, 6)
    last = json.dumps({"spec": {"replicas": 6}})
    applied["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": last}
    seen = found(kubectl, deployments=[applied], horizontalpodautoscalers=[hpa()])
    assert ["replicas of triton-gateway"] == bad(seen)
    assert [] == bad(found(kubectl, deployments=[applied]))


def test_a_quota_of_cpu_limits_refuses_every_pod(kubectl: Any) -> None:
    """A LimitRange with a default avoids that."""
    quotas = [{"metadata": {"name": "team"}, "spec": {"hard": {"limits.cpu": "64"}}}]
    assert ["quota team"] == bad(found(kubectl, resourcequotas=quotas))
    limits = [{"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"cpu": "4"}}]}}]
    assert [] == bad(found(kubectl, resourcequotas=quotas, limitranges=limits))
