"""How many pods, cores and GPUs a load needs, and the cost of a million requests, computed from measured capacities.

Cores follow from the gateway's measured CPU time per request. GPUs follow from a model's two numbers (seconds per call,
seconds per row); `--call-ms` and `--row-ms` set them to what ``perf_analyzer`` measures for your model.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.backends import BACKENDS, MAX_BATCH
from benchmarks.shared.results import published
from tests.cluster.world import Capacity

PRICES = Path(__file__).parent / "prices.toml"
RATES = (100, 1_000, 10_000, 100_000, 1_000_000)
CPU_SHARE = 0.65
GPU_SHARE = 0.7
LEAST = 2
"""Fewest pods of each tier: one may be replaced while the other serves."""


@dataclass(frozen=True, slots=True)
class Size:
    """The pods, cores and GPUs for ``rate`` requests per second. ``cost`` is per million requests."""

    rate: float
    gateways: int
    cores: float
    gpus: int
    cost: float
    gpu_share: float


def measured() -> Capacity:
    """Return capacities from the published benchmark: the gateway's CPU per request, and the GPU-like model.

    A cloud's virtual core counts as half of the measured core. A tenth is kept free for work besides requests (garbage
    collection, health checks, scrapes).
    """
    gpu = BACKENDS["gpu"]
    return Capacity(
        gateway_rps=round(1e6 / gateway_micros() * 0.5 * 0.9), call_s=gpu.call_ms / 1000, row_s=gpu.row_ms / 1000,
        max_rows=MAX_BATCH,
    )  # fmt: skip


def gateway_micros(*, texts: str = "short") -> float:
    """Return the gateway's median CPU microseconds per request at 64 connections, from the published run."""
    wanted = ("gateway", "instant", texts, 64, 0.0)
    fields = ("system", "backend", "texts", "connections", "rate")
    found = [cell["own_us"] for cell in published()[1]["cells"] if tuple(cell[name] for name in fields) == wanted]
    return float(sorted(found)[len(found) // 2])


def prices(path: Path = PRICES) -> Mapping[str, Any]:
    """Read the price table."""
    return tomllib.loads(path.read_text())


def size(rate: float, capacity: Capacity, table: Mapping[str, Any], *, gpu: str = "inference") -> Size:
    """Size both tiers for a steady ``rate`` of short texts at the autoscalers' targets."""
    gateways = max(LEAST, math.ceil(rate / (capacity.gateway_rps * CPU_SHARE)))
    gpus = max(LEAST, math.ceil(rate / (capacity.triton_rps * GPU_SHARE)))
    gpu_cost = gpus * table["gpu"][gpu]["per_hour"]
    cost = gateways * table["core"]["per_hour"] + gpu_cost
    return Size(rate, gateways, float(gateways), gpus, cost / (rate * 3600 / 1e6), gpu_cost / cost)


def table(capacity: Capacity, given: Mapping[str, Any], *, gpu: str = "inference") -> str:
    """Return the guide as a Markdown table."""
    unit = given["currency"]
    lines = [
        f"| requests/s | gateway pods (1 core each) | GPUs (`{gpu}`) | {unit} per million requests | share of GPUs |",
        "|---:|---:|---:|---:|---:|",
    ]
    for rate in RATES:
        found = size(rate, capacity, given, gpu=gpu)
        lines.append(f"| {rate:,} | {found.gateways} | {found.gpus} | {found.cost:.3g} | {found.gpu_share:.0%} |")
    return "\n".join(lines)
