"""The names of the series that the chart's rule files record for the boards, and small pieces of PromQL.

The rules are written by hand, in ``k8s/helm/triton-gateway/files/rules``. Values that cannot be added up (ratios,
quantiles) are computed there, after the sum over workers and pods, never in a gateway.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gateway.errors import STATUS

FILES: Final = Path(__file__).parents[1] / "k8s" / "helm" / "triton-gateway" / "files"

SCOPE: Final = ("namespace", "release")
"""Labels of a deployment: every rule keeps deployments apart. A Prometheus without these labels has one deployment."""
VERSION: Final = (*SCOPE, "endpoint", "version")
POOL: Final = (*SCOPE, "pool")
"""Labels of a pool: Tritons that share load and an autoscaler."""

FAILED_OUTCOMES: Final = "|".join(kind for kind, status in STATUS.items() if status >= 500 or kind == "overloaded")
"""Outcomes that are failures on the server side, by which availability is measured."""

AVAILABILITY: Final = "endpoint:gateway_objective_availability:ratio"
"""Share of an endpoint's requests that must not fail on the server side: its own objective or the default."""
LATENCY: Final = "endpoint_within:gateway_objective_latency:ratio"
"""Share of its answers that must come within ``within`` seconds, if that is promised."""
FAILED_LEFT: Final = "endpoint:gateway_requests_failed_budget:left30d"
"""Share that is left of the failures that the objective allows in 30 days."""
LATE_LEFT: Final = "endpoint_within:gateway_requests_late_budget:left30d"
"""The same of late answers."""

QUEUE_RATIO: Final = "job:triton_queue_compute:ratio_rate1m"
"""Time that requests wait for Triton, in the gateways and inside Triton, over the time that it computes."""
ROWS: Final = "instance:triton_rows:rate1m"
WORK: Final = "job:gateway_work:total1m"
WANTED_BY_QUEUE: Final = "job:triton_replicas_wanted:queue"
WANTED_BY_LOAD: Final = "job:triton_replicas_wanted:load"


def error_ratio(window: str) -> str:
    """Return the name of the recorded share of failed requests."""
    return f"endpoint:gateway_requests_failed:ratio_rate{window}"


def late_ratio(window: str) -> str:
    """Return the name of the recorded share of answers that came later than promised (promised time: ``within``)."""
    return f"endpoint_within:gateway_requests_late:ratio_rate{window}"


def by(labels: Iterable[str], expr: str, function: str = "sum") -> str:
    """Aggregate an expression."""
    return f"{function} by ({', '.join(labels)}) ({expr})"


def on(labels: Iterable[str], *, group: str | None = None) -> str:
    """Return the matching clause of an operator; ``group`` is the label that many on the left get from the right."""
    return f"on ({', '.join(labels)})" + ("" if group is None else f" group_left ({group})")
