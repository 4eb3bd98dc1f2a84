"""A model of both tiers under a load: queues, the capacity of ready pods, and counters as in their ``/metrics``.

It is a fluid model: every tick moves amounts of requests with their arrival time. Its capacities were measured. The
number of pods is decided elsewhere, by real autoscalers on a real Kubernetes (``tests/cluster/played.py``),
which see only the counters. docs/autoscaling.md lists what it leaves out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of one pod of each tier.

    ``gateway_rps`` is in requests per second of one gateway core (one worker, one pod). A Triton's call with ``b`` rows
    takes ``call_s + row_s * b`` seconds, with at most ``max_rows`` at a time.
    """

    gateway_rps: float
    call_s: float
    row_s: float
    max_rows: int = 64
    in_flight: int = 1024
    backlog: int = 4096
    """Requests that wait on connections of one gateway; more connections are refused."""
    late_s: float = 1.0
    timeout_s: float = 10.0

    @property
    def triton_rps(self) -> float:
        """Return rows per second of one Triton with full batches."""
        return self.max_rows / (self.call_s + self.row_s * self.max_rows)


@dataclass
class Gateway:
    """Counters of one gateway."""

    requests: float = 0.0
    seconds: float = 0.0
    queue_s: float = 0.0
    infer_s: float = 0.0
    calls: float = 0.0
    overloaded: float = 0.0
    too_late: float = 0.0
    cpu_wait_s: float = 0.0
    cpu_s: float = 0.0
    in_flight: float = 0.0


@dataclass
class Triton:
    """Counters of one Triton."""

    rows: float = 0.0
    calls: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0


@dataclass
class Tally:
    """How requests ended."""

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
    """Both tiers under ``rate`` (requests per second at a time). ``triton_works`` returns False while GPUs stall."""

    def __init__(
        self,
        capacity: Capacity,
        rate: Callable[[float], float],
        *,
        triton_works: Callable[[float], bool] = lambda _: True,
        tick_s: float = 0.25,
    ) -> None:
        self.capacity = capacity
        self.now = 0.0
        self.tick_s = tick_s
        self.tally = Tally()
        self.gateways: dict[str, Gateway] = {}
        self.tritons: dict[str, Triton] = {}
        self._rate, self._triton_works = rate, triton_works
        self._cpu: deque[tuple[float, float]] = deque()
        self._cpu_amount = 0.0
        self._triton: deque[tuple[float, float, float]] = deque()
        self._triton_amount = 0.0

    def go_on(self, now: float, gateways: Sequence[str], tritons: Sequence[str]) -> None:
        """Advance to ``now`` with the pods, by name, that are ready."""
        self.gateways = {name: self.gateways.get(name) or Gateway() for name in gateways}
        self.tritons = {name: self.tritons.get(name) or Triton() for name in tritons}
        while self.now + self.tick_s <= now:
            self._tick()

    def _tick(self) -> None:
        now, dt, ready = self.now, self.tick_s, len(self.gateways)
        self._arrive(now, self._rate(now) * dt, ready)
        done = self._prepare(now, ready * self.capacity.gateway_rps * dt, ready)
        own = done / self.capacity.gateway_rps
        for one in self.gateways.values():
            one.cpu_s += own / ready
            one.seconds += own / ready
            one.cpu_wait_s += self._cpu_amount * dt / ready
        self._infer(now, dt)
        self.now = now + dt

    def _arrive(self, now: float, amount: float, ready: int) -> None:
        # Requests that the gateways take on within the tick make room too.
        taken_on = ready * self.capacity.gateway_rps * self.tick_s
        room = max(0.0, self.capacity.backlog * max(1, ready) + taken_on - self._cpu_amount)
        taken = min(amount, room)
        self.tally.failed += amount - taken
        if taken:
            self._cpu.append((now, taken))
            self._cpu_amount += taken

    def _prepare(self, now: float, able: float, ready: int) -> float:
        """Let the gateways work; return how many requests they took on."""
        done = refused = late = 0.0
        replicas = len(self.tritons) if self._triton_works(now) else 0
        drained = replicas * self.capacity.triton_rps * self.tick_s
        room = max(0.0, self.capacity.in_flight * ready + drained - self._triton_amount)
        while self._cpu:
            at, amount = self._cpu[0]
            if now - at > self.capacity.timeout_s:  # their callers have given up
                self._cpu.popleft()
                self._cpu_amount -= amount
                late += amount
                continue
            if done >= able:
                break
            part = min(amount, able - done)
            self._cpu_amount -= part
            if part < amount:
                self._cpu[0] = (at, amount - part)
            else:
                self._cpu.popleft()
            done += part
            admitted = min(part, room)
            refused += part - admitted
            if admitted:
                room -= admitted
                self._triton.append((at, now, admitted))
                self._triton_amount += admitted
        self._count_failed(refused, late)
        return done

    def _count_failed(self, refused: float, late: float) -> None:
        """Count requests answered 429, and those whose deadline had passed."""
        self.tally.failed += refused + late
        for one in self.gateways.values():
            one.overloaded += refused / len(self.gateways)
            one.too_late += late / len(self.gateways)

    def _infer(self, now: float, dt: float) -> None:
        capacity, ready = self.capacity, len(self.gateways)
        replicas = len(self.tritons) if self._triton_works(now) else 0
        able = replicas * capacity.triton_rps * dt
        done = waited = timed_out = 0.0
        while self._triton:
            at, admitted, amount = self._triton[0]
            if now - at > capacity.timeout_s:
                self._triton.popleft()
                self._triton_amount -= amount
                timed_out += amount
                continue
            if done >= able:
                break
            part = min(amount, able - done)
            self._triton_amount -= part
            if part < amount:
                self._triton[0] = (at, admitted, amount - part)
            else:
                self._triton.popleft()
            done += part
            waited += part * (now - admitted)
            if now - at > capacity.late_s:
                self.tally.late += part
            else:
                self.tally.ok += part
        self._count_failed(0.0, timed_out)
        under_way = self._computed(done, waited, dt, replicas) if done else 0.0
        for one in self.gateways.values():
            one.in_flight = (self._triton_amount + under_way) / ready

    def _computed(self, done: float, waited: float, dt: float, replicas: int) -> float:
        """Count Triton's answers; return how many requests are inside it."""
        capacity, ready = self.capacity, max(1, len(self.gateways))
        # The batch size at which this rate is sustained: more load, larger batches, until they are full.
        each = done / dt / replicas
        rows = 1.0
        if each * (capacity.call_s + capacity.row_s) > 1:
            rows = each * capacity.call_s / max(1e-9, 1 - each * capacity.row_s)
            rows = min(max(rows, 1.0), capacity.max_rows) if rows > 0 else capacity.max_rows
        call = capacity.call_s + capacity.row_s * rows
        busy = min(1.0, each / rows * call)
        # Calls that wait inside Triton: at most two per gateway; other requests wait in the gateways.
        inside = min(self._triton_amount / replicas, 2 * ready * capacity.max_rows)
        queue = busy / (2 * (1 - min(busy, 0.95)) if rows < 2 else 2) + inside / capacity.max_rows
        infer = call * (1 + queue)
        calls = done / rows
        for triton in self.tritons.values():
            triton.rows += done / replicas
            triton.calls += calls / replicas
            triton.compute_s += calls * call / replicas
            triton.queue_s += calls * call * queue / replicas
        queued = max(0.0, waited / done - infer)
        for one in self.gateways.values():
            one.requests += done / ready
            one.calls += calls / ready
            one.infer_s += done * infer / ready
            one.queue_s += done * queued / ready
            one.seconds += done * (infer + queued) / ready
        # Running requests besides the waiting ones, by Little's law.
        return done / dt * (infer + 1 / capacity.gateway_rps)


def gateway_text(one: Gateway) -> str:
    """Return the counters of a gateway as it exposes them by default: those that rules for autoscalers read."""
    served = 'endpoint="texts",version="1",route="stable"'
    lines = [
        f"gateway_request_duration_seconds_sum{{{served}}} {one.seconds}",
        f'gateway_requests_total{{{served},outcome="ok"}} {one.requests}',
        f'gateway_requests_total{{{served},outcome="overloaded"}} {one.overloaded}',
        f'gateway_requests_total{{{served},outcome="deadline_exceeded"}} {one.too_late}',
        f'gateway_batch_rows_count{{endpoint="texts",version="1"}} {one.calls}',
        'gateway_model_info{endpoint="texts",version="1",model_id="0",model="texts",link="",pool="default"} 1',
        f"gateway_cpu_wait_seconds_total {one.cpu_wait_s}",
        f"gateway_requests_in_flight {one.in_flight}",
        f'gateway_stage_duration_seconds_sum{{{served},stage="queue"}} {one.queue_s}',
        f'gateway_stage_duration_seconds_sum{{{served},stage="infer"}} {one.infer_s}',
    ]
    return "\n".join(lines) + "\n"


def triton_text(one: Triton) -> str:
    """Return the counters of a Triton."""
    model = 'model="texts",version="1"'
    return (
        f"nv_inference_count{{{model}}} {one.rows}\n"
        f"nv_inference_exec_count{{{model}}} {one.calls}\n"
        f"nv_inference_request_success{{{model}}} {one.calls}\n"
        f"nv_inference_queue_duration_us{{{model}}} {one.queue_s * 1e6}\n"
        f"nv_inference_compute_infer_duration_us{{{model}}} {one.compute_s * 1e6}\n"
    )
