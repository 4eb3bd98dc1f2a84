"""What keeps autoscalers from scaling: who serves their metrics, what they say of themselves, what stands in their way.

Called by ``kube.check``; reads only. A finding that is not fine has one line that says what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from deploy.admin.doctor.finding import Finding
from deploy.admin.doctor.kubectl import Kubectl, last_line, unseen

OURS: Final = "app.kubernetes.io/part-of"
"""A label that our HPAs and ScaledObjects have, with the value ``triton-gateway``."""
_WHAT: Final = "app.kubernetes.io/name"
"""One whose value tells gateways' from Tritons'."""
_EXTERNAL: Final = "external.metrics.k8s.io"
_CUSTOM: Final = "custom.metrics.k8s.io"
_RULES: Final = "k8s/autoscaling/prometheus-adapter"

Object = Mapping[str, Any]


def metrics(kubectl: Kubectl, needs: Sequence[str]) -> Iterator[Finding]:
    """Look at who serves the metrics that are not CPU, and whether KEDA is new enough."""
    scaled = _ours(kubectl.items("scaledobjects.keda.sh"))
    subject = "own metrics (HPA on work in flight)"
    found = kubectl("get", "--raw", f"/apis/{_CUSTOM}")
    if "metrics" in needs and found.code == 0:
        yield Finding(subject, "ok", _CUSTOM)
    elif "metrics" in needs and any(each["metadata"]["labels"].get(_WHAT) == "triton-gateway" for each in scaled):
        yield Finding(subject, "ok", "KEDA scales the gateways: no HPA of ours asks for them")
    elif "metrics" in needs:
        remedy = f"install prometheus-adapter with the rules of {_RULES}, or scale gateways by KEDA (docs/scaling.md)"
        yield unseen(subject, found, remedy)
    if "keda" in needs or scaled:
        yield _owner(kubectl)
        yield _fallback(kubectl)


def _owner(kubectl: Kubectl) -> Finding:
    """Whether KEDA owns the one API of external metrics."""
    subject = f"external metrics (KEDA): {_EXTERNAL}"
    found = kubectl("get", "apiservice", f"v1beta1.{_EXTERNAL}", "--output=json")
    service = found.json()
    if not isinstance(service, dict):
        return unseen(subject, found, "install KEDA: its release registers the API")
    owner = (service.get("spec") or {}).get("service") or {}
    said = f"{owner.get('namespace', '?')}/{owner.get('name', '?')}"
    if "keda" not in said:
        return Finding(
            subject, "missing", f"belongs to {said}: KEDA's autoscalers never get a number, whatever they say",
            "take the external rules out of prometheus-adapter (its chart: rules.external: []), then run KEDA's helm "
            "upgrade again",
        )  # fmt: skip
    away = _condition(service, "Available")
    if away.get("status") == "False":
        return Finding(
            subject, "missing", f"{said} does not answer: {away.get('message', '')}", f"kubectl get pods -n {said}"
        )
    return Finding(subject, "ok", f"served by {said}")


def _fallback(kubectl: Kubectl) -> Finding:
    """Whether KEDA knows ``fallback.behavior``: without it an outage of Prometheus leaves the least replicas."""
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
            return Finding(subject, "ok", "known")
    return Finding(
        subject, "missing", "KEDA is older than 2.17: kubectl refuses the field, Helm drops it, and the next outage of "
        "Prometheus scales Tritons to the least number",
        "upgrade KEDA; until then take the field out and set fallback.replicas to what you need at peak",
    )  # fmt: skip


def autoscalers(kubectl: Kubectl, deployments: Sequence[Object]) -> Iterator[Finding]:
    """Look at every HPA and ScaledObject that scales something of ours, and at what they scale."""
    hpas, scaled = kubectl.items("horizontalpodautoscalers"), kubectl.items("scaledobjects.keda.sh")
    targets = {each["metadata"]["name"] for each in deployments} | {_target(each) for each in _ours([*hpas, *scaled])}
    budgets = {each["metadata"]["name"] for each in kubectl.items("poddisruptionbudgets")}
    # KEDA makes an HPA of its own: what is said of it is said of its ScaledObject.
    of_keda = {_name(each): _owner_of(each) for each in hpas if _owner_of(each)}
    for target in sorted(targets):
        by_hpa = [each for each in hpas if _target(each) == target and _name(each) not in of_keda]
        by_keda = [each for each in scaled if _target(each) == target]
        everyone = [f"hpa/{_name(each)}" for each in by_hpa] + [f"scaledobject/{_name(each)}" for each in by_keda]
        if len(everyone) > 1:
            yield Finding(
                f"autoscaler of {target}", "missing", f"{' and '.join(everyone)} scale it: neither does anything",
                f"kubectl -n {kubectl.namespace} delete {everyone[-1]}, or the other one; apply one overlay only",
            )  # fmt: skip
        for each in by_hpa:
            yield _hpa(each, f"hpa/{_name(each)}")
        for each in by_keda:
            yield from _scaled(each, [hpa for hpa in hpas if of_keda.get(_name(hpa)) == _name(each)])
        least = min((_least(each) for each in (*by_hpa, *by_keda)), default=None)
        deployment = next((each for each in deployments if each["metadata"]["name"] == target), None)
        if least is not None and deployment is not None and _fixed(deployment):
            yield Finding(
                f"replicas of {target}", "note", "stand in what you apply beside an autoscaler: every apply undoes "
                "what it did, and the first one without the line leaves a single pod",
                "docs/scaling.md says how they are taken out",
            )  # fmt: skip
        if least is None and deployment is not None:
            least = deployment.get("spec", {}).get("replicas", 1)
        if least == 1 and target in budgets:
            yield Finding(
                f"least of {target}", "note", "one pod, under a budget that lets one go: a drain takes it away",
                "two at least (autoscaling.….min, or replicas)",
            )  # fmt: skip


def quota(kubectl: Kubectl) -> Iterator[Finding]:
    """Say if a quota refuses pods for the CPU limit that ours have not, on purpose."""
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
            f"quota {limited[0]}", "missing", "counts limits.cpu, and our pods have none, for throttling shows as p99: "
            "every pod is refused",
            "take limits.cpu out of it, add a LimitRange with a default for cpu, or set …resources.limits.cpu",
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
            subject, "missing", f"{has} of {wanted} metrics have a number: it adds replicas by those, and takes none",
            _remedy("FailedGetPodsMetric"),
        )  # fmt: skip
    return Finding(subject, "ok", f"{status.get('currentReplicas', '?')} of {_least(hpa)} to {spec['maxReplicas']}")


def _remedy(reason: str) -> str:
    if reason == "FailedGetResourceMetric":
        return "install metrics-server; kubectl top pods has to answer"
    if reason == "AmbiguousSelector":
        return "one autoscaler for these pods: kubectl get hpa, and delete the other one"
    if reason == "FailedGetExternalMetric":
        return "external metrics are KEDA's: see above; an HPA of ours asks for none"
    return (
        f"prometheus-adapter needs the rules of {_RULES}, Prometheus those of dashboards/prometheus (docs/scaling.md)"
    )


def _scaled(scaled: Object, hpas: Sequence[Object]) -> Iterator[Finding]:
    name, namespace = _name(scaled), scaled["metadata"].get("namespace", "")
    subject = f"scaledobject/{name}"
    queries = [each.get("metadata", {}).get("query", "") for each in scaled["spec"].get("triggers", ())]
    of_others = {found for query in queries for found in re.findall(r'\bnamespace="([^"]*)"', query)} - {namespace}
    if namespace and of_others:
        yield Finding(
            subject, "missing", f"asks for the load of namespace {sorted(of_others)[0]}, and is in {namespace}",
            "the namespace in its queries has to be its own: docs/scaling.md",
        )  # fmt: skip
        return
    ready, fallback = _condition(scaled, "Ready"), _condition(scaled, "Fallback")
    if ready.get("status") == "False":
        yield Finding(
            subject, "missing", f"not ready: {last_line(ready.get('message', ''))}",
            "KEDA makes no HPA until this is mended: the Secrets that the pods name, or Prometheus' address",
        )  # fmt: skip
    elif fallback.get("status") == "True":
        query = next(filter(None, queries), "")
        yield Finding(
            subject, "missing", "has no numbers and keeps the replicas there are (Fallback)",
            f"try its query in Prometheus: {query}",
        )  # fmt: skip
    else:
        # Ready and no Fallback is also what it says while somebody else serves external metrics.
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
    """The ScaledObject that an HPA was made for."""
    owners = hpa["metadata"].get("ownerReferences", ())
    return next((str(each["name"]) for each in owners if each.get("kind") == "ScaledObject"), "")


def _least(each: Object) -> int:
    return int(each["spec"].get("minReplicas", each["spec"].get("minReplicaCount", 1)))


def _condition(each: Object, kind: str) -> dict[str, Any]:
    conditions = (each.get("status") or {}).get("conditions") or ()
    return next((dict(found) for found in conditions if found.get("type") == kind), {})


def _fixed(deployment: Object) -> bool:
    """Whether the last apply by kubectl said how many replicas there are."""
    text = deployment["metadata"].get("annotations", {}).get("kubectl.kubernetes.io/last-applied-configuration", "")
    try:
        return json.loads(text)["spec"].get("replicas") is not None
    except (ValueError, KeyError, AttributeError):
        return False
