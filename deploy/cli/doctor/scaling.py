"""Checks of autoscalers: whether their metrics are served, what their status says, and what stops them from scaling.

Called by ``kube.check``; only reads. Each finding that is not ``ok`` has a remedy of one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from deploy.cli.doctor.finding import Finding
from deploy.cli.doctor.kubectl import Kubectl, last_line, unseen

OURS: Final = "app.kubernetes.io/part-of"
"""Label of our HPAs and ScaledObjects; its value is ``triton-gateway``."""
_WHAT: Final = "app.kubernetes.io/name"
"""Label whose value distinguishes the autoscalers of gateways from those of Tritons."""
_EXTERNAL: Final = "external.metrics.k8s.io"
_CUSTOM: Final = "custom.metrics.k8s.io"
_RULES: Final = "k8s/helm/prometheus-adapter.yaml"

Object = Mapping[str, Any]


def metrics(kubectl: Kubectl, needs: Sequence[str]) -> Iterator[Finding]:
    """Check that the metrics other than CPU are served, and that KEDA is new enough."""
    scaled = _ours(kubectl.items("scaledobjects.keda.sh"))
    subject = "own metrics (HPA on work in flight)"
    found = kubectl("get", "--raw", f"/apis/{_CUSTOM}")
    if "metrics" in needs and found.code == 0:
        yield Finding(subject, "ok", _CUSTOM)
    elif "metrics" in needs and any(each["metadata"]["labels"].get(_WHAT) == "triton-gateway" for each in scaled):
        yield Finding(subject, "ok", "not needed: KEDA scales the gateways")
    elif "metrics" in needs:
        remedy = f"install prometheus-adapter with the rules of {_RULES}, or scale gateways with KEDA (docs/scaling.md)"
        yield unseen(subject, found, remedy)
    if "keda" in needs or scaled:
        yield _owner(kubectl)
        yield _fallback(kubectl)


def _owner(kubectl: Kubectl) -> Finding:
    """Check that KEDA serves the API of external metrics, which has only one owner."""
    subject = f"external metrics (KEDA): {_EXTERNAL}"
    found = kubectl("get", "apiservice", f"v1beta1.{_EXTERNAL}", "--output=json")
    service = found.json()
    if not isinstance(service, dict):
        return unseen(subject, found, "install KEDA, which registers this API")
    owner = (service.get("spec") or {}).get("service") or {}
    said = f"{owner.get('namespace', '?')}/{owner.get('name', '?')}"
    if "keda" not in said:
        return Finding(
            subject, "missing", f"is served by {said}, so KEDA's autoscalers never get a value, even if they are Ready",
            "remove the external rules of prometheus-adapter (in its chart: rules.external: []), then run KEDA's helm "
            "upgrade again",
        )  # fmt: skip
    away = _condition(service, "Available")
    if away.get("status") == "False":
        return Finding(
            subject, "missing", f"{said} does not answer: {away.get('message', '')}", f"kubectl get pods -n {said}"
        )
    return Finding(subject, "ok", f"served by {said}")


def _fallback(kubectl: Kubectl) -> Finding:
    """Check that KEDA knows ``fallback.behavior``: without it, an outage of Prometheus scales down to the minimum."""
    subject = "KEDA: fallback.behavior"
    found = kubectl("get", "customresourcedefinition", "scaledobjects.keda.sh", "--output=json")
    definition = found.json()
    if not isinstance(definition, dict):
        return unseen(subject, found, "install KEDA 2.17 or newer")
    for version in definition.get("spec", {}).get("versions", ()):
        at: Any = version.get("schema", {}).get("openAPIV3Schema", {})
        for name in ("spec", "fallback", "behavior"):
            at = at.get("properties", {}).get(name, {})
        if at:
            return Finding(subject, "ok", "supported")
    return Finding(
        subject, "missing", "KEDA is older than 2.17. kubectl refuses the field and Helm drops it, so the next outage "
        "of Prometheus scales the Tritons down to the minimum",
        "upgrade KEDA; until then remove the field and set fallback.replicas to the number that you need at peak",
    )  # fmt: skip


def autoscalers(kubectl: Kubectl, deployments: Sequence[Object]) -> Iterator[Finding]:
    """Check each HPA and ScaledObject that scales a deployment of ours, and that deployment."""
    hpas, scaled = kubectl.items("horizontalpodautoscalers"), kubectl.items("scaledobjects.keda.sh")
    targets = {each["metadata"]["name"] for each in deployments} | {_target(each) for each in _ours([*hpas, *scaled])}
    budgets = {each["metadata"]["name"] for each in kubectl.items("poddisruptionbudgets")}
    # KEDA creates an HPA for each ScaledObject; findings on that HPA are reported for the ScaledObject.
    of_keda = {_name(each): _owner_of(each) for each in hpas if _owner_of(each)}
    for target in sorted(targets):
        by_hpa = [each for each in hpas if _target(each) == target and _name(each) not in of_keda]
        by_keda = [each for each in scaled if _target(each) == target]
        everyone = [f"hpa/{_name(each)}" for each in by_hpa] + [f"scaledobject/{_name(each)}" for each in by_keda]
        if len(everyone) > 1:
            yield Finding(
                f"autoscaler of {target}", "missing", f"{' and '.join(everyone)} both scale it, so none of them works",
                f"delete one (kubectl -n {kubectl.namespace} delete {everyone[-1]}), and install only one",
            )  # fmt: skip
        for each in by_hpa:
            yield _hpa(each, f"hpa/{_name(each)}")
        for each in by_keda:
            yield from _scaled(each, [hpa for hpa in hpas if of_keda.get(_name(hpa)) == _name(each)])
        least = min((_least(each) for each in (*by_hpa, *by_keda)), default=None)
        deployment = next((each for each in deployments if each["metadata"]["name"] == target), None)
        if least is not None and deployment is not None and _fixed(deployment):
            yield Finding(
                f"replicas of {target}", "note", "are set in your manifest although an autoscaler scales it: every "
                "apply resets them. If you only remove the line, the next apply leaves a single pod",
                "docs/scaling.md says how to remove it",
            )  # fmt: skip
        if least is None and deployment is not None:
            least = deployment.get("spec", {}).get("replicas", 1)
        if least == 1 and target in budgets:
            yield Finding(
                f"least of {target}", "note", "the minimum is one pod, and the disruption budget permits to remove it: "
                "draining its node interrupts the service",
                "set the minimum to two pods or more (autoscaling.….min, or replicas)",
            )  # fmt: skip


def quota(kubectl: Kubectl) -> Iterator[Finding]:
    """Report a quota that refuses our pods because they have no CPU limit (on purpose)."""
    limited = [
        _name(each) for each in kubectl.items("resourcequotas")
        if "limits.cpu" in (each.get("spec") or {}).get("hard", {})
    ]  # fmt: skip
    defaults = [
        limit for each in kubectl.items("limitranges") for limit in (each.get("spec") or {}).get("limits", ())
        if limit.get("type") == "Container" and "cpu" in limit.get("default", {})
    ]  # fmt: skip
    if limited and not defaults:
        yield Finding(
            f"quota {limited[0]}", "missing", "limits limits.cpu, so it refuses all of our pods: they have no CPU "
            "limit, because throttling raises the p99",
            "remove limits.cpu from the quota, add a LimitRange with a default for cpu, or set …resources.limits.cpu",
        )  # fmt: skip


def _hpa(hpa: Object, subject: str) -> Finding:
    spec, status = hpa["spec"], hpa.get("status") or {}
    for kind in ("AbleToScale", "ScalingActive"):
        said = _condition(hpa, kind)
        if said.get("status") == "False" and said.get("reason") != "ScalingDisabled":
            why = f"{said.get('reason', kind)}: {last_line(said.get('message', ''))}"
            return Finding(subject, "missing", why, _remedy(said.get("reason", "")))
    wanted = len(spec.get("metrics") or ())
    has = sum(bool(each.get("type")) for each in status.get("currentMetrics") or ())
    if status.get("conditions") and has < wanted:
        return Finding(
            subject, "missing", f"only {has} of {wanted} metrics have a value, so it adds replicas but removes none",
            _remedy("FailedGetPodsMetric"),
        )  # fmt: skip
    return Finding(subject, "ok", f"{status.get('currentReplicas', '?')} of {_least(hpa)} to {spec['maxReplicas']}")


def _remedy(reason: str) -> str:
    if reason == "FailedGetResourceMetric":
        return "install metrics-server; check it with kubectl top pods"
    if reason == "AmbiguousSelector":
        return "keep only one autoscaler for these pods: kubectl get hpa shows them; delete the others"
    if reason == "FailedGetExternalMetric":
        return "KEDA must serve external metrics (see its finding above); our own HPAs use none"
    return (
        f"load the rules of {_RULES} into prometheus-adapter, and those of our chart (files/rules) into Prometheus "
        "(docs/scaling.md)"
    )


def _scaled(scaled: Object, hpas: Sequence[Object]) -> Iterator[Finding]:
    name, namespace = _name(scaled), scaled["metadata"].get("namespace", "")
    subject = f"scaledobject/{name}"
    queries = [each.get("metadata", {}).get("query", "") for each in scaled["spec"].get("triggers", ())]
    of_others = {found for query in queries for found in re.findall(r'\bnamespace="([^"]*)"', query)} - {namespace}
    if namespace and of_others:
        yield Finding(
            subject, "missing", f"is in namespace {namespace}, but reads the load of namespace {sorted(of_others)[0]}",
            f"render it for that namespace: helm template --namespace {namespace}",
        )  # fmt: skip
        return
    ready, fallback = _condition(scaled, "Ready"), _condition(scaled, "Fallback")
    if ready.get("status") == "False":
        yield Finding(
            subject, "missing", f"not ready: {last_line(ready.get('message', ''))}",
            "KEDA creates no HPA until this is repaired: check the Secrets that the pods name, and Prometheus' address",
        )  # fmt: skip
    elif fallback.get("status") == "True":
        query = next(filter(None, queries), "")
        yield Finding(
            subject, "missing", "gets no values from Prometheus and keeps the current number of replicas (Fallback)",
            f"try its query in Prometheus: {query}",
        )  # fmt: skip
    else:
        # A ScaledObject is Ready without Fallback even if another adapter serves external metrics; its HPA shows it.
        yield from ([_hpa(each, subject) for each in hpas] or [Finding(
            subject, "note", "has no HPA yet", f"kubectl describe scaledobject {name}"
        )])  # fmt: skip


def _ours(objects: Sequence[Object]) -> list[Object]:
    return [each for each in objects if each["metadata"].get("labels", {}).get(OURS) == "triton-gateway"]


def _name(each: Object) -> str:
    return str(each["metadata"]["name"])


def _target(each: Object) -> str:
    return str(each["spec"]["scaleTargetRef"]["name"])


def _owner_of(hpa: Object) -> str:
    """Return the name of the ScaledObject that owns an HPA; empty if none does."""
    owners = hpa["metadata"].get("ownerReferences", ())
    return next((str(each["name"]) for each in owners if each.get("kind") == "ScaledObject"), "")


def _least(each: Object) -> int:
    return int(each["spec"].get("minReplicas", each["spec"].get("minReplicaCount", 1)))


def _condition(each: Object, kind: str) -> dict[str, Any]:
    conditions = (each.get("status") or {}).get("conditions") or ()
    return next((dict(found) for found in conditions if found.get("type") == kind), {})


def _fixed(deployment: Object) -> bool:
    """Return True if the last `kubectl apply` set the number of replicas."""
    text = deployment["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/last-applied-configuration", "")
    try:
        return json.loads(text)["spec"].get("replicas") is not None
    except (ValueError, KeyError, AttributeError):
        return False
