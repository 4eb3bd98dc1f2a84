"""Which expressions have data only if gateways show everything (``TRITON_GATEWAY_METRICS_DETAIL=full``).

Rules, alerts and autoscalers need only the level ``brief``; a test checks this. Panels that need more say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dashboards import rules
from gateway.metrics import catalog, variables

NOTE: Final = "Needs TRITON_GATEWAY_METRICS_DETAIL=full"

_FULL_ONLY: Final = {
    f"{metric.name}{part}"
    for metric in catalog.CATALOG
    if metric.is_detail
    for part in ("", "_bucket", "_sum", "_count")
} | {f"{metric.name}_bucket" for metric in catalog.CATALOG if metric.brief == ()}
_BUILT_IN: Final = {
    f"{metric.name}{part}" for metric in catalog.OF_VARIABLES for part in ("", "_bucket", "_sum", "_count")
}
_OF_LABELS: Final = f'variable="{variables.LABEL}"'
_VALUE: Final = re.compile(r'(\w+)="(\w+)"')


def _reads_detail(expr: str) -> bool:
    names = set(re.findall(r"[a-zA-Z_:][\w:]*", expr))
    if names & _FULL_ONLY:
        return True
    chosen = dict(_VALUE.findall(expr))
    for metric in catalog.CATALOG:
        if isinstance(metric.brief, Mapping) and any(name.startswith(metric.name) for name in names):
            value = chosen.get(metric.labels[-1])
            buckets = metric.brief.get(value, None) if value else ()
            if buckets is None or (not buckets and f"{metric.name}_bucket" in names):
                return True
    return False


RECORDS: Final = frozenset(name for name, expr in rules.records().items() if _reads_detail(expr))
"""Records that have data only at the level ``full``; only boards read them."""


def needs_detail(expr: str) -> bool:
    """Return True if an expression has no data, or no data of built-in variables, at the level ``brief``."""
    names = set(re.findall(r"[a-zA-Z_:][\w:]*", expr))
    return _reads_detail(expr) or bool(names & RECORDS) or (bool(names & _BUILT_IN) and _OF_LABELS not in expr)
