"""The HorizontalPodAutoscaler of Kubernetes as published (autoscaling/v2): metrics in, replicas out.

Source: kubernetes.io "Horizontal Pod Autoscaling" and the controller's ``replica_calculator`` and ``horizontal`` of
1.27 and later. What is here: the ratio and its tolerance, pods that are not ready or without metrics, several metrics
of which some fail, stabilisation windows, policies. What is not: scaling from zero, container metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

TOLERANCE = 0.1
SYNC_S = 15.0
CPU_INITIALIZATION_S = 300.0
INITIAL_READINESS_S = 30.0


class NoMetric(Exception):
    """A metric cannot be read now."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as the controller sees it. ``value``: the metric, None when there is none; times in seconds."""

    value: float | None
    is_ready: bool = True
    is_pending: bool = False
    started: float = -math.inf
    ready_since: float = -math.inf
    request: float = 1.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of ``spec.metrics``; ``target`` is a share for utilisation."""

    kind: Literal["utilization", "pods", "average", "value"]
    name: str
    target: float


@dataclass(frozen=True, slots=True)
class Policy:
    """One scaling policy."""

    kind: Literal["Pods", "Percent"]
    value: float
    period: float


@dataclass(frozen=True, slots=True)
class Rules:
    """One direction of ``spec.behavior``."""

    window: float
    policies: tuple[Policy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"


UP = Rules(0.0, (Policy("Pods", 4, 15), Policy("Percent", 100, 15)))
DOWN = Rules(300.0, (Policy("Percent", 100, 15),))


@dataclass(frozen=True, slots=True)
class Spec:
    """What a HorizontalPodAutoscaler object says."""

    least: int
    most: int
    metrics: tuple[Metric, ...]
    up: Rules = UP
    down: Rules = DOWN


def parse_quantity(text: str | float) -> float:
    """Read a Kubernetes quantity such as ``500m`` or ``4``."""
    text = str(text)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def parse(manifest: Mapping[str, Any]) -> Spec:
    """Read an ``autoscaling/v2`` object."""
    spec = manifest["spec"]
    metrics = []
    for entry in spec["metrics"]:
        body = entry[entry["type"].lower()]
        target = body["target"]
        if entry["type"] == "Resource":
            metrics.append(Metric("utilization", body["name"], target["averageUtilization"] / 100))
        elif entry["type"] == "Pods":
            metrics.append(Metric("pods", body["metric"]["name"], parse_quantity(target["averageValue"])))
        elif target["type"] == "AverageValue":
            metrics.append(Metric("average", body["metric"]["name"], parse_quantity(target["averageValue"])))
        else:
            metrics.append(Metric("value", body["metric"]["name"], parse_quantity(target["value"])))
    behavior = spec.get("behavior", {})
    return Spec(
        spec.get("minReplicas", 1), spec["maxReplicas"], tuple(metrics),
        parse_rules(behavior.get("scaleUp"), UP), parse_rules(behavior.get("scaleDown"), DOWN),
    )  # fmt: skip


def parse_rules(given: Mapping[str, Any] | None, default: Rules) -> Rules:
    """Read one direction of a behavior; what is missing is Kubernetes' default."""
    if not given:
        return default
    policies = tuple(Policy(p["type"], p["value"], p["periodSeconds"]) for p in given.get("policies", ()))
    return Rules(
        given.get("stabilizationWindowSeconds", default.window), policies or default.policies,
        given.get("selectPolicy", "Max"),
    )  # fmt: skip


def by_pods(
    pods: Sequence[Pod], target: float, current: int, now: float, *, is_cpu: bool, tolerance: float = TOLERANCE
) -> int:
    """Return the replicas a metric with one value per pod asks for. Raises ``NoMetric``.

    ``target`` is per pod, for CPU a share of ``request``. Pods without a value count as idle when that would add pods
    and as fully on target when it would take some away; pods that are not ready count as idle on the way up.
    """
    known, ignored, missing, ready = [], [], [], 0
    for pod in pods:
        if pod.is_pending:
            ignored.append(pod)
        elif pod.value is None:
            missing.append(pod)
        elif is_cpu and _is_unready(pod, now):
            ignored.append(pod)
        else:
            known.append(pod)
            ready += 1
    if not known:
        raise NoMetric("did not receive metrics for any ready pods")

    def ratio(values: Sequence[tuple[float, float]]) -> float:
        used = sum(value for value, _ in values)
        wanted = sum(request for _, request in values) if is_cpu else float(len(values))
        return used / wanted / target

    counted = [(pod.value or 0.0, pod.request) for pod in known]
    usage = ratio(counted)
    rebalance = bool(ignored) and usage > 1
    if not rebalance and not missing:
        return current if abs(1 - usage) <= tolerance else math.ceil(_tidy(usage * ready))
    if missing:
        if usage < 1:
            counted += [(pod.request if is_cpu else target, pod.request) for pod in missing]
        elif usage > 1:
            counted += [(0.0, pod.request) for pod in missing]
    if rebalance:
        counted += [(0.0, pod.request) for pod in ignored]
    again = ratio(counted)
    if abs(1 - again) <= tolerance or (usage < 1 < again) or (again < 1 < usage):
        return current
    wanted = math.ceil(_tidy(again * len(counted)))
    if (again < 1 and wanted > current) or (again > 1 and wanted < current):
        return current
    return wanted


def _is_unready(pod: Pod, now: float) -> bool:
    if pod.started + CPU_INITIALIZATION_S > now:
        return not pod.is_ready or now < pod.ready_since + SYNC_S
    return not pod.is_ready and pod.started + INITIAL_READINESS_S > pod.ready_since


def _tidy(value: float) -> float:
    # 2.0000000000000004 pods are two: the controller computes in whole milli-units.
    return round(value, 6)


def by_average(total: float, target: float, current: int, *, tolerance: float = TOLERANCE) -> int:
    """Return the replicas an external metric with an ``AverageValue`` target asks for."""
    ratio = total / (target * current) if current else math.inf
    return current if abs(1 - ratio) <= tolerance else math.ceil(_tidy(total / target))


def by_value(value: float, target: float, current: int, ready: int, *, tolerance: float = TOLERANCE) -> int:
    """Return the replicas an external metric with a ``Value`` target asks for."""
    ratio = value / target
    return current if abs(1 - ratio) <= tolerance else math.ceil(_tidy(ratio * ready))


@dataclass
class Hpa:
    """One autoscaler with its memory: recommendations for the windows, changes for the policies."""

    spec: Spec
    recommendations: list[tuple[float, int]] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)

    def step(self, now: float, current: int, wanted: Callable[[Metric], int]) -> int:
        """Return the replicas to have from now on; ``wanted`` asks one metric and may raise ``NoMetric``."""
        asked, failed = [], 0
        for metric in self.spec.metrics:
            try:
                asked.append(wanted(metric))
            except NoMetric:
                failed += 1
        # Metrics that cannot be read forbid to scale down, and without any there is nothing to go by.
        if not asked or (failed and max(asked) < current):
            return current
        return self.settle(now, current, max(asked))

    def settle(self, now: float, current: int, desired: int) -> int:
        """Apply bounds, stabilisation windows and policies to a recommendation, and remember it."""
        up, down = self.spec.up, self.spec.down
        keep = max(up.window, down.window)
        self.recommendations = [(t, n) for t, n in self.recommendations if t > now - keep] + [(now, desired)]
        steady = current
        steady = max(steady, min(n for t, n in self.recommendations if t > now - up.window or t == now))
        steady = min(steady, max(n for t, n in self.recommendations if t > now - down.window or t == now))
        limited = self._limited(now, current, steady)
        if limited != current:
            self.changes.append((now, limited - current))
        return limited

    def _limited(self, now: float, current: int, wanted: int) -> int:
        spec = self.spec
        if wanted > current:
            limit = self._limit(now, current, spec.up, +1)
            return max(current, min(wanted, limit, spec.most))
        if wanted < current:
            limit = self._limit(now, current, spec.down, -1)
            return min(current, max(wanted, limit, spec.least))
        return min(max(wanted, spec.least), spec.most)

    def _limit(self, now: float, current: int, rules: Rules, sign: int) -> int:
        if rules.select == "Disabled":
            return current
        limits = []
        for policy in rules.policies:
            start = current - sum(change for t, change in self.changes if t > now - policy.period)
            if policy.kind == "Pods":
                limits.append(start + sign * int(policy.value))
            elif sign > 0:
                limits.append(math.ceil(_tidy(start * (1 + policy.value / 100))))
            else:
                limits.append(int(_tidy(start * (1 - policy.value / 100))))
        is_widest_up = (rules.select == "Max") == (sign > 0)
        return max(limits) if is_widest_up else min(limits)
