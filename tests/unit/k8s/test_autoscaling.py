"""The autoscalers' objects: their queries are the recorded rules and nothing else, and both forms say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from dashboards import rules, scaling

MANIFESTS = Path(__file__).parents[3] / "k8s" / "autoscaling"


def manifest(name: str) -> dict[str, Any]:
    """An object of k8s/autoscaling."""
    found: dict[str, Any] = yaml.safe_load((MANIFESTS / name).read_text())
    return found


def adapter() -> dict[str, Any]:
    """prometheus-adapter's configuration."""
    text = manifest("prometheus-adapter/config.yaml")["data"]["config.yaml"]
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def asked(name: str) -> list[dict[str, Any]]:
    """The triggers of a ScaledObject that ask Prometheus."""
    return [each["metadata"] for each in manifest(name)["spec"]["triggers"] if each["type"] == "prometheus"]


def metrics(name: str) -> list[tuple[str, str]]:
    """Metrics of an HPA: name and target; CPU in percent."""
    found = []
    for one in manifest(name)["spec"]["metrics"]:
        part = one[one["type"].lower()]
        target = part["target"]
        value = target.get("averageValue", target.get("value", target.get("averageUtilization")))
        found.append((part.get("name") or part["metric"]["name"], str(value)))
    return found


def test_every_query_of_the_autoscalers_is_made_of_recorded_rules() -> None:
    """So that boards, alerts and autoscalers read the same number."""
    queries = [rule["metricsQuery"] for rule in adapter()["rules"]]
    for path in MANIFESTS.glob("*-keda/scaledobject.yaml"):
        queries += [each["query"] for each in asked(str(path.relative_to(MANIFESTS)))]
    named = {name for query in queries for name in re.findall(r"\b(?:job|instance):\w+:\w+", query)}
    assert named == {
        scaling.HOLD_EACH, scaling.HOLD_TOTAL, scaling.WORK_ASKED, scaling.WORK_TOTAL, scaling.WANTED_BY_QUEUE,
        scaling.WANTED_BY_P95, scaling.WANTED_BY_LOAD,
    }  # fmt: skip
    assert named <= {record.name for record in rules.records()}
    assert all(any(name in query for name in named) for query in queries)


def test_every_metric_of_the_hpas_is_one_of_the_adapters() -> None:
    """By name, and of the labels that the HPA asks by."""
    names = {rule["name"]["as"] for rule in adapter()["rules"]}
    wanted = {
        name for path in MANIFESTS.glob("*-hpa/hpa.yaml") for name, _ in metrics(str(path.relative_to(MANIFESTS)))
    }  # fmt: skip
    assert wanted - {"cpu"} == names
    assert {"gateway_inflight_work", "gateway_hold"} <= names
    assert all("<<.LabelMatchers>>" in rule["metricsQuery"] for rule in adapter()["rules"])


def test_both_forms_of_an_autoscaler_say_the_same() -> None:
    """Bounds, windows, policies and targets of the HPA and of the ScaledObject for it."""
    for tier in ("gateway", "triton"):
        ours, scaled = manifest(f"{tier}-hpa/hpa.yaml")["spec"], manifest(f"{tier}-keda/scaledobject.yaml")["spec"]
        assert (ours["minReplicas"], ours["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
        assert ours["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        targets = [each["metadata"].get("threshold", each["metadata"].get("value")) for each in scaled["triggers"]]
        assert [target for _, target in metrics(f"{tier}-hpa/hpa.yaml")] == targets
        assert {"false"} == {each["ignoreNullValues"] for each in asked(f"{tier}-keda/scaledobject.yaml")}
        assert "currentReplicasIfHigher" == scaled["fallback"]["behavior"]
