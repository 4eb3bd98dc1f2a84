"""A model of both tiers in seconds of virtual time: queues, capacities, pods that take time to start, Prometheus.

Fluid: every tick moves amounts of requests, with their time of arrival. It is driven by capacities that were measured,
and observed only through what Prometheus and metrics-server would have at that moment: scraped counters, rates over a
window, samples that are old. What it leaves out is said in docs/scaling.md.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from benchmarks.autoscale.hpa import NoMetric, Pod
from dashboards import scaling

SCRAPE_S = 15.0
RULE_S = 15.0
WINDOW_S = 60.0
METRICS_SERVER_S = 15.0
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one pod of each tier can do. ``gateway_rps``: requests per second of one gateway core (one worker, one pod).

    A call to a Triton with ``b`` rows takes ``call_s + row_s * b`` seconds, at most ``most_rows`` at a time.
    """

    gateway_rps: float
    call_s: float
    row_s: float
    most_rows: int = 64
    gateway_start_s: float = 15.0
    triton_start_s: float = 90.0
    in_flight: int = 1024
    backlog: int = 4096
    """Requests that wait on connections of one gateway; more connections are refused."""
    late_s: float = 1.0
    timeout_s: float = 10.0

    @property
    def triton_rps(self) -> float:
        """Return rows per second of one Triton with full batches."""
        return self.most_rows / (self.call_s + self.row_s * self.most_rows)


@dataclass(slots=True)
class Replica:
    """One pod: when it was made, and when it is ready."""

    made: float
    ready: float


@dataclass
class Tier:
    """The pods of one Deployment."""

    start_s: float
    pods: list[Replica] = field(default_factory=list)

    def scale(self, now: float, wanted: int) -> None:
        """Add pods that start now, or take the newest away."""
        while len(self.pods) < wanted:
            self.pods.append(Replica(now, now + self.start_s))
        # The ReplicaSet prefers pods that are not ready, then the newest.
        self.pods.sort(key=lambda pod: (pod.ready > now, pod.made))
        del self.pods[wanted:]

    def ready(self, now: float) -> int:
        """Return how many serve."""
        return sum(pod.ready <= now for pod in self.pods)


@dataclass(slots=True)
class Sample:
    """Counters and gauges of both tiers at one scrape; sums over pods, but ``requests`` and ``work_s`` of one gateway
    that was there all the time: they share evenly.
    """

    at: float
    gateways: int
    tritons: int
    requests: float
    work_s: float
    in_flight: float
    queue_s: float
    compute_s: float
    rows: float
    busy_s: float
    p95: float
    gateways_seen: int
    tritons_seen: int
    came: float
    """Requests that came to one gateway, and ``taken``: those that it did not refuse."""
    taken: float
    waited_s: float
    """Seconds that requests waited in gateways for a call to Triton, and ``called_s`` that Triton computed for them."""
    called_s: float
    rows_each: float
    """Rows of one Triton that was there all the time."""


@dataclass
class Tally:
    """What became of requests."""

    ok: float = 0.0
    late: float = 0.0
    failed: float = 0.0

    @property
    def bad(self) -> float:
        """Return those that failed or came late."""
        return self.late + self.failed

    @property
    def total(self) -> float:
        """Return all."""
        return self.ok + self.late + self.failed


class World:
    """Both tiers under ``rate`` (requests per second at a time), with what may go wrong as functions of time."""

    def __init__(
        self,
        capacity: Capacity,
        rate: Callable[[float], float],
        *,
        gateways: int,
        tritons: int,
        tick_s: float = 0.25,
        triton_works: Callable[[float], bool] = lambda _: True,
        prometheus_works: Callable[[float], bool] = lambda _: True,
        tritons_are_scraped: Callable[[float], bool] = lambda _: True,
        gateways_unscraped: Callable[[float], int] = lambda _: 0,
        metrics_server_s: float = METRICS_SERVER_S,
    ) -> None:
        self.capacity = capacity
        self._usage_every = metrics_server_s
        self.now = 0.0
        self.tick_s = tick_s
        self._rate = rate
        self._triton_works, self._prometheus_works = triton_works, prometheus_works
        self._tritons_are_scraped, self._gateways_unscraped = tritons_are_scraped, gateways_unscraped
        self.gateways, self.tritons = Tier(capacity.gateway_start_s), Tier(capacity.triton_start_s)
        self.gateways.scale(-1e6, gateways)
        self.tritons.scale(-1e6, tritons)
        self.tally = Tally()
        self._cpu: deque[tuple[float, float]] = deque()
        self._cpu_amount = 0.0
        self._triton: deque[tuple[float, float]] = deque()
        self._triton_amount = 0.0
        self._requests = self._work_s = self._queue_s = self._compute_s = self._rows = self._busy_s = 0.0
        self._p95 = self._under_way = 0.0
        self._came = self._taken = self._waited_s = self._called_s = self._rows_each = 0.0
        self._best: deque[tuple[float, float]] = deque()
        self._cpu_samples: deque[tuple[float, float]] = deque(maxlen=2)
        self._samples: deque[Sample] = deque()
        self._next_scrape = self._next_usage = 0.0
        self._efficiency: deque[tuple[float, float]] = deque()
        self._usage_s = 0.0

    @property
    def waiting_for_cpu(self) -> float:
        """Return how many requests the gateways have not looked at yet."""
        return self._cpu_amount

    def tick(self) -> None:
        """Go on by one tick."""
        now, dt, capacity = self.now, self.tick_s, self.capacity
        self._arrive(now, self._rate(now) * dt)
        ready = self.gateways.ready(now)
        done = self._prepare(now, ready * capacity.gateway_rps * dt, ready)
        self._infer(now, dt)
        if ready:
            busy = done / capacity.gateway_rps / dt
            self._usage_s += busy * dt / ready
            self._requests += done / ready
            # In hand: those being worked on, and those that wait for it.
            self._work_s += (busy + self._cpu_amount) * dt / ready
        self.now = now = now + dt
        if now >= self._next_usage:
            self._next_usage += self._usage_every
            self._cpu_samples.append((now, self._usage_s))
        if now >= self._next_scrape:
            self._next_scrape += SCRAPE_S
            self._scrape(now)

    def _arrive(self, now: float, amount: float) -> None:
        if amount <= 0:
            return
        ready = self.gateways.ready(now)
        # What the gateways take on within the tick makes room, too.
        taken_on = ready * self.capacity.gateway_rps * self.tick_s
        room = max(0.0, self.capacity.backlog * max(1, ready) + taken_on - self._cpu_amount)
        taken = min(amount, room)
        self.tally.failed += amount - taken
        self._came += amount / max(1, ready)
        if taken:
            self._cpu.append((now, taken))
            self._cpu_amount += taken

    def _prepare(self, now: float, able: float, ready: int) -> float:
        """Let the gateways work; returns how many requests they took on."""
        done = 0.0
        # What Triton takes on within the tick makes room, too.
        replicas = self.tritons.ready(now) if self._triton_works(now) else 0
        drained = replicas * self.capacity.triton_rps * self.tick_s
        room = max(0.0, self.capacity.in_flight * ready + drained - self._triton_amount)
        while self._cpu and done < able:
            at, amount = self._cpu[0]
            if now - at > self.capacity.timeout_s:  # nobody waits for these any more
                self._cpu.popleft()
                self._cpu_amount -= amount
                self.tally.failed += amount
                continue
            part = min(amount, able - done)
            self._cpu_amount -= part
            if part < amount:
                self._cpu[0] = (at, amount - part)
            else:
                self._cpu.popleft()
            done += part
            admitted = min(part, room)
            self._taken += admitted / max(1, ready)
            self.tally.failed += part - admitted  # 429
            if admitted:
                room -= admitted
                self._triton.append((at, admitted))
                self._triton_amount += admitted
        return done

    def _infer(self, now: float, dt: float) -> None:
        capacity = self.capacity
        replicas = self.tritons.ready(now) if self._triton_works(now) else 0
        able = replicas * capacity.triton_rps * dt
        done = 0.0
        while self._triton and done < able:
            at, amount = self._triton[0]
            if now - at > capacity.timeout_s:
                self._triton.popleft()
                self._triton_amount -= amount
                self.tally.failed += amount
                continue
            part = min(amount, able - done)
            self._triton_amount -= part
            if part < amount:
                self._triton[0] = (at, amount - part)
            else:
                self._triton.popleft()
            done += part
            if now - at > capacity.late_s:
                self.tally.late += part
            else:
                self.tally.ok += part
        while self._triton and now - self._triton[0][0] > capacity.timeout_s:
            _, amount = self._triton.popleft()
            self._triton_amount -= amount
            self.tally.failed += amount
        self._under_way = 0.0
        if not done:
            return
        # The batch size at which this rate is kept up: more load, larger batches, until they are full.
        each = done / dt / replicas
        rows = 1.0
        if each * (capacity.call_s + capacity.row_s) > 1:
            rows = each * capacity.call_s / max(1e-9, 1 - each * capacity.row_s)
            rows = min(max(rows, 1.0), capacity.most_rows) if rows > 0 else capacity.most_rows
        call = capacity.call_s + capacity.row_s * rows
        busy = min(1.0, each / rows * call)
        # Calls that wait inside Triton: two of each gateway's at most; the rest waits in the gateways.
        inside = min(self._triton_amount / replicas, 2 * max(1, self.gateways.ready(now)) * capacity.most_rows)
        queue = busy / (2 * (1 - min(busy, 0.95)) if rows < 2 else 2) + inside / capacity.most_rows
        calls = done / rows
        # Those under way, beside those that wait: by Little's law.
        self._under_way = done / dt * (call * (1 + queue) + 1 / capacity.gateway_rps)
        self._compute_s += calls * call
        self._queue_s += calls * call * queue
        self._rows += done
        self._rows_each += done / replicas
        self._waited_s += max(0.0, self._triton_amount - inside * replicas) * dt
        self._called_s += done * call
        self._busy_s += busy * dt * replicas
        self._p95 = call * (1 + 2 * queue)

    def _scrape(self, now: float) -> None:
        if not self._prometheus_works(now):
            return
        seen = max(0, self.gateways.ready(now) - self._gateways_unscraped(now))
        sample = Sample(
            now, len(self.gateways.pods), len(self.tritons.pods), self._requests, self._work_s,
            self._cpu_amount + self._triton_amount + self._under_way, self._queue_s, self._compute_s, self._rows,
            self._busy_s, self._p95, seen, self.tritons.ready(now) if self._tritons_are_scraped(now) else 0,
            self._came, self._taken, self._waited_s, self._called_s, self._rows_each,
        )  # fmt: skip
        self._samples.append(sample)
        while self._samples[0].at < now - 2 * WINDOW_S:
            self._samples.popleft()
        if (rates := self._rates(tritons=True)) is not None and rates.rows_each > 0:
            self._best.append((now, rates.rows_each))
            while self._best[0][0] < now - 2 * WINDOW_S:
                self._best.popleft()
        if rates is not None and rates.busy_s > 0.05:
            efficiency = rates.rows / rates.busy_s
            while self._efficiency and self._efficiency[-1][1] <= efficiency:
                self._efficiency.pop()
            self._efficiency.append((now, efficiency))
            while self._efficiency[0][0] < now - DAY_S:
                self._efficiency.popleft()

    def _rates(self, *, tritons: bool = False) -> Sample | None:
        """Return per-second rates over the window, None where Prometheus has not two samples."""
        found = [s for s in self._samples if s.at >= self.now - WINDOW_S]
        found = [s for s in found if (s.tritons_seen if tritons else s.gateways_seen) > 0]
        if len(found) < 2:
            return None
        first, last = found[0], found[-1]
        span = last.at - first.at

        def rate(name: str) -> float:
            return float(getattr(last, name) - getattr(first, name)) / span

        return Sample(
            last.at, last.gateways, last.tritons, rate("requests"), rate("work_s"), last.in_flight, rate("queue_s"),
            rate("compute_s"), rate("rows"), rate("busy_s"), last.p95, last.gateways_seen, last.tritons_seen,
            rate("came"), rate("taken"), rate("waited_s"), rate("called_s"), rate("rows_each"),
        )  # fmt: skip

    def query(self, expr: str) -> float | None:
        """Answer a query for one record as Prometheus would now. Raises ``NoMetric`` while it is away."""
        if not self._prometheus_works(self.now):
            raise NoMetric("Prometheus does not answer")
        found = re.fullmatch(r"max\((\S+?)\{.*\}\)", expr)
        rates = self._rates(tritons=True)
        if rates is None:
            return None
        if found is None or found[1] not in self._WANTED:
            raise KeyError(f"the simulation does not know the query {expr!r}")
        return self._WANTED[found[1]](self, rates)

    def _serving(self, rates: Sample) -> int:
        return sum(pod.ready <= self.now - WINDOW_S for pod in self.tritons.pods) or rates.tritons_seen

    def _by_queue(self, rates: Sample) -> float:
        if not rates.compute_s or not self._best:
            return 0.0
        ratio = rates.queue_s / rates.compute_s + rates.waited_s / rates.called_s
        short = min(max(rates.came / rates.taken, 1.0), scaling.MOST_GROWTH) if ratio > 1 and rates.taken else 1.0
        serving = self._serving(rates)
        needed = max(serving, rates.rows * short / max(best for _, best in self._best))
        wanted = 2 * ratio / (1 + 2 * ratio) / scaling.LOAD_TARGET * needed
        return min(wanted, scaling.MOST_GROWTH * serving)

    def _by_p95(self, rates: Sample) -> float:
        if not rates.rows or not rates.compute_s:
            return 0.0
        call = rates.called_s / rates.rows * (1 + rates.queue_s / rates.compute_s)
        bearable = max(scaling.OBJECTIVE_S - call, scaling.PATIENCE * call)
        # three times the mean: what waits in a queue without memory
        return min(3 * rates.waited_s / rates.rows / bearable, 1 / scaling.LOAD_TARGET) * self._serving(rates)

    def _by_load(self, rates: Sample) -> float:
        if not self._efficiency:
            return 0.0
        return min(rates.rows / self._efficiency[0][1] / scaling.LOAD_TARGET, float(rates.tritons))

    _WANTED: ClassVar = {
        scaling.WANTED_BY_QUEUE: _by_queue, scaling.WANTED_BY_P95: _by_p95, scaling.WANTED_BY_LOAD: _by_load
    }  # fmt: skip

    def gateway_pods(self, metric: str) -> list[Pod]:
        """Return the gateways as the HPA sees them: ``cpu``, ``work``, ``hold``, ``rps`` or ``in_flight`` per pod."""
        if metric != "cpu" and not self._prometheus_works(self.now):
            raise NoMetric("the adapter has no Prometheus")
        lost = self._gateways_unscraped(self.now) if metric != "cpu" else 0
        pods = []
        for number, pod in enumerate(self.gateways.pods):
            value = None if number < lost else self._of_pod(pod, metric)
            pods.append(Pod(
                value, is_ready=pod.ready <= self.now, started=pod.made, ready_since=pod.ready,
            ))  # fmt: skip
        if all(pod.value is None for pod in pods):
            raise NoMetric("no samples")
        return pods

    def _of_pod(self, pod: Replica, metric: str) -> float | None:
        if metric == "cpu":
            if len(self._cpu_samples) < 2 or pod.ready > self._cpu_samples[0][0]:
                return None
            (first, before), (last, after) = self._cpu_samples
            return (after - before) / (last - first)
        since = [s for s in self._samples if s.at >= max(self.now - WINDOW_S, pod.ready)]
        if metric in ("in_flight", "hold"):
            each = since[-1].in_flight / max(1, since[-1].gateways_seen) if since else None
            return each if each is None or metric == "in_flight" else min(each / scaling.HOLD_IN_FLIGHT, 1.0)
        if len(since) < 2:
            return None

        def grown(name: str) -> float:
            return float(getattr(since[-1], name) - getattr(since[0], name)) / (since[-1].at - since[0].at)

        if metric == "rps":
            return grown("requests")
        share = grown("came") / grown("requests") if grown("requests") > 0 else 1.0
        due = scaling.WORK_TARGET / scaling.CPU_TARGET * min(max(share, 1.0), scaling.MOST_GROWTH)
        return min(grown("work_s"), due)
