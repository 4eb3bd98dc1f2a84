"""Trials whose pods are processes: real gateways, real Tritons and callers. kwok only keeps the pods' objects.

This module acts as the kubelet: a pod with a node gets its process, is ready when the process is, and ends like a pod.
Prometheus scrapes the processes themselves, and HPAs get their CPU use. Tritons are the real server with a model that
takes a GPU's time and no CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.autoscale.played import Api, Trial, look_until
from benchmarks.autoscale.world import Capacity, Tally
from benchmarks.shared import machine
from benchmarks.shared.backends import TOKENS, Backend, program, scripted_config
from benchmarks.shared.callers import Strict
from benchmarks.shared.command import Say
from benchmarks.shared.fleet import BODY, ENDPOINT, Fleet, Gateway
from benchmarks.shared.processes import LOOPBACK
from deploy.modelsync.client import AdminClient
from deploy.tritonserver.launcher import PathServer, Ports, TritonLauncher, WheelServer, detect_server
from tests.cluster.autoscalers import target

GPU: Final = Backend("scaled", TOKENS, "logits", 2, call_ms=40.0, row_ms=20.0)
PRICE: Final = Capacity(gateway_rps=0.0, call_s=GPU.call_ms / 1000, row_s=GPU.row_ms / 1000, max_rows=8)
"""Price of one Triton: 40 rows per second in full calls. The gateways' capacity is real."""
_PROPAGATION_S: Final = 1.0
"""Seconds from a pod's deletion until nobody sends it new requests."""
_LOOK_S: Final = 0.5


@dataclass
class Triton:
    """The process of a Triton's pod."""

    host: str
    launcher: TritonLauncher


class Namespace(Fleet):
    """The processes behind the pods of one namespace."""

    def __init__(self, state: Path, *, api: Api, namespace: str, say: Say) -> None:
        super().__init__(state, say=say)
        if not self.follows_a_name:
            raise RuntimeError("Tritons come and go behind a name, for which this needs root (unshare --mount)")
        [self._model] = self.registry.triton_names(self.task)[ENDPOINT]
        self._api, self._pods = api, f"/api/v1/namespaces/{namespace}/pods"
        self.stall = self.state / "stall"
        """While this file exists, no Triton computes, but each still answers."""
        self.running: dict[str, Gateway | Triton] = {}
        """Processes by the name of their pod, from when they are ready."""
        self.asked: list[int] = []
        """Ports of the gateways that get requests."""
        self._known: set[str] = set()
        self._named: list[str] = []
        self._over = threading.Event()
        # A child ends with the thread that made it, so these threads stay until everything is stopped.
        self._starters = ThreadPoolExecutor(16)
        self._kubelet = threading.Thread(target=look_until, args=(self._over, _LOOK_S, self._keep, say))
        self._kubelet.start()

    def _keep(self) -> None:
        """Start processes for pods, like a kubelet."""
        alive = {}
        for pod in self._api.get(self._pods):
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running":
                alive[pod["metadata"]["name"]] = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for name in alive.keys() - self._known:
            self._known.add(name)
            self._do(self._begin, name, alive[name] == "triton")
        for name in set(self.running) - alive.keys():
            self._do(self._end, self.running.pop(name))

    def _do(self, work: Callable[..., None], *arguments: Any) -> None:
        def told(done: Future[None]) -> None:
            if error := done.exception():
                self._say(f"{self._pods}: {type(error).__name__}: {error}")

        self._starters.submit(work, *arguments).add_done_callback(told)

    def _begin(self, pod: str, is_triton: bool) -> None:
        made = self._begin_triton() if is_triton else self.start_gateway()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("ContainersReady", "Ready")
        ]  # fmt: skip
        self.running[pod] = made
        if isinstance(made, Gateway):
            self.asked = [*self.asked, made.port]
        self._api.patch(f"{self._pods}/{pod}/status", {"status": {"conditions": ready}})

    def _begin_triton(self) -> Triton:
        """Start a Triton and point the name at it, as the real Service does even before it has its models."""
        name, host = self.next_triton()
        model = self.state / name / "models" / self._model
        (model / "1").mkdir(parents=True)
        config = scripted_config(self._model, GPU, max_rows=PRICE.max_rows, stands_still=str(self.stall))
        (model / "config.pbtxt").write_text(config)
        (model / "1" / "model.py").write_text(program("fixed_model"))
        server = detect_server()
        if not isinstance(server, PathServer | WheelServer):
            raise TypeError("these pods start Tritons of their own")
        made = Triton(host, TritonLauncher(
            server, state_dir=self.state / name, repository=model.parent, ports=Ports(**self.ports), host=host,
        ))  # fmt: skip
        made.launcher.start(timeout_s=120)
        with self._lock:
            self._named.append(host)
            self.name(*self._named)
        AdminClient(made.launcher.addresses.grpc, load_timeout_s=120).load(self._model)
        return made

    def _end(self, one: Gateway | Triton) -> None:
        time.sleep(_PROPAGATION_S)
        if isinstance(one, Gateway):
            self.asked = [port for port in self.asked if port != one.port]
            self.end_gateway(one)
            return
        one.launcher.stop()
        with self._lock:
            self._named.remove(one.host)
            self.name(*self._named)

    def address(self, pod: str) -> str | None:
        """Return where a pod is scraped, ``host:port``; None if it is not running."""
        one = self.running.get(pod)
        if isinstance(one, Triton):
            return f"{one.host}:{self.ports['metrics']}"
        return f"{LOOPBACK}:{one.port}" if one else None

    def cpu_s(self) -> dict[tuple[str, str], float]:
        """Return the seconds of CPU that pods have used, by container and pod."""
        stats, found = machine.read_all(), {}
        for name, one in self.running.copy().items():
            is_triton = isinstance(one, Triton)
            pid = one.launcher.pid if isinstance(one, Triton) else one.server.pid
            family = machine.tree([pid] if pid else [], stats)
            found["triton" if is_triton else "gateway", name] = sum(stats[each].cpu_seconds for each in family)
        return found

    def stop(self) -> None:
        """Stop everything."""
        if hasattr(self, "_kubelet"):
            self._over.set()
            self._kubelet.join()
            self._starters.shutdown()
            for one in self.running.values():
                if isinstance(one, Triton):
                    one.launcher.stop()
        super().stop()


@dataclass
class RealTrial(Trial):
    """A scenario on the processes of a namespace."""

    pods: Namespace = field(kw_only=True)
    late_s: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tally = Tally()
        self._callers: asyncio.Task[None] | None = None

    @property
    def tally(self) -> Tally:
        """See ``Trial.tally``; counted when an answer came or the request failed."""
        return self._tally

    def catch_up(self, now: float) -> None:
        """See ``Trial.catch_up``: starts the requests, and lets GPUs stall and continue."""
        if self._callers is None:
            self._callers = self.pods.loop.run(self._begin())
        if self.scenario.triton_works(now):
            self.pods.stall.unlink(missing_ok=True)
        else:
            self.pods.stall.touch()

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        """Send requests at random times at the scenario's rate, to one gateway after the other."""
        draw, began = random.Random(1), time.monotonic()  # the same times in every run
        gateways: dict[int, Strict] = {}
        due, turn = began, 0
        running: set[asyncio.Task[None]] = set()
        while due - began < self.scenario.seconds:
            due += draw.expovariate(self.scenario.rate(due - began))
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            turn += 1
            if not (ports := self.pods.asked):
                self._tally.failed += 1
                continue
            port = ports[turn % len(ports)]
            if port not in gateways:
                gateways[port] = Strict(LOOPBACK, port, f"/serve/{ENDPOINT}", BODY, rate=0.0)
            task = asyncio.create_task(self._one(gateways[port]))
            running.add(task)
            task.add_done_callback(running.discard)

    async def _one(self, gateway: Strict) -> None:
        sent, ended, problem = await gateway.once()
        if problem:
            self._tally.failed += 1
        elif ended - sent > self.late_s:
            self._tally.late += 1
        else:
            self._tally.ok += 1

    def target(self, address: str, tier: str, pod: str) -> Mapping[str, Any]:
        """See ``Trial.target``: the process itself."""
        return target(
            self.pods.address(pod) or address, "/metrics", self.namespace, pod, is_triton=tier == "triton"
        )  # fmt: skip

    def text(self, tier: str, pod: str, now: float) -> str | None:
        """See ``Trial.text``: processes are scraped directly."""
        del tier, pod, now

    def cpu_s(self) -> Mapping[tuple[str, str], float]:
        """See ``Trial.cpu_s``."""
        with contextlib.suppress(KeyError):
            return self.pods.cpu_s()
        return {}
