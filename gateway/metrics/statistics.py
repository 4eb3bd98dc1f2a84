"""The statistics extension of the Open Inference Protocol, computed from metrics: per version, over all workers.

Pure. Counts are requests, ``inference_count`` is rows and ``execution_count`` calls to Triton; times are nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Snapshot

_STAGES: Final = {"queue": "queue", "prepare": "compute_input", "infer": "compute_infer", "finish": "compute_output"}
_SHOWN: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_TIMED: Final = frozenset(
    metric.name for metric in (catalog.REQUEST_SECONDS, catalog.STAGE_SECONDS, catalog.ROWS, catalog.BATCH_ROWS)
)
_NONE: Final = {"count": 0, "ns": 0}


def of_snapshot(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return one row per version that was or can be called."""
    counts: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (name, labels, _), value in snapshot.counts:
        if name == catalog.REQUESTS.name and labels[0]:
            endpoint, version, _, outcome = labels
            counts[endpoint, version]["success.count" if outcome == "ok" else "fail.count"] += value
    for (name, labels, _), numbers in snapshot.distributed():
        if name not in _TIMED or not labels[0]:
            continue
        found = counts[labels[0], labels[1]]
        total, number = numbers[-1], sum(numbers[:-1])
        if name == catalog.REQUEST_SECONDS.name:
            found["success.ns"] += total * 1e9
        elif name == catalog.STAGE_SECONDS.name:
            stage = _STAGES[labels[3]]
            found[f"{stage}.ns"] += total * 1e9
            found[f"{stage}.count"] += number
        elif name == catalog.ROWS.name:
            found["rows"] += total
        else:
            found["calls"] += number
    return [_row(*key, found) for key, found in sorted(counts.items()) if found]


def _row(endpoint: str, version: str, found: dict[str, float]) -> dict[str, Any]:
    done = int(found["success.count"])
    return {
        "name": endpoint,
        "version": version or "1",
        "last_inference": 0,
        "inference_count": int(found["rows"]),
        "execution_count": int(found["calls"]) or done,
        "inference_stats": {
            **{name: {"count": int(found[f"{name}.count"]), "ns": round(found[f"{name}.ns"])} for name in _SHOWN},
            "cache_hit": dict(_NONE),
            "cache_miss": dict(_NONE),
        },
        "batch_stats": [],
    }
