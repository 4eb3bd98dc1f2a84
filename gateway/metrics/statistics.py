"""The statistics extension of the Open Inference Protocol, computed from metrics: per version, over all workers.

Pure. Counts are requests, ``inference_count`` is rows and ``execution_count`` calls to Triton; times are nanoseconds.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.metrics import catalog
from gateway.metrics.accumulator import Snapshot
from gateway.metrics.recent import Seen, between

_TIMED: Final = {
    "success": catalog.REQUEST_SECONDS.name, "queue": "queue", "compute_input": "prepare", "compute_infer": "infer",
    "compute_output": "finish",
}  # fmt: skip
_NONE: Final = {"count": 0, "ns": 0}


def of_snapshot(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return one row per version that was or can be called."""
    return [_row(version, seen) for version, seen in sorted(between({}, snapshot, 2).items()) if version[0]]


def _row(served: tuple[str, ...], seen: Seen) -> dict[str, Any]:
    endpoint, version = served
    sums = {of: seen.sums.get(of, (0.0, 0.0)) for of in (*_TIMED.values(), catalog.ROWS.name, catalog.BATCH_ROWS.name)}
    done = int(seen.outcomes["ok"])
    return {
        "name": endpoint,
        "version": version or "1",
        "last_inference": 0,
        "inference_count": int(sums[catalog.ROWS.name][0]),
        "execution_count": int(sums[catalog.BATCH_ROWS.name][1]) or done,
        "inference_stats": {
            **{name: {"count": int(sums[of][1]), "ns": round(sums[of][0] * 1e9)} for name, of in _TIMED.items()},
            "fail": {"count": int(seen.outcomes.total()) - done, "ns": 0},
            "cache_hit": dict(_NONE),
            "cache_miss": dict(_NONE),
        },
        "batch_stats": [],
    }
