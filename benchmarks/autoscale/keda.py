"""KEDA's part as published: a ScaledObject becomes an HPA whose metrics are asked of Prometheus, with a fallback.

Source: keda.sh "ScaledObject specification", "Prometheus" trigger and the fallback of 2.17. The replicas of a fallback
count for every trigger that fails, after ``failureThreshold`` failures in a row; before that the HPA sees an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.autoscale.hpa import DOWN, UP, Hpa, Metric, NoMetric, Spec, by_average, by_value, parse_rules


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger. ``query`` is PromQL, empty for CPU."""

    metric: Metric
    query: str
    ignores_null: bool = True


@dataclass(frozen=True, slots=True)
class Fallback:
    """``spec.fallback``."""

    threshold: int
    replicas: int
    behavior: str = "static"

    def wanted(self, current: int) -> int:
        """Return the replicas while the source is away."""
        match self.behavior:
            case "currentReplicas":
                return current
            case "currentReplicasIfHigher":
                return max(current, self.replicas)
            case "currentReplicasIfLower":
                return min(current, self.replicas)
            case _:
                return self.replicas


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """What a ScaledObject says."""

    spec: Spec
    triggers: tuple[Trigger, ...]
    fallback: Fallback | None
    polling: float
    cooldown: float


def parse(manifest: Mapping[str, Any]) -> ScaledObject:
    """Read a ``keda.sh/v1alpha1`` object."""
    spec = manifest["spec"]
    triggers = []
    for number, trigger in enumerate(spec["triggers"]):
        given = trigger["metadata"]
        if trigger["type"] == "cpu":
            triggers.append(Trigger(Metric("utilization", "cpu", float(given["value"]) / 100), ""))
            continue
        if trigger["type"] != "prometheus":
            raise ValueError(f"a trigger of type {trigger['type']} is not modelled")
        kind = trigger.get("metricType", "AverageValue")
        of: Literal["average", "value"] = "average" if kind == "AverageValue" else "value"
        triggers.append(Trigger(
            Metric(of, f"s{number}-prometheus", float(given["threshold"])),
            given["query"], str(given.get("ignoreNullValues", "true")).lower() in ("true", "t", "1"),
        ))  # fmt: skip
    behavior = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
    given = spec.get("fallback")
    return ScaledObject(
        Spec(
            # An HPA cannot have 0: KEDA itself goes there.
            max(1, spec.get("minReplicaCount", 0)), spec.get("maxReplicaCount", 100),
            tuple(trigger.metric for trigger in triggers),
            parse_rules(behavior.get("scaleUp"), UP), parse_rules(behavior.get("scaleDown"), DOWN),
        ),
        tuple(triggers),
        Fallback(given["failureThreshold"], given["replicas"], given.get("behavior", "static")) if given else None,
        spec.get("pollingInterval", 30), spec.get("cooldownPeriod", 300),
    )  # fmt: skip


Query = Callable[[str], float | None]
"""Ask Prometheus: a number (NaN included), None for an empty answer; raises ``NoMetric`` when it is away."""


@dataclass
class Keda:
    """One ScaledObject at work."""

    scaled: ScaledObject
    failures: dict[str, int] = field(default_factory=dict)
    hpa: Hpa = field(init=False)

    def __post_init__(self) -> None:
        """Make the HPA that KEDA would make."""
        self.hpa = Hpa(self.scaled.spec)

    def step(self, now: float, current: int, ready: int, query: Query, cpu: Callable[[Metric], int]) -> int:
        """Return the replicas to have; ``cpu`` answers for a resource metric."""

        def wanted(metric: Metric) -> int:
            if metric.kind == "utilization":
                return cpu(metric)
            trigger = next(t for t in self.scaled.triggers if t.metric is metric)
            try:
                value = self._value(trigger, query)
            except NoMetric:
                self.failures[metric.name] = self.failures.get(metric.name, 0) + 1
                fallback = self.scaled.fallback
                if fallback is None or self.failures[metric.name] <= fallback.threshold:
                    raise
                return fallback.wanted(current)
            self.failures[metric.name] = 0
            if metric.kind == "average":
                return by_average(value, metric.target, current)
            return by_value(value, metric.target, current, ready)

        return self.hpa.step(now, current, wanted)

    def _value(self, trigger: Trigger, query: Query) -> float:
        value = query(trigger.query)
        if value is None or math.isnan(value) or math.isinf(value):
            if trigger.ignores_null:
                return 0.0
            raise NoMetric("the answer is empty: a target may be lost")
        return value
