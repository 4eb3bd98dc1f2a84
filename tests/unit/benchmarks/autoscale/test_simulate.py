"""What k8s/autoscaling does in a model of both tiers, and that its queries are the recorded rules and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from benchmarks.autoscale import hpa, keda, sizing
from benchmarks.autoscale.simulate import (
    GATEWAY_HOLD,
    GATEWAY_WORK,
    MANIFESTS,
    Run,
    kserve,
    manifest,
    run,
    scenarios,
)
from benchmarks.autoscale.world import Capacity, World
from dashboards import rules, scaling

CAPACITY = Capacity(9000.0, 0.004, 50e-6)
"""As the saved benchmark has it, rounded: what is shown here must not hang on one run."""


def simulated(name: str, signal: str = "ours", **options: Any) -> Run:
    """One scenario with one signal."""
    return run(scenarios(CAPACITY)[name], signal, CAPACITY, **options)


def test_four_times_the_load_holds_after_a_minute_without_flapping() -> None:
    """At least 99.9 % in time from 60 s after the step, at most one change of direction in any five minutes."""
    ours, cpu = simulated("step"), simulated("step", "cpu")
    assert ours.success >= 0.999
    assert max(ours.direction_changes().values()) <= 1
    assert ours.all_bad < 0.75 * cpu.all_bad


@pytest.mark.parametrize("tick_s", [0.25, 1.0, 2.0])
def test_the_step_of_the_clock_fails_no_request(tick_s: float) -> None:
    """Gateways at 60 % of their CPU answer everything, however many requests one step of the clock brings."""
    world = World(CAPACITY, lambda _: 0.6 * 4 * CAPACITY.gateway_rps, gateways=4, tritons=8, tick_s=tick_s)
    while world.now < 60:
        world.tick()
    assert 0.0 == world.tally.failed


def test_a_day_is_answered_and_both_tiers_follow_it() -> None:
    """Nearly seven times as much at noon as at night: at least 99.9 % in time."""
    day = simulated("day")
    assert day.success >= 0.999
    assert max(day.gateways) >= 4 * min(day.gateways)
    assert max(day.tritons) >= 2 * min(day.tritons)


def test_kserves_published_step_comes_out_of_the_same_machinery() -> None:
    """On CPU the minute is over before a second replica helps; concurrency scales within seconds."""
    found = kserve()
    assert 15 < found["cpu"]["p99_s"] < 25
    assert found["concurrency"]["p99_s"] < 5
    assert found["concurrency"]["mean_s"] < 1 < found["cpu"]["mean_s"]


def test_a_stalled_gpu_adds_and_takes_no_gateway() -> None:
    """Where requests in flight ask for everything there is."""
    ours, in_flight = simulated("stall"), simulated("stall", "in_flight")
    assert {4} == set(ours.gateways)
    assert max(in_flight.gateways) >= 16


def test_a_lost_target_or_prometheus_takes_nothing_away() -> None:
    """Gateways still follow CPU up; with KEDA's default a lost target would read as no load."""
    lost, outage = simulated("lost target"), simulated("outage")
    assert (1.0, {lost.tritons[0]}) == (lost.success, set(lost.tritons))
    assert outage.success >= 0.999
    assert min(outage.tritons) == outage.tritons[0]
    assert max(outage.gateways) > outage.gateways[0]
    naive = simulated("lost target", ignores_null=True)
    assert min(naive.tritons) < naive.tritons[0] / 2
    assert naive.success < 0.999


def recorded() -> dict[str, str]:
    """Recorded rules by name."""
    return {record.name: record.expr for record in rules.records()}


def adapter() -> dict[str, Any]:
    """prometheus-adapter's configuration."""
    text = manifest("prometheus-adapter/config.yaml")["data"]["config.yaml"]
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_every_query_of_the_autoscalers_is_made_of_recorded_rules() -> None:
    """So that boards, alerts, simulation and cluster read the same number."""
    queries = [rule["metricsQuery"] for rule in adapter()["rules"]]
    for path in MANIFESTS.glob("*-keda/scaledobject.yaml"):
        queries += [t.query for t in keda.parse(yaml.safe_load(path.read_text())).triggers if t.query]
    named = {name for query in queries for name in re.findall(r"\b(?:job|instance):\w+:\w+", query)}
    assert named == {
        scaling.HOLD_EACH, scaling.HOLD_TOTAL, scaling.WORK_ASKED, scaling.WORK_TOTAL, scaling.WANTED_BY_QUEUE,
        scaling.WANTED_BY_P95, scaling.WANTED_BY_LOAD,
    }  # fmt: skip
    assert named <= recorded().keys()
    assert all(any(name in query for name in named) for query in queries)


def test_every_metric_of_the_hpas_is_one_of_the_adapters() -> None:
    """By name, and of the labels that the HPA asks by."""
    names = {rule["name"]["as"] for rule in adapter()["rules"]}
    wanted = set()
    for path in MANIFESTS.glob("*-hpa/hpa.yaml"):
        wanted |= {m.name for m in hpa.parse(yaml.safe_load(path.read_text())).metrics if m.kind != "utilization"}
    assert wanted == names
    assert {GATEWAY_WORK, GATEWAY_HOLD} <= names
    assert all("<<.LabelMatchers>>" in rule["metricsQuery"] for rule in adapter()["rules"])


def test_both_forms_of_an_autoscaler_say_the_same() -> None:
    """Bounds, windows, policies and targets of the HPA and of the ScaledObject for it."""
    for tier in ("gateway", "triton"):
        ours = hpa.parse(manifest(f"{tier}-hpa/hpa.yaml"))
        scaled = keda.parse(manifest(f"{tier}-keda/scaledobject.yaml"))
        assert (ours.least, ours.most, ours.up, ours.down) == (
            scaled.spec.least, scaled.spec.most, scaled.spec.up, scaled.spec.down,
        )  # fmt: skip
        assert [m.target for m in ours.metrics] == [m.target for m in scaled.spec.metrics]
        assert all(not t.ignores_null for t in scaled.triggers if t.query)
        assert scaled.fallback is not None
        assert "currentReplicasIfHigher" == scaled.fallback.behavior


@pytest.mark.parametrize("rate", [100, 5_000, 1_000_000])
def test_a_size_has_room_and_never_less_than_two_of_each(rate: float) -> None:
    """Both tiers stay below their targets; more load never costs more per request."""
    capacity = Capacity(4000, 0.004, 0.00005)
    prices = sizing.prices()
    found = sizing.size(rate, capacity, prices)
    assert rate <= found.gateways * capacity.gateway_rps * sizing.CPU_SHARE or found.gateways == 2
    assert rate <= found.gpus * capacity.triton_rps * sizing.GPU_SHARE or found.gpus == 2
    assert min(found.gateways, found.gpus) >= 2
    assert sizing.size(rate * 10, capacity, prices).cost <= found.cost * 1.01
