"""The autoscalers' algorithms against what Kubernetes and KEDA publish: examples of their documentation and tests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autoscale import keda
from benchmarks.autoscale.hpa import (
    DOWN,
    UP,
    Hpa,
    Metric,
    NoMetric,
    Pod,
    Policy,
    Rules,
    Spec,
    by_average,
    by_pods,
    by_value,
    parse,
)

CPU = Metric("utilization", "cpu", 0.5)


def pods(*values: float | None, ready: str = "", request: float = 1.0) -> list[Pod]:
    """Pods with values; ``ready`` has an F for each that is not (and has just started)."""
    flags = ready or "T" * len(values)
    return [
        Pod(v, is_ready=f == "T", request=request, started=-math.inf if f == "T" else -10.0)
        for v, f in zip(values, flags, strict=True)
    ]


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [(200, 100, 8), (50, 100, 2), (105, 100, 4), (91, 100, 4), (89, 100, 4), (70, 100, 3)],
)
def test_replicas_follow_the_ratio_of_current_to_target(value: float, target: float, expected: int) -> None:
    """The documentation's own: 200m for 100m doubles, 50m halves, within a tenth nothing happens."""
    assert expected == by_pods(pods(*[value] * 4), target, 4, 0.0, is_cpu=False)


@pytest.mark.parametrize(
    ("levels", "ready", "target", "current", "expected"),
    [
        ((0.3, 0.5, 0.7), "TTT", 0.3, 3, 5),  # ScaleUp
        ((0.3, 0.5, 0.7), "FTT", 0.3, 3, 4),  # ScaleUpUnreadyLessScale
        ((0.4, 0.5, 0.7), "TFF", 0.3, 3, 3),  # ScaleUpUnreadyNoScale
        ((0.1, 0.3, 0.5, 0.25, 0.25), "TTTTT", 0.5, 5, 3),  # ScaleDown
        ((0.1, 0.3, 0.5, 0.25, 0.25), "TTTFF", 0.5, 5, 2),  # ScaleDownIgnoresUnreadyPods
        ((0.4, 0.095, None, None), "TTTT", 1.0, 4, 3),  # MissingMetrics
        ((None, None), "TT", 1.0, 2, None),  # EmptyMetrics
        ((1.0, None), "TT", 0.5, 2, 2),  # MissingMetricsNoChangeEq
        ((0.6, None), "TT", 0.5, 2, 2),  # MissingMetricsNoChangeGt
        ((0.6, None, None), "TTF", 0.5, 3, 3),
    ],
)
def test_kubernetes_own_cases(
    levels: tuple[float | None, ...], ready: str, target: float, current: int, expected: int | None
) -> None:
    """Cases of the controller's tests (replica_calculator_test.go), with their names."""
    if expected is None:
        with pytest.raises(NoMetric):
            by_pods(pods(*levels, ready=ready), target, current, 0.0, is_cpu=True)
    else:
        assert expected == by_pods(pods(*levels, ready=ready), target, current, 0.0, is_cpu=True)


def test_custom_metrics_do_as_the_controllers_tests_have_it() -> None:
    """ScaleUpCM: 20, 10 and 30 for a target of 15 make four of three; ScaleDownCM: five times 12 for 20 make three."""
    assert 4 == by_pods(pods(20, 10, 30), 15, 3, 0.0, is_cpu=False)
    assert 3 == by_pods(pods(12, 12, 12, 12, 12), 20, 5, 0.0, is_cpu=False)
    assert 4 == by_average(8.6, 2.15, 3)  # ScaleUpPerPodCMExternal
    assert 3 == by_average(8.6, 2.867, 5)  # ScaleDownPerPodCMExternal
    assert 4 == by_value(8.6, 6.6, 3, 3)


@given(st.integers(1, 50), st.floats(0, 50), st.floats(0.01, 10))
def test_a_metric_on_target_keeps_and_more_never_wants_less(count: int, value: float, target: float) -> None:
    """Monotone, and still within the tolerance."""
    now = by_pods(pods(*[value] * count), target, count, 0.0, is_cpu=False)
    more = by_pods(pods(*[value * 2 + 1] * count), target, count, 0.0, is_cpu=False)
    assert more >= now or abs(value / target - 1) <= 0.1
    assert count == by_pods(pods(*[target] * count), target, count, 0.0, is_cpu=False)


def spec(*, up: Rules = UP, down: Rules = DOWN, least: int = 1, most: int = 100) -> Spec:
    """An autoscaler over one metric."""
    return Spec(least, most, (CPU,), up, down)


def test_default_policies_double_or_add_four_in_fifteen_seconds() -> None:
    """Whichever is more; then the next period."""
    hpa = Hpa(spec())
    assert 5 == hpa.settle(0, 1, 80)
    assert 5 == hpa.settle(10, 5, 80)
    assert 10 == hpa.settle(15, 5, 80)
    assert 20 == hpa.settle(30, 10, 80)


def test_percent_and_pods_down_as_the_documentation_has_it() -> None:
    """80 replicas, 4 pods or 10 % a minute: first ten per cent, below 40 the pods (selectPolicy Max)."""
    down = Rules(0, (Policy("Pods", 4, 60), Policy("Percent", 10, 60)))
    assert 72 == Hpa(spec(down=down)).settle(0, 80, 10)
    assert 26 == Hpa(spec(down=down)).settle(0, 30, 10)
    lower = Rules(0, (Policy("Pods", 5, 60), Policy("Percent", 10, 60)), "Min")
    assert 75 == Hpa(spec(down=lower)).settle(0, 80, 10)
    assert 80 == Hpa(spec(down=Rules(0, lower.policies, "Disabled"))).settle(0, 80, 10)


def test_scaling_down_waits_for_the_highest_recommendation_of_the_window() -> None:
    """Five minutes; up goes at once, and a dip in between changes nothing."""
    hpa = Hpa(spec())
    assert 10 == hpa.settle(0, 10, 10)
    assert 10 == hpa.settle(60, 10, 3)
    assert 12 == hpa.settle(120, 10, 12)
    assert 12 == hpa.settle(390, 12, 4)
    assert 4 == hpa.settle(421, 12, 4)


def test_an_up_window_waits_for_the_lowest() -> None:
    """A peak shorter than the window adds nothing."""
    hpa = Hpa(spec(up=Rules(60, UP.policies)))
    assert 2 == hpa.settle(0, 2, 2)
    assert 2 == hpa.settle(30, 2, 6)
    assert 6 == hpa.settle(61, 2, 6)


def test_a_metric_that_cannot_be_read_forbids_to_scale_down_only() -> None:
    """The largest of those that can be read counts on the way up; without any nothing happens."""
    both = Spec(1, 10, (CPU, Metric("value", "x", 1)), down=Rules(0, DOWN.policies))

    def asked(cpu: int) -> int:
        def wanted(metric: Metric) -> int:
            if metric is CPU:
                return cpu
            raise NoMetric

        return Hpa(both).step(0, 4, wanted)

    assert (4, 6) == (asked(2), asked(6))

    def nothing(_metric: Metric) -> int:
        raise NoMetric

    assert 4 == Hpa(both).step(0, 4, nothing)


def test_an_object_is_read_as_it_is_written() -> None:
    """Utilisation, pods, external values of both kinds; what is missing has Kubernetes' defaults."""
    external = {"type": "External", "external": {"metric": {"name": "e"}, "target": {"type": "Value", "value": "500m"}}}
    read = parse({"spec": {"maxReplicas": 9, "metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 65}}},
        {"type": "Pods", "pods": {"metric": {"name": "p"}, "target": {"type": "AverageValue", "averageValue": "4"}}},
        external,
    ]}})  # fmt: skip
    assert Spec(1, 9, (Metric("utilization", "cpu", 0.65), Metric("pods", "p", 4), Metric("value", "e", 0.5))) == read


def scaled(**fields: object) -> keda.ScaledObject:
    """A ScaledObject over one Prometheus trigger."""
    metadata = {"query": "q", "threshold": "1", **{k: v for k, v in fields.items() if k == "ignoreNullValues"}}
    rest = {k: v for k, v in fields.items() if k != "ignoreNullValues"}
    return keda.parse({"spec": {
        "minReplicaCount": 1, "triggers": [{"type": "prometheus", "metadata": metadata}], **rest,
    }})  # fmt: skip


def steps(one: keda.ScaledObject, *answers: float | str | None, current: int = 6) -> list[int]:
    """Replicas after each poll; an answer of "away" is a Prometheus that does not answer."""
    made, found, now = keda.Keda(one), [], 0.0
    for answer in answers:

        def query(_text: str, answer: float | str | None = answer) -> float | None:
            if isinstance(answer, str):
                raise NoMetric
            return answer

        now += 400.0
        current = made.step(now, current, current, query, lambda _metric: 0)
        found.append(current)
    return found


def test_keda_takes_an_empty_answer_for_zero_unless_told_otherwise() -> None:
    """The default scales to the minimum when the only target is lost; "false" makes it an error: nothing changes."""
    assert [1] == steps(scaled(), None)
    assert [6, 6] == steps(scaled(ignoreNullValues="false"), None, math.nan)


def test_keda_falls_back_after_more_failures_than_the_threshold() -> None:
    """Until then the HPA has no metric and keeps; static replicas, or those there are; one answer ends it."""
    static = {"failureThreshold": 2, "replicas": 3}
    assert [6, 6, 3, 3, 5] == steps(scaled(fallback=static), "away", "away", "away", "away", 5.0)
    assert [6] * 4 == steps(scaled(fallback={**static, "behavior": "currentReplicasIfHigher"}), *["away"] * 4)
    assert [3] == steps(
        scaled(fallback={**static, "failureThreshold": 0, "behavior": "currentReplicasIfLower"}), "away"
    )
