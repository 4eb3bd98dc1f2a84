"""The metrics as the Open Inference Protocol's statistics extension tells them: per version, all workers together.

Pure: an exposition in, rows out. Counts are requests, ``inference_count`` rows and ``execution_count`` calls to Triton;
times are nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from gateway.metrics import catalog, exposition

_STAGES: Final = {"queue": "queue", "prepare": "compute_input", "infer": "compute_infer", "finish": "compute_output"}
_SHOWN: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_NONE: Final = {"count": 0, "ns": 0}


def of_exposition(text: str) -> list[dict[str, Any]]:
    """Return one row per version that has answered anything."""
    counts: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, labels, value in exposition.parse(text):
        endpoint = labels.get("endpoint")
        if not endpoint:
            continue
        found = counts[endpoint, labels.get("version", "")]
        if name == catalog.REQUESTS.name:
            found["success.count" if labels["outcome"] == "ok" else "fail.count"] += value
        elif name == f"{catalog.REQUEST_SECONDS.name}_sum":
            found["success.ns"] += value * 1e9
        elif name == f"{catalog.STAGE_SECONDS.name}_sum":
            found[f"{_STAGES[labels['stage']]}.ns"] += value * 1e9
        elif name == f"{catalog.STAGE_SECONDS.name}_count":
            found[f"{_STAGES[labels['stage']]}.count"] += value
        elif name == f"{catalog.ROWS.name}_sum":
            found["rows"] += value
        elif name == f"{catalog.BATCH_ROWS.name}_count":
            found["calls"] += value
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
