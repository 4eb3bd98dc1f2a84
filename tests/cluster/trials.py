"""Scenarios on real controllers: releases of the chart on a real Kubernetes, with a simulated load on their pods."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.autoscalers import ROOT, start_adapter, start_keda, start_prometheus
from tests.cluster.control_plane import Cluster, started
from tests.cluster.nodes import Machines, Played
from tests.cluster.played import MINUTE, TIERS, Player, Scenario, Trial, playing
from tests.cluster.world import Capacity

CHART: Final = ROOT / "k8s" / "helm" / "triton-gateway"
SIGNALS: Final = ("ours", "cpu")


def scenarios(capacity: Capacity, *, quick: bool = False) -> dict[str, Scenario]:
    """Return all scenarios; loads are multiples of the initial capacity. ``quick``: in minutes."""
    base = 4 * capacity.gateway_rps * 0.6
    tritons = max(1, math.ceil(base / (capacity.triton_rps * 0.6)))
    # Capacity that takes minutes to start is provisioned for a burst; the burst needs what the gateways can do.
    ample = math.ceil(4 * base / (capacity.triton_rps * 0.7))
    at, end = (2 * MINUTE, 7 * MINUTE) if quick else (3 * MINUTE, 15 * MINUTE)

    def step(t: float) -> float:
        return base * (4 if t >= at else 1)

    def burst(t: float) -> float:
        return base / 2 * (10 if at <= t < at + 3 * MINUTE else 1)

    def day(t: float) -> float:
        return base * (0.15 + 0.85 * (0.5 - 0.5 * math.cos(2 * math.pi * t / end)) ** 1.5) * 2.5

    everything = [
        Scenario("step", end, step, 4, tritons, (at, end), event=at),
        Scenario("burst", end, burst, 4, ample, (0, end), event=at),
        Scenario("day", end, day, 4, tritons, (0, end), event=at),
        Scenario("stall", end, lambda _: base, 4, tritons, (0, end), event=at,
                 triton_works=lambda t: not at <= t < at + 3 * MINUTE),
        Scenario("lost target", end, lambda _: base, 4, tritons * 2, (0, end), event=at,
                 scraped=lambda tier, number, t: t < at or (tier == "triton-gateway" and number > 0)),
        Scenario("idle", end, lambda _: 10.0, 2, 2, (0, end), event=at),
    ]  # fmt: skip
    return {scenario.name: scenario for scenario in everything}


def outage(capacity: Capacity) -> Scenario:
    """Return the scenario that takes Prometheus away from all signals, so it must run after the others."""
    known = scenarios(capacity)
    base, end = known["step"].rate(0), 8 * MINUTE
    return Scenario(
        "Prometheus away", end, lambda t: base * (1.5 if t >= 4 * MINUTE else 1), 4, known["burst"].tritons, (0, end),
        event=3 * MINUTE,
    )  # fmt: skip


@dataclass
class Stage:
    """Where scenarios run: a cluster with Prometheus, prometheus-adapter and KEDA, and the exporter."""

    cluster: Cluster
    player: Player
    prometheus: str

    def install(self, scenario: Scenario, signal: str, capacity: Capacity) -> Trial:
        """Install a release of the chart in its own namespace, with the scenario's initial pods ready."""
        namespace = self._install(scenario, signal)
        return Trial(scenario, signal, namespace, capacity)

    def _install(self, scenario: Scenario, signal: str) -> str:
        """With the values for GPUs, which scale by KEDA, or with the default ones, which scale by CPU."""
        file = ("--values", str(CHART / "values" / "gpu.yaml")) if signal == "ours" else ()
        namespace = f"{scenario.name}-{signal}".replace(" ", "-").lower()
        cluster = self.cluster
        cluster.kubectl("create", "namespace", namespace)
        cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
        keys = [f"--from-literal=CLEARML_API_{name}=k" for name in ("ACCESS_KEY", "SECRET_KEY")]
        cluster.kubectl("create", "secret", "generic", "clearml", "--namespace", namespace, *keys)  # KEDA reads it
        values = {
            "autoscaling": {"prometheus": self.prometheus},
            "clearml": {"apiHost": "http://clearml-apiserver:8008", "credentialsSecret": "clearml"},
        }
        cluster.helm(
            "install", "triton-gateway", str(CHART), "--namespace", namespace, *file, "--values", "-",
            given=json.dumps(values),
        )  # fmt: skip
        for name, count in zip(TIERS, (scenario.gateways, scenario.tritons), strict=True):
            cluster.kubectl("--namespace", namespace, "scale", "deployment", name, f"--replicas={count}")
        return namespace

    def restart_prometheus(self) -> None:
        """Start it again after it was stopped, with the same data at the same address."""
        start_prometheus(self.cluster, f"http://{self.player.address}/targets")

    def run(self, trials: Sequence[Trial], during: Callable[[], None] = lambda: None) -> None:
        """Begin every trial when its pods are ready, and continue until all have ended."""
        for trial in trials:
            for name in TIERS:
                self.cluster.kubectl(
                    "--namespace", trial.namespace, "rollout", "status", f"deployment/{name}", "--timeout=300s"
                )  # fmt: skip
            self.player.begin(trial)
        while not all(self.player.ended(trial.namespace) for trial in trials):
            during()
            time.sleep(1.0)


@contextmanager
def stage(say: Callable[[str], None] = print, *, autoscaled_every: str = "15s") -> Iterator[Stage]:
    """Start everything. By default, a gateway is ready 5 s after its pod began, and a Triton 30 s."""
    machines = Machines(cpu_nodes=16, gpu_nodes=26, cpus=64, gpus=8)
    with tempfile.TemporaryDirectory(prefix="scaling-", ignore_cleanup_errors=True) as folder:
        with started(Path(folder), machines=machines, played=Played(), autoscaled_every=autoscaled_every) as cluster:
            cluster.define("keda", "prometheus-operator")
            with playing(cluster, say) as player:
                prometheus = start_prometheus(cluster, f"http://{player.address}/targets")
                start_adapter(cluster, prometheus)
                start_keda(cluster)
                yield Stage(cluster, player, prometheus)
