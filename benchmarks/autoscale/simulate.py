"""Runs scenarios: traffic, what breaks, which signals scale the gateways; counts failures, pods, changes of mind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import yaml

from benchmarks.autoscale import hpa, keda
from benchmarks.autoscale.hpa import Metric, NoMetric, Policy, Rules, Spec, by_pods
from benchmarks.autoscale.world import Capacity, World
from benchmarks.shared.backends import BACKENDS, MAX_BATCH
from benchmarks.shared.command import ROOT
from benchmarks.shared.results import RESULTS

MANIFESTS = ROOT / "k8s" / "autoscaling"
MINUTE = 60.0
HOUR = 3600.0

SIGNALS = ("cpu", "rps", "in_flight", "ours")
GATEWAY_WORK = "gateway_inflight_work"
GATEWAY_HOLD = "gateway_hold"
IN_FLIGHT_TARGET = 20.0


def manifest(name: str) -> dict[str, Any]:
    """Read an object of k8s/autoscaling."""
    found: dict[str, Any] = yaml.safe_load((MANIFESTS / name).read_text())
    return found


def measured() -> Capacity:
    """Return capacities from the newest saved benchmark: CPU per request of the gateway, and the GPU-like model.

    A cloud's virtual core is taken as half of the core that was measured, and a tenth stays free for what is not the
    request (garbage collection, health checks, scrapes).
    """
    gpu = BACKENDS["gpu"]
    return Capacity(
        gateway_rps=round(1e6 / gateway_micros() * 0.5 * 0.9), call_s=gpu.call_ms / 1000, row_s=gpu.row_ms / 1000,
        most_rows=MAX_BATCH,
    )  # fmt: skip


def gateway_micros(*, texts: str = "short") -> float:
    """Return the gateway's CPU microseconds per request at 64 connections: the median of the newest run that has it.

    Raises ``ValueError`` when no saved run has it.
    """
    runs = []
    for path in RESULTS.glob("*.json"):
        saved = json.loads(path.read_text())
        cells = saved.get("cells", []) if isinstance(saved, dict) else []  # other trials save other things here
        found = sorted(
            cell["own_us"]
            for cell in cells
            if isinstance(cell, dict)
            and "own_us" in cell
            and (cell["system"], cell["backend"], cell["texts"], cell["connections"])
            == ("gateway", "instant", texts, 64)
            and not cell["rate"]
        )
        if found:
            runs.append((saved["facts"]["began"], float(found[len(found) // 2])))
    if not runs:
        raise ValueError(f"no run in {RESULTS} has the gateway with {texts} texts: python -m benchmarks --quick")
    return max(runs)[1]


@dataclass(frozen=True)
class Scenario:
    """One story; times in seconds. ``watch`` is where shares are counted, after what nobody could have prevented."""

    name: str
    seconds: float
    rate: Callable[[float], float]
    gateways: int
    tritons: int
    watch: tuple[float, float]
    faults: Mapping[str, Callable[[float], Any]] = field(default_factory=dict)
    tick_s: float = 0.25
    about: str = ""


def scenarios(capacity: Capacity) -> dict[str, Scenario]:
    """Return every story; loads are multiples of what the tiers begin with."""
    one = capacity.gateway_rps
    base = 4 * one * 0.6
    tritons = max(1, math.ceil(base / (capacity.triton_rps * 0.6)))
    # What takes minutes to start is provisioned for a step; the step asks what the gateways do.
    ample = math.ceil(4 * base / (capacity.triton_rps * 0.7))

    def step(factor: float) -> Callable[[float], float]:
        return lambda t: base * (factor if t >= 10 * MINUTE else 1)

    def day(t: float) -> float:
        return base * (0.15 + 0.85 * (0.5 - 0.5 * math.cos(2 * math.pi * t / (24 * HOUR))) ** 1.5) * 4

    def within(begin: float, end: float) -> Callable[[float], bool]:
        return lambda t: not begin <= t < end

    out, back = 10 * MINUTE, 20 * MINUTE
    everything = [
        Scenario("step", 30 * MINUTE, step(4), 4, ample, (11 * MINUTE, 30 * MINUTE),
                 about="four times the load from one second to the next; Triton has room; counted from 60 s after"),
        Scenario("step, both tiers", 40 * MINUTE, step(4), 4, tritons, (14 * MINUTE, 40 * MINUTE),
                 about="the same, but Tritons must be started, too; counted from 4 min after"),
        Scenario("burst", 50 * MINUTE, lambda t: base / 2 * (10 if out <= t < 13 * MINUTE else 1), 4, ample,
                 (0, 50 * MINUTE), about="ten times the load for three minutes; counted whole"),
        Scenario("day", 24 * HOUR, day, 4, tritons, (0, 24 * HOUR), tick_s=1.0,
                 about="a day: quiet at night, nearly seven times as much at noon"),
        Scenario("stall", 45 * MINUTE, lambda _: base, 4, tritons, (back - 5 * MINUTE + MINUTE, 45 * MINUTE),
                 {"triton_works": within(out, 15 * MINUTE)},
                 about="the GPUs stop for five minutes and come back; counted from a minute after"),
        Scenario("outage", 45 * MINUTE, lambda t: base * (2 if t >= 15 * MINUTE else 1), 4, ample,
                 (18 * MINUTE, 45 * MINUTE), {"prometheus_works": within(out, 40 * MINUTE)},
                 about="Prometheus is away for half an hour, in which the load doubles; counted from 3 min after that"),
        Scenario("lost target", 45 * MINUTE, lambda _: base, 4, tritons * 2, (0, 45 * MINUTE),
                 {"tritons_are_scraped": within(out, 35 * MINUTE), "gateways_unscraped": lambda t: int(t >= out)},
                 about="no Triton and one gateway less is scraped for 25 minutes; the load stays"),
    ]  # fmt: skip
    return {scenario.name: scenario for scenario in everything}


@dataclass
class Run:
    """What came out: shares of requests, pods over time, and changes of direction."""

    scenario: str
    signal: str
    times: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    gateways: list[int] = field(default_factory=list)
    tritons: list[int] = field(default_factory=list)
    bad: list[float] = field(default_factory=list)
    watched_bad: float = 0.0
    watched_total: float = 0.0
    all_bad: float = 0.0
    all_total: float = 0.0
    pod_hours: float = 0.0
    gpu_hours: float = 0.0

    @property
    def success(self) -> float:
        """Return the share that was answered in time, where it is counted."""
        return 1 - self.watched_bad / self.watched_total if self.watched_total else 1.0

    def direction_changes(self, window: float = 5 * MINUTE) -> dict[str, int]:
        """Return the most changes of direction within any ``window``, by tier."""
        return {"gateways": _changes(self.times, self.gateways, window),
                "tritons": _changes(self.times, self.tritons, window)}  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "scenario": self.scenario, "signal": self.signal, "success": round(self.success, 5),
            "failed_or_late": round(self.all_bad), "requests": round(self.all_total),
            "gateways": [min(self.gateways), max(self.gateways)], "tritons": [min(self.tritons), max(self.tritons)],
            "gateway_hours": round(self.pod_hours, 2), "triton_hours": round(self.gpu_hours, 2),
            "direction_changes_in_5min": self.direction_changes(),
        }  # fmt: skip


def _changes(times: list[float], pods: list[int], window: float) -> int:
    turns: list[float] = []
    last = 0
    for at, (before, after) in zip(times[1:], pairwise(pods), strict=False):
        sign = (after > before) - (after < before)
        if sign and last and sign != last:
            turns.append(at)
        last = sign or last
    return max((sum(at <= other < at + window for other in turns) for at in turns), default=0)


class Gateways:
    """The autoscaler of the gateways, by one of ``SIGNALS``."""

    def __init__(self, signal: str, world: World) -> None:
        self._world = world
        least, most = 2, 64
        rps = world.capacity.gateway_rps
        simple = {
            "cpu": Metric("utilization", "cpu", 0.65), "rps": Metric("pods", "rps", 0.65 * rps),
                        # what a gateway has in flight at 65 % of its CPU when nothing is wrong
            "in_flight": Metric("pods", "in_flight", IN_FLIGHT_TARGET),
        }  # fmt: skip
        # The others with Kubernetes' own defaults, as everybody begins.
        ours = signal == "ours"
        self._hpa = hpa.Hpa(
            hpa.parse(manifest("gateway-hpa/hpa.yaml")) if ours else Spec(least, most, (simple[signal],))
        )

    def step(self) -> None:
        """Sync once."""
        world = self._world
        current = len(world.gateways.pods)
        world.gateways.scale(world.now, self._hpa.step(world.now, current, self._wanted))

    def _wanted(self, metric: Metric) -> int:
        world = self._world
        current = len(world.gateways.pods)
        pods = world.gateway_pods({GATEWAY_WORK: "work", GATEWAY_HOLD: "hold"}.get(metric.name, metric.name))
        return by_pods(pods, metric.target, current, world.now, is_cpu=metric.kind == "utilization")


def run(scenario: Scenario, signal: str, capacity: Capacity, *, ignores_null: bool | None = None) -> Run:
    """Simulate one scenario with one signal for the gateways; Tritons always scale by k8s/autoscaling.

    ``ignores_null`` overrides what the ScaledObject says, to show what KEDA's default would do.
    """
    world = World(
        capacity, scenario.rate, gateways=scenario.gateways, tritons=scenario.tritons, tick_s=scenario.tick_s,
        **scenario.faults,
    )  # fmt: skip
    given = manifest("triton-keda/scaledobject.yaml")
    if ignores_null is not None:
        for trigger in given["spec"]["triggers"]:
            trigger["metadata"]["ignoreNullValues"] = str(ignores_null).lower()
    gateways, tritons = Gateways(signal, world), keda.Keda(keda.parse(given))
    out = Run(scenario.name, signal)
    due, noted = hpa.SYNC_S, 0.0
    seen_bad = 0.0

    def no_cpu(_metric: Metric) -> int:
        raise NoMetric("Tritons are not scaled by CPU")

    while world.now < scenario.seconds:
        bad, total = world.tally.bad, world.tally.total
        world.tick()
        grown_bad, grown = world.tally.bad - bad, world.tally.total - total
        if scenario.watch[0] <= world.now < scenario.watch[1]:
            out.watched_bad += grown_bad
            out.watched_total += grown
        hours = world.tick_s / HOUR
        out.pod_hours += len(world.gateways.pods) * hours
        out.gpu_hours += len(world.tritons.pods) * hours
        if world.now >= due:
            due += hpa.SYNC_S
            gateways.step()
            current = len(world.tritons.pods)
            world.tritons.scale(
                world.now, tritons.step(world.now, current, world.tritons.ready(world.now), world.query, no_cpu)
            )
        if world.now >= noted:
            noted += 5.0
            out.times.append(world.now)
            out.rates.append(scenario.rate(world.now))
            out.gateways.append(len(world.gateways.pods))
            out.tritons.append(len(world.tritons.pods))
            out.bad.append((world.tally.bad - seen_bad) / 5.0)
            seen_bad = world.tally.bad
    out.all_bad, out.all_total = world.tally.bad, world.tally.total
    return out


def kserve() -> dict[str, dict[str, float]]:
    """Reproduce KServe's published step: 0 → 1000 requests/s for a minute on one replica, CPU at 80 % or concurrency 8.

    Its README (test/benchmark): the HPA on CPU answered 93.72 % with a mean of 8.0 s and a p99 of 20.3 s, the
    concurrency autoscaler 100 % with a mean of 0.4 s and a p99 of 3.7 s. One replica's 750/s follows from the 20 s.
    """
    found = {}
    for signal in ("cpu", "concurrency"):
        capacity = Capacity(750.0, 1e-6, 1e-6, late_s=math.inf, timeout_s=30.0, gateway_start_s=8.0, in_flight=10**6,
                            backlog=10**6)  # fmt: skip
        # metrics-server of those years looked once a minute
        world = World(capacity, lambda _: 1000.0, gateways=1, tritons=64, tick_s=0.05, metrics_server_s=60.0)
        scaler = hpa.Hpa(Spec(1, 20, (Metric("utilization", "cpu", 0.8),)))
        due = hpa.SYNC_S if signal == "cpu" else 2.0
        waits: list[tuple[float, float]] = []
        history: list[float] = []
        while world.now < 60.0:
            world.tick()
            backlog = world.waiting_for_cpu
            ready = world.gateways.ready(world.now)
            waits.append((backlog / (ready * 750.0), 50.0))
            history.append(backlog + 8 * min(1.0, 1000 / (ready * 750)))
            if world.now < due:
                continue
            current = len(world.gateways.pods)
            if signal == "cpu":
                due += hpa.SYNC_S

                def wanted(metric: Metric, world: World = world, current: int = current) -> int:
                    return by_pods(world.gateway_pods("cpu"), metric.target, current, world.now, is_cpu=True)

                world.gateways.scale(world.now, scaler.step(world.now, current, wanted))
            else:  # Knative: every two seconds, the mean of six (panic) or sixty seconds, never down in panic
                due += 2.0
                panic = sum(history[-120:]) / len(history[-120:]) / 8
                stable = sum(history[-1200:]) / len(history[-1200:]) / 8
                asked = max(panic, stable) if panic >= 2 * ready else stable
                world.gateways.scale(world.now, max(current, min(20, math.ceil(asked))))
        ordered = sorted(wait for wait, _ in waits)
        found[signal] = {
            "mean_s": round(sum(ordered) / len(ordered), 2), "p99_s": round(ordered[int(len(ordered) * 0.99)], 2),
            "within_1s": round(sum(w <= 1 for w in ordered) / len(ordered), 4),
            "replicas": len(world.gateways.pods),
        }  # fmt: skip
    return found


__all__ = ["Policy", "Rules", "Run", "Scenario", "kserve", "measured", "run", "scenarios"]
