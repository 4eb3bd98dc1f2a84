"""Makes references of what gateways have counted. Called by ``drift capture``."""

from __future__ import annotations

import urllib.parse
from collections import defaultdict
from typing import Any

from deploy.controller.counters import BUCKETS, Numbers
from deploy.tools import http_client
from gateway.metrics import catalog, drift


def of_counts(numbers: Numbers, endpoint: str, version: str) -> dict[str, drift.Bins]:
    """Return a reference of each variable of one version that has values."""
    buckets: dict[str, dict[float, float]] = defaultdict(dict)
    values: dict[str, dict[str, float]] = defaultdict(dict)
    missing: dict[str, float] = defaultdict(float)
    for (name, *labels), number in numbers.items():
        if labels[:2] != [endpoint, version]:
            continue
        if name == BUCKETS:
            buckets[labels[2]][float(labels[3])] = number
        elif name == catalog.VARIABLE_ENUM.name and number > 0:
            # A listed value that never occurred has no bin. If it occurs later, it is reported as new.
            values[labels[2]][labels[3]] = number
        elif name == catalog.VARIABLE_IGNORED.name:
            missing[labels[2]] += number
    found: dict[str, drift.Bins] = {}
    for variable, cumulative in buckets.items():
        bounds = sorted(cumulative)
        counts = [cumulative[b] - (cumulative[bounds[i - 1]] if i else 0.0) for i, b in enumerate(bounds)]
        if sum(counts) > 0:
            found[variable] = drift.bucket_bins(bounds, counts, missing=missing[variable])
    for variable, counted in values.items():
        if counted.keys() - {drift.OTHER}:
            found[variable] = drift.enum_bins(counted, missing=missing[variable])
    return found


def learned(gateway: str, url: str) -> tuple[drift.Words | None, drift.Mean | None]:
    """Return the usual words and the mean vector that a gateway counts one version with; None if it does not say."""
    answer = http_client.call_gateway(f"{gateway}/v1/endpoints/{urllib.parse.quote(url)}/learned", timeout=30.0)
    found: Any = answer.content if answer is not None and answer.status == 200 else {}
    words, mean = found.get("words"), found.get("mean")
    return (
        drift.Words(float(words["texts"]), tuple(words["usual"])) if words and words["usual"] else None,
        drift.Mean(float(mean["vectors"]), tuple(mean["values"])) if mean else None,
    )
