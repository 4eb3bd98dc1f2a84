"""Small pieces of PromQL for the boards. Pure text; metric names come from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.errors import STATUS

SCOPE: Final = ("namespace", "release")
"""Labels of a deployment: every rule keeps deployments apart. A Prometheus without these labels has one deployment."""
VERSION: Final = (*SCOPE, "endpoint", "version")
POOL: Final = (*SCOPE, "pool")
"""Labels of a pool: Tritons that share load and an autoscaler."""

FAILED_OUTCOMES: Final = "|".join(kind for kind, status in STATUS.items() if status >= 500 or kind == "overloaded")
"""Outcomes that are failures on the server side, by which availability is measured."""


def by(labels: Iterable[str], expr: str, function: str = "sum") -> str:
    """Aggregate an expression."""
    return f"{function} by ({', '.join(labels)}) ({expr})"


def on(labels: Iterable[str], *, group: str | None = None) -> str:
    """Return the matching clause of an operator; ``group`` is the label that many on the left get from the right."""
    return f"on ({', '.join(labels)})" + ("" if group is None else f" group_left ({group})")
