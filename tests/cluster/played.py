"""Trials on a Kubernetes API with simulated pods, and the metrics that Prometheus scrapes from them.

Each trial is a namespace with both tiers. The API says which pods exist and are ready (EndpointSlices, as Prometheus
reads them). They follow ``world.World``: an exporter has the metrics that they would have under a load.
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

from tests.cluster.autoscalers import target
from tests.cluster.control_plane import Cluster
from tests.cluster.world import Capacity, World, gateway_text, triton_text
from tests.sites import Asked, site

MINUTE: Final = 60.0
TIERS: Final = ("triton-gateway", "triton")
"""Deployments, named like their Services."""


@dataclass(frozen=True)
class Scenario:
    """One scenario; times in seconds. ``watch`` is when shares count: after what nothing could prevent."""

    name: str
    seconds: float
    rate: Callable[[float], float]
    gateways: int
    tritons: int
    watch: tuple[float, float]
    triton_works: Callable[[float], bool] = lambda _: True
    scraped: Callable[[str, int, float], bool] = lambda *_: True
    """Returns True if a pod answers a scrape, given its tier, number and the time."""
    event: float = 0.0
    """When the scenario's event happens."""


@dataclass
class Trial:
    """A scenario in a namespace whose pods consist only of counters, and its results; ``times`` in seconds since its
    load began.
    """

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
        self._counted = 0.0, 0.0
        self.ready: dict[str, list[str]] = {name: [] for name in TIERS}
        self.world = World(self.capacity, self.scenario.rate, triton_works=self.scenario.triton_works)

    def catch_up(self, now: float) -> None:
        """Advance to ``now``, at most to the end: counters are those of the moment in which they are read."""
        self.world.go_on(min(now, self.scenario.seconds), self.ready["triton-gateway"], self.ready["triton"])

    def target(self, address: str, tier: str, pod: str) -> Mapping[str, Any]:
        """Return where Prometheus scrapes a pod, as an entry of http_sd; ``address`` is the player's."""
        return target(address, f"/metrics/{self.namespace}/{tier}/{pod}", self.namespace, pod)

    def text(self, tier: str, pod: str, now: float) -> str | None:
        """Return the metrics of a pod; None if it cannot be scraped."""
        pods = sorted(self.ready[tier])
        if pod not in pods or not self.scenario.scraped(tier, pods.index(pod), now):
            return None
        return (
            gateway_text(self.world.gateways[pod]) if tier == "triton-gateway" else triton_text(self.world.tritons[pod])
        )

    def cpu_s(self) -> Mapping[tuple[str, str], float]:
        """Return the CPU seconds that pods have used, by container and pod: a Triton's two are as busy as it is."""
        gateways = {("gateway", name): one.cpu_s for name, one in self.world.gateways.items()}
        return gateways | {("triton", name): 2 * one.compute_s for name, one in self.world.tritons.items()}

    def go_on(self, now: float) -> None:
        """Advance, and record the results."""
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
        """Return the share answered in time, in the part that counts."""
        return 1 - self.watched_bad / self.watched_total if self.watched_total else 1.0

    def first_more(self, tier: str) -> float | None:
        """Return seconds from the event until more replicas of a tier were requested; None if never."""
        asked = self.asked[tier]
        before = [count for at, count in zip(self.times, asked, strict=False) if at <= self.scenario.event]
        for at, count in zip(self.times, asked, strict=False):
            if at > self.scenario.event and count > (before or asked)[-1 if before else 0]:
                return round(at - self.scenario.event, 1)
        return None

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        tally = self.world.tally
        return {
            "scenario": self.scenario.name, "signal": self.signal, "success": round(self.success, 5),
            "failed_or_late": round(tally.bad), "requests": round(tally.total),
            "gateways": [min(self.asked["triton-gateway"]), max(self.asked["triton-gateway"])],
            "tritons": [min(self.asked["triton"]), max(self.asked["triton"])],
            "first_gateway_s": self.first_more("triton-gateway"), "first_triton_s": self.first_more("triton"),
        }  # fmt: skip


class Player:
    """All trials of a run: answers Prometheus' scrapes, and follows the API."""

    def __init__(self, cluster: Cluster) -> None:
        self.trials: dict[str, Trial] = {}
        self.address = ""
        self.api = Api(cluster)
        self._began: dict[str, float] = {}
        self._lock = threading.Lock()

    def begin(self, trial: Trial) -> None:
        """Start the load on a namespace."""
        with self._lock:
            self.trials[trial.namespace] = trial
            self._began[trial.namespace] = time.monotonic()

    def ended(self, namespace: str) -> bool:
        """Return True if a scenario is over."""
        trial = self.trials[namespace]
        return time.monotonic() - self._began[namespace] >= trial.scenario.seconds

    def go_on(self) -> None:
        """Read the API and advance every trial to the clock; ended trials keep their last state."""
        ready = self.api.ready()
        wanted = self.api.replicas()
        with self._lock:
            for namespace, trial in self.trials.items():
                now = time.monotonic() - self._began[namespace]
                if now > trial.scenario.seconds:
                    continue
                for tier in TIERS:
                    trial.ready[tier] = ready.get((namespace, tier), [])
                    trial.asked[tier].append(wanted.get((namespace, tier), 0))
                trial.go_on(now)

    def answer(self, asked: Asked) -> tuple[int, Any]:
        """Answer Prometheus: with the targets of a job, or the metrics of a pod."""
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
            text = trial.text(job, name[0], now)
            return (503, b"") if text is None else (200, text.encode())

    def _targets(self, job: str) -> list[Mapping[str, Any]]:
        found = []
        for namespace, trial in self.trials.items():
            if job == "kubelet":
                found.append(target(self.address, f"/metrics/{namespace}/kubelet", namespace, ""))
                continue
            found += [trial.target(self.address, job, pod) for pod in trial.ready[job]]
        return found

    def _cpu(self, trial: Trial) -> str:
        lines = []
        for (container, name), used in trial.cpu_s().items():
            labels = f'namespace="{trial.namespace}",pod="{name}",container="{container}",node="cpu-0"'
            lines.append(f"container_cpu_usage_seconds_total{{{labels}}} {used}")
            lines.append(f"container_memory_working_set_bytes{{{labels}}} 3e8")
        return "\n".join(lines) + "\n"


class Api:
    """The API over plain urllib: kubectl takes a tenth of a second of CPU for every look."""

    def __init__(self, cluster: Cluster) -> None:
        pki = cluster.authority
        self._server = cluster.server
        self._tls = ssl.create_default_context(cafile=str(pki.certificate))
        self._tls.load_cert_chain(pki.folder / "admin.crt", pki.folder / "admin.key")

    def get(self, path: str) -> list[dict[str, Any]]:
        """Return the items of a list."""
        with urllib.request.urlopen(self._server + path, timeout=30, context=self._tls) as answer:
            found: list[dict[str, Any]] = json.loads(answer.read())["items"]
            return found

    def ready(self) -> dict[tuple[str, str], list[str]]:
        """Return the pods that are ready, by namespace and Service."""
        ready: dict[tuple[str, str], list[str]] = {}
        for item in self.get("/apis/discovery.k8s.io/v1/endpointslices"):
            service = item["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            key = (item["metadata"]["namespace"], service)
            for one in item.get("endpoints") or ():
                if one["conditions"].get("serving", one["conditions"]["ready"]):
                    ready.setdefault(key, []).append(one["targetRef"]["name"])
        return ready

    def replicas(self) -> dict[tuple[str, str], int]:
        """Return the requested replicas, by namespace and Deployment."""
        return {
            (item["metadata"]["namespace"], item["metadata"]["name"]): item["spec"].get("replicas", 1)
            for item in self.get("/apis/apps/v1/deployments")
        }


def look_until(over: threading.Event, every_s: float, look: Callable[[], None], say: Callable[[str], None]) -> None:
    """Call ``look`` every ``every_s`` seconds until it is over. A failed look is reported, and the next one follows as
    usual.

    An API server that is busy for a moment must not end a run of minutes.
    """
    while not over.wait(every_s):
        try:
            look()
        except Exception as error:
            say(f"a look at the cluster failed, the next one follows: {type(error).__name__}: {error}")


@contextmanager
def playing(cluster: Cluster, say: Callable[[str], None]) -> Iterator[Player]:
    """Serve an exporter for a cluster; calls ``go_on`` once a second while the context is open."""
    player = Player(cluster)
    stop = threading.Event()

    with site(player.answer) as address:
        player.address = address.removeprefix("http://")
        thread = threading.Thread(target=look_until, args=(stop, 1.0, player.go_on, say))
        thread.start()
        try:
            yield player
        finally:
            stop.set()
            thread.join()
