"""`events.add_batch`: what Tasks and models report. Of scalars the last values are kept, and nothing of the rest.

There is nobody to show logs, plots, images and curves to: this server has no pages.
"""

from collections import Counter
from collections.abc import Mapping
from hashlib import md5

from deploy.controlplane.api import models, tasks
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.envelope import ApiError, JsonObject
from deploy.controlplane.store import Transaction

SCALAR = "training_stats_scalar"
TYPES = frozenset({SCALAR, "log", "plot", "training_debug_image", "training_stats_vector"})
MAX_VALUE = 1e300


def add_batch(call: Call) -> JsonObject:
    """Count a batch. Valid events count even if others of the batch are refused; 400/131 if all are."""
    refused: Counter[str] = Counter()
    by_owner: dict[tuple[str, str], list[JsonObject]] = {}
    for event in call.lines:
        fault = _refusal(call.tx, event)
        if fault:
            refused[fault] += 1
        else:
            by_owner.setdefault((_kind(event), event["task"]), []).append(event)
    if call.lines and not by_owner:
        raise ApiError(400, 131, f"Events not added: {', '.join(f'{why}={count}' for why, count in refused.items())}")
    for (kind, owner), events in by_owner.items():
        doc = call.tx.get(kind, owner)
        if doc is not None:
            call.tx.put(kind, doc | _statistics(doc, events, call.stamp(), is_model=kind == models.KIND))
    return {"added": sum(map(len, by_owner.values())), "errors": refused.total(), "errors_info": dict(refused)}


def _kind(event: JsonObject) -> str:
    return models.KIND if event.get("model_event") is True else tasks.KIND


def _refusal(tx: Transaction, event: JsonObject) -> str | None:
    """Why an event is refused; None if it is accepted."""
    kind = event.get("type")
    if kind not in TYPES:
        return f"Invalid event type {kind:.100}" if kind else "Event must have a 'type' field"
    is_model, owner = event.get("model_event") is True, event.get("task") or ""
    stored = tx.get(_kind(event), owner)
    locked = stored is not None and (stored["ready"] if is_model else stored["status"] == "published")
    if stored is None or (locked and event.get("allow_locked") is not True):
        return f"Invalid {'model' if is_model else 'task'} id {owner}"
    return None


def _statistics(doc: JsonObject, events: list[JsonObject], now: str, *, is_model: bool) -> JsonObject:
    """The fields of an owner that its new events change. `last_change` stays, because nobody edited it."""
    last: dict[str, dict[str, JsonObject]] = {key: dict(value) for key, value in doc["last_metrics"].items()}
    stats: dict[str, JsonObject] = dict(doc.get("metric_stats") or {})
    for event in events:
        metric, variant, value = event.get("metric") or "", event.get("variant") or "", event.get("value")
        kinds = (stats.get(_hash(metric)) or {}).get("event_stats_by_type") or {}
        by_type = kinds | {event["type"]: {"last_update": event.get("timestamp")}}
        stats[_hash(metric)] = {"metric": metric, "event_stats_by_type": by_type}
        # neither NaN nor what no float can hold
        if event["type"] == SCALAR and isinstance(value, int | float) and -MAX_VALUE < value < MAX_VALUE:
            variants = last.setdefault(_hash(metric), {})
            variants[_hash(variant)] = _next(variants.get(_hash(variant)), metric, variant, value)
    reached = max([doc.get("last_iteration") or 0, *(event.get("iter") or 0 for event in events)])
    changed: JsonObject = {"last_metrics": last, "last_iteration": reached}
    return changed if is_model else changed | {"metric_stats": stats, "last_update": now}


def _next(row: JsonObject | None, metric: str, variant: str, value: float) -> JsonObject:
    row = row or {"min_value": value, "max_value": value, "first_value": value, "count": 0, "mean_value": 0.0}
    count = row["count"] + 1
    return {
        "metric": metric,
        "variant": variant,
        "value": value,
        "min_value": min(row["min_value"], value),
        "max_value": max(row["max_value"], value),
        "first_value": row["first_value"],
        "count": count,
        "mean_value": row["mean_value"] + (value - row["mean_value"]) / count,
    }


def _hash(name: str) -> str:
    # ClearML's key for a metric or variant name, not used for security
    return md5(name.encode(), usedforsecurity=False).hexdigest()


CALLS: Mapping[str, Handler] = {"events.add_batch": add_batch}
