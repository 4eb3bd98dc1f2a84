"""The autoscalers' objects: their queries are the recorded rules and nothing else, and both forms say the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from dashboards import rules, scaling
from tests.kube_tools import ADAPTER

Render = Callable[..., list[dict[str, Any]]]
RULES: list[dict[str, Any]] = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
"""Those of prometheus-adapter."""
TIERS = {"gateway": "triton-gateway", "triton": "triton"}


def scaler(helm: Render, tier: str, by: str) -> dict[str, Any]:
    """The spec of what scales a tier, in the chart with that kind of autoscaler."""
    kind = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[by]
    [found] = [
        each for each in helm(**{f"autoscaling__{tier}__by": f'"{by}"'})
        if each["kind"] == kind and each["metadata"]["name"] == TIERS[tier]
    ]  # fmt: skip
    return dict(found["spec"])


def asked(scaled: dict[str, Any]) -> list[dict[str, Any]]:
    """The triggers of a ScaledObject that ask Prometheus."""
    return [each["metadata"] for each in scaled["triggers"] if each["type"] == "prometheus"]


def metrics(hpa: dict[str, Any]) -> list[tuple[str, str]]:
    """Metrics of an HPA: name and target; CPU in percent."""
    found = []
    for one in hpa["metrics"]:
        part = one[one["type"].lower()]
        target = part["target"]
        value = target.get("averageValue", target.get("value", target.get("averageUtilization")))
        found.append((part.get("name") or part["metric"]["name"], str(value)))
    return found


def test_every_query_of_the_autoscalers_is_made_of_recorded_rules(helm: Render) -> None:
    """So that boards, alerts and autoscalers read the same number."""
    queries = [rule["metricsQuery"] for rule in RULES]
    queries += [each["query"] for tier in TIERS for each in asked(scaler(helm, tier, "keda"))]
    named = {name for query in queries for name in re.findall(r"\b(?:job|instance):\w+:\w+", query)}
    assert named == {
        scaling.HOLD_EACH, scaling.HOLD_TOTAL, scaling.WORK_ASKED, scaling.WORK_TOTAL, scaling.WANTED_BY_QUEUE,
        scaling.WANTED_BY_P95, scaling.WANTED_BY_LOAD,
    }  # fmt: skip
    assert named <= {record.name for record in rules.records()}
    assert all(any(name in query for name in named) for query in queries)


def test_every_metric_of_the_hpas_is_one_of_the_adapters(helm: Render) -> None:
    """By name, and of the labels that the HPA asks by."""
    names = {rule["name"]["as"] for rule in RULES}
    wanted = {name for tier in TIERS for name, _ in metrics(scaler(helm, tier, "hpa"))}
    assert wanted - {"cpu"} == names
    assert {"gateway_inflight_work", "gateway_hold"} <= names
    assert all("<<.LabelMatchers>>" in rule["metricsQuery"] for rule in RULES)


@pytest.mark.parametrize("tier", TIERS)
def test_both_forms_of_an_autoscaler_say_the_same(tier: str, helm: Render) -> None:
    """Bounds, windows, policies and targets of the HPA and of the ScaledObject for it."""
    ours, scaled = scaler(helm, tier, "hpa"), scaler(helm, tier, "keda")
    assert (ours["minReplicas"], ours["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
    assert ours["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    targets = [each["metadata"].get("threshold", each["metadata"].get("value")) for each in scaled["triggers"]]
    assert [target for _, target in metrics(ours)] == targets
    assert {"false"} == {each["ignoreNullValues"] for each in asked(scaled)}
    assert "currentReplicasIfHigher" == scaled["fallback"]["behavior"]
