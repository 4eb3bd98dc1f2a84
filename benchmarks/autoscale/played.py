"""An exporter for pods that only exist in a Kubernetes API: what they would measure if a recorded load were upon them.

Each trial is a namespace with both tiers. Which pods there are and which are ready is read from the API
(EndpointSlices, as Prometheus does); what they do is ``world.World``. Prometheus finds and scrapes them over HTTP, one
target a pod.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.autoscale.world import Capacity, World, gateway_text, triton_text
from tests.cluster.autoscalers import target
from tests.cluster.control_plane import Cluster
from tests.sites import Asked, site

MINUTE: Final = 60.0
_TIERS: Final = ("triton-gateway", "triton")
"""Deployments, called as their Services are."""


@dataclass(frozen=True)
class Scenario:
    """One story; times in seconds. ``watch`` is where shares are counted, after what nobody could have prevented."""

    name: str
    seconds: float
    rate: Callable[[float], float]
    gateways: int
    tritons: int
    watch: tuple[float, float]
    about: str
    triton_works: Callable[[float], bool] = lambda _: True
    scraped: Callable[[str, int, float], bool] = lambda *_: True
    """Whether a pod answers when it is scraped: its tier, its number, and when."""
    event: float = 0.0
    """When what the scenario is about happens."""


@dataclass
class Trial:
    """A scenario in a namespace, and what came out; ``times`` in seconds since its load began."""

    scenario: Scenario
    signal: str
    namespace: str
    capacity: Capacity
    times: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    bad: list[float] = field(default_factory=list)
    gateways: list[int] = field(default_factory=list)
    tritons: list[int] = field(default_factory=list)
    asked: dict[str, list[int]] = field(default_factory=lambda: {"triton-gateway": [], "triton": []})
    watched_bad: float = 0.0
    watched_total: float = 0.0

    def __post_init__(self) -> None:
        self.world = World(self.capacity, self.scenario.rate, triton_works=self.scenario.triton_works)
        self._counted = 0.0, 0.0
        self.ready: dict[str, list[str]] = {name: [] for name in _TIERS}

    def catch_up(self, now: float) -> None:
        """Let time pass until ``now``, the end at most: counters are those of the moment in which they are read."""
        self.world.go_on(min(now, self.scenario.seconds), self.ready["triton-gateway"], self.ready["triton"])

    def go_on(self, now: float) -> None:
        """Let time pass, and write down what became of it."""
        self.catch_up(now)
        tally = self.world.tally
        bad, total = tally.bad - self._counted[0], tally.total - self._counted[1]
        self._counted = tally.bad, tally.total
        begin, end = self.scenario.watch
        if begin <= now < end:
            self.watched_bad += bad
            self.watched_total += total
        self.times.append(now)
        self.rates.append(self.scenario.rate(now))
        self.bad.append(bad / max(1e-9, now - self.times[-2]) if len(self.times) > 1 else 0.0)
        self.gateways.append(len(self.ready["triton-gateway"]))
        self.tritons.append(len(self.ready["triton"]))

    @property
    def success(self) -> float:
        """Return the share that was answered in time, where it is counted."""
        return 1 - self.watched_bad / self.watched_total if self.watched_total else 1.0

    def first_more(self, tier: str) -> float | None:
        """Return seconds from the event until more replicas of a tier were asked for; None if that never happened."""
        asked = self.asked[tier]
        before = [count for at, count in zip(self.times, asked, strict=False) if at <= self.scenario.event]
        for at, count in zip(self.times, asked, strict=False):
            if at > self.scenario.event and count > (before or asked)[-1 if before else 0]:
                return round(at - self.scenario.event, 1)
        return None

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        world = self.world.tally
        return {
            "scenario": self.scenario.name, "signal": self.signal, "success": round(self.success, 5),
            "failed_or_late": round(world.bad), "requests": round(world.total),
            "gateways": [min(self.asked["triton-gateway"]), max(self.asked["triton-gateway"])],
            "tritons": [min(self.asked["triton"]), max(self.asked["triton"])],
            "first_gateway_s": self.first_more("triton-gateway"), "first_triton_s": self.first_more("triton"),
        }  # fmt: skip


class Player:
    """All trials of a run: what Prometheus asks, and what the API says of their pods."""

    def __init__(self, cluster: Cluster) -> None:
        self.trials: dict[str, Trial] = {}
        self.address = ""
        self._began: dict[str, float] = {}
        self._lock = threading.Lock()
        self._api = _Reader(cluster)

    def begin(self, trial: Trial) -> None:
        """Put the load upon a namespace."""
        with self._lock:
            self.trials[trial.namespace] = trial
            self._began[trial.namespace] = time.monotonic()

    def ended(self, namespace: str) -> bool:
        """Whether a scenario is over."""
        trial = self.trials[namespace]
        return time.monotonic() - self._began[namespace] >= trial.scenario.seconds

    def go_on(self) -> None:
        """Read the API and let every trial catch up with the clock; ended ones keep their last moment."""
        ready = self._api.ready()
        wanted = self._api.replicas()
        with self._lock:
            for namespace, trial in self.trials.items():
                now = time.monotonic() - self._began[namespace]
                if now > trial.scenario.seconds:
                    continue
                for tier in _TIERS:
                    trial.ready[tier] = ready.get((namespace, tier), [])
                    trial.asked[tier].append(wanted.get((namespace, tier), 0))
                trial.go_on(now)

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """What Prometheus asks: the targets of a job, or the metrics of a pod."""
        _, first, *rest = asked.path.split("/")
        with self._lock:
            if first == "targets":
                return 200, self._targets(rest[0])
            namespace, job, *name = rest
            trial = self.trials.get(namespace)
            if trial is None:
                return 404, b""
            now = time.monotonic() - self._began[namespace]
            trial.catch_up(now)
            if job == "kubelet":
                return 200, self._cpu(trial).encode()
            pods, pod = sorted(trial.ready[job]), name[0]
            if pod not in pods or not trial.scenario.scraped(job, pods.index(pod), now):
                return 503, b""
            world = trial.world
            text = gateway_text(world.gateways[pod]) if job == "triton-gateway" else triton_text(world.tritons[pod])
            return 200, text.encode()

    def _targets(self, job: str) -> list[Mapping[str, Any]]:
        found = []
        for namespace, trial in self.trials.items():
            if job == "kubelet":
                found.append(target(self.address, f"/metrics/{namespace}/kubelet", namespace, ""))
                continue
            found += [
                target(self.address, f"/metrics/{namespace}/{job}/{pod}", namespace, pod) for pod in trial.ready[job]
            ]
        return found

    def _cpu(self, trial: Trial) -> str:
        lines = []
        for name, one in trial.world.gateways.items():
            labels = f'namespace="{trial.namespace}",pod="{name}",container="gateway",node="cpu-0"'
            lines.append(f"container_cpu_usage_seconds_total{{{labels}}} {one.cpu_s}")
            lines.append(f"container_memory_working_set_bytes{{{labels}}} 3e8")
        return "\n".join(lines) + "\n"


class _Reader:
    """The API over one connection's worth of urllib: kubectl takes a tenth of a second of CPU for every look."""

    def __init__(self, cluster: Cluster) -> None:
        pki = cluster.authority
        self._server = cluster.server
        self._tls = ssl.create_default_context(cafile=str(pki.certificate))
        self._tls.load_cert_chain(pki.folder / "admin.crt", pki.folder / "admin.key")

    def _get(self, path: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self._server + path, timeout=30, context=self._tls) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())["items"]
            return found

    def ready(self) -> dict[tuple[str, str], list[str]]:
        """Return the pods that are ready, by namespace and Service."""
        ready: dict[tuple[str, str], list[str]] = {}
        for item in self._get("/apis/discovery.k8s.io/v1/endpointslices"):
            service = item["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            key = (item["metadata"]["namespace"], service)
            for one in item.get("endpoints") or ():
                if one["conditions"].get("serving", one["conditions"]["ready"]):
                    ready.setdefault(key, []).append(one["targetRef"]["name"])
        return ready

    def replicas(self) -> dict[tuple[str, str], int]:
        """Return how many replicas are asked for, by namespace and Deployment."""
        return {
            (item["metadata"]["namespace"], item["metadata"]["name"]): item["spec"].get("replicas", 1)
            for item in self._get("/apis/apps/v1/deployments")
        }


@contextmanager
def playing(cluster: Cluster) -> Iterator[Player]:
    """Serve an exporter for a cluster; ``go_on`` is called for it once a second while the context is open."""
    player = Player(cluster)
    stop = threading.Event()

    def drive() -> None:
        while not stop.wait(1.0):
            player.go_on()

    with site(player.answer) as address:
        player.address = address.removeprefix("http://")
        thread = threading.Thread(target=drive)
        thread.start()
        try:
            yield player
        finally:
            stop.set()
            thread.join()
