"""The autoscalers' objects: what KEDA asks are the recorded rules and nothing else, and both kinds move as fast."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dashboards import rules
from tests.kube_tools import RECORDS

Render = Callable[..., list[dict[str, Any]]]
TIERS = {"gateway": "triton-gateway", "triton": "triton"}


def scaler(helm: Render, tier: str, by: str) -> dict[str, Any]:
    """The spec of what scales a tier, in the chart with that kind of autoscaler."""
    kind = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[by]
    [found] = [
        each for each in helm(**{f"autoscaling__{tier}__by": f'"{by}"'})
        if each["kind"] == kind and each["metadata"]["name"] == TIERS[tier]
    ]  # fmt: skip
    return dict(found["spec"])


def test_what_keda_asks_is_recorded(helm: Render) -> None:
    """So that boards and autoscalers read the same number: two series for each tier, beside CPU for gateways."""
    asked = {tier: scaler(helm, tier, "keda")["triggers"] for tier in TIERS}
    assert {"gateway": 3, "triton": 2} == {tier: len(found) for tier, found in asked.items()}
    queries = [each["metadata"]["query"] for found in asked.values() for each in found if each["type"] == "prometheus"]
    named = {name for query in queries for name in re.findall(r"\bmax\(([\w:]+){", query)}
    assert {rules.WORK, "job:gateway_hold:total", rules.WANTED_BY_QUEUE, rules.WANTED_BY_LOAD} == named
    assert named <= RECORDS.keys()


@pytest.mark.parametrize("tier", TIERS)
def test_both_kinds_of_autoscaler_move_as_fast(tier: str, helm: Render) -> None:
    """Bounds, windows and policies of the HPA and of the ScaledObject; what is unknown takes nothing away."""
    ours, scaled = scaler(helm, tier, "hpa"), scaler(helm, tier, "keda")
    assert (ours["minReplicas"], ours["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
    assert ours["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert ["cpu"] == [one["resource"]["name"] for one in ours["metrics"]]
    asked = [each["metadata"] for each in scaled["triggers"] if each["type"] == "prometheus"]
    assert {"false"} == {each["ignoreNullValues"] for each in asked}
    assert "currentReplicasIfHigher" == scaled["fallback"]["behavior"]
