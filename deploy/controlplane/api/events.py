"""`events.*`: logs, scalars, plots and debug images of Tasks and models, stored unchanged, read in ClearML's forms."""

from collections import Counter
from collections.abc import Mapping
from hashlib import md5
from typing import Any

from deploy.controlplane import fields
from deploy.controlplane.api import models, tasks
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.envelope import ApiError, JsonObject, validation_error
from deploy.controlplane.store import Transaction, dumps, loads

SCALAR, LOG, PLOT, IMAGE = "training_stats_scalar", "log", "plot", "training_debug_image"
TYPES = frozenset({SCALAR, LOG, PLOT, IMAGE, "training_stats_vector"})
# the iteration number of values reported without an iteration
SINGLE_VALUE = -(2**31)
MAX_BATCH = 10_000
MAX_POINTS = 6_000
MAX_VALUE = 1e300


def add_batch(call: Call) -> JsonObject:
    """Store a batch. Valid events are stored even if others of the batch are refused; 400/131 if all are."""
    refused: Counter[str] = Counter()
    by_owner: dict[tuple[str, bool], list[JsonObject]] = {}
    arrived = call.clock.now()
    for event in call.lines:
        fault = fields.fault_of_event(event) or _refusal(call.tx, event)
        if fault:
            refused[fault] += 1
            continue
        stored = {name: value for name, value in event.items() if name != "allow_locked"}
        stored["@timestamp"] = arrived.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        stored.setdefault("worker", "")
        stored.setdefault("timestamp", int(arrived.timestamp() * 1000))
        by_owner.setdefault((event["task"], event.get("model_event") is True), []).append(stored)
    if call.lines and not by_owner:
        raise ApiError(400, 131, f"Events not added: {', '.join(f'{why}={count}' for why, count in refused.items())}")
    for (owner, is_model), events in by_owner.items():
        call.tx.execute_many(
            "INSERT INTO events (owner, type, metric, variant, iter, timestamp, doc) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (owner, event["type"], event.get("metric") or "", event.get("variant") or "", event.get("iter") or 0,
                 int(event["timestamp"] or 0), dumps(event))
                for event in events
            ],
        )  # fmt: skip
        kind = models.KIND if is_model else tasks.KIND
        doc = call.tx.get(kind, owner)
        if doc is not None:
            call.tx.put(kind, doc | _statistics(doc, events, call.stamp(), is_model=is_model))
    return {"added": sum(map(len, by_owner.values())), "errors": refused.total(), "errors_info": dict(refused)}


def get_task_log(call: Call) -> JsonObject:
    """A page of log lines: the newest (`navigate_earlier`, the default) or the oldest, before or after a time stamp."""
    owner = _owner(call)
    earlier = call.body.get("navigate_earlier") is not False
    sign, way = ("<", "DESC") if earlier else (">", "ASC")
    since = call.body.get("from_timestamp")
    bound = f" AND timestamp {sign} {int(since)}" if since is not None else ""
    rows = call.tx.rows(
        f"SELECT doc FROM events WHERE owner = ? AND type = ?{bound} ORDER BY timestamp {way}, seq {way} LIMIT ?",  # noqa: S608 - a number and literals
        (owner, LOG, _size(call, 100)),
    )
    events = [{"metric": "", "variant": "", **loads(row[0])} for row in rows]
    if (call.body.get("order") or way.lower()) != way.lower():
        events.reverse()
    ((total,),) = call.tx.rows(f"SELECT COUNT(*) FROM events WHERE owner = ? AND type = ?{bound}", (owner, LOG))  # noqa: S608
    return {"events": events, "returned": len(events), "total": total}


def get_task_events(call: Call) -> JsonObject:
    """Events of one type in pages; `scroll_id` continues, an empty page ends."""
    kind = call.body.get("event_type")
    events = [event for event in _events(call.tx, call.text("task")) if kind in (None, event["type"])]
    events.sort(key=lambda event: event.get("timestamp") or 0, reverse=call.body.get("order") != "asc")
    start = call.body.get("scroll_id") or "0"
    if not start.isdecimal() or len(start) > len(str(len(events))):
        raise validation_error("unknown scroll_id")
    found = events[int(start) :][: _size(call, 500)]
    return {
        "events": found, "returned": len(found), "total": len(events), "scroll_id": str(int(start) + len(found)),
    }  # fmt: skip


def get_task_plots(call: Call) -> JsonObject:
    """The plots of the last `iters` iterations of every metric and variant."""
    events = _latest(call, _events(call.tx, call.text("task"), PLOT))
    plots = [event | {"plot_len": len(event.get("plot_str") or "")} for event in events]
    return {"plots": plots, "returned": len(plots), "total": len(plots), "scroll_id": None}


def debug_images(call: Call) -> JsonObject:
    """The images of the last `iters` iterations. The first page contains everything, the next one is empty."""
    answers: list[JsonObject] = []
    for wanted in call.items("metrics"):
        images = [
            event
            for event in _events(call.tx, wanted["task"], IMAGE)
            if wanted.get("metric") in (None, event.get("metric"))
            and (not wanted.get("variants") or event.get("variant") in wanted["variants"])
        ]
        by_iteration: dict[int, list[JsonObject]] = {}
        for event in _latest(call, images) if not call.body.get("scroll_id") else []:
            by_iteration.setdefault(event.get("iter") or 0, []).append(event)
        iterations = [{"iter": at, "events": found} for at, found in sorted(by_iteration.items(), reverse=True)]
        answers.append({"task": wanted["task"], "iterations": iterations})
    return {"metrics": answers, "scroll_id": call.body.get("scroll_id") or "end"}


def scalar_metrics_iter_histogram(call: Call) -> JsonObject:
    """`{metric: {variant: {name, x, y}}}`, thinned to about `samples` points a curve."""
    column = "iter" if call.body.get("key") in (None, "iter") else "timestamp"
    rows = call.tx.rows(
        f"SELECT metric, variant, {column}, json_extract(doc, '$.value') FROM events"  # noqa: S608 - one of two literals
        f" WHERE owner = ? AND type = ? AND iter != ? ORDER BY {column}, seq",
        (_owner(call), SCALAR, SINGLE_VALUE),
    )
    curves: dict[str, dict[str, JsonObject]] = {}
    for metric, variant, x, y in rows:
        curve = curves.setdefault(metric, {}).setdefault(variant, {"name": variant, "x": [], "y": []})
        curve["x"].append(x)
        curve["y"].append(y)
    limit = max(call.body.get("samples") or 0, 0) or MAX_POINTS
    for variants in curves.values():
        for curve in variants.values():
            step = max(1, -(-len(curve["x"]) // limit))
            curve["x"], curve["y"] = curve["x"][::step], curve["y"][::step]
    return dict(curves)


def get_task_single_value_metrics(call: Call) -> JsonObject:
    """The latest of each value that was reported without an iteration."""
    answers: list[JsonObject] = []
    for owner in call.items("tasks"):
        stored = call.tx.get(models.KIND if call.flag("model_events") else tasks.KIND, owner)
        latest = {
            (event.get("metric"), event.get("variant")): {
                key: event.get(key) for key in ("metric", "variant", "value", "timestamp")
            }
            for event in _events(call.tx, owner, SCALAR)
            if event.get("iter") == SINGLE_VALUE
        }
        if stored is not None and latest:
            answers.append({"task": owner, "task_name": stored["name"], "values": [*latest.values()]})
    return {"tasks": answers}


def _refusal(tx: Transaction, event: JsonObject) -> str | None:
    """Why an event is refused; None if it is accepted."""
    kind = event.get("type")
    if kind not in TYPES:
        return f"Invalid event type {kind:.100}" if kind else "Event must have a 'type' field"
    is_model, owner = event.get("model_event") is True, event.get("task") or ""
    stored = tx.get(models.KIND if is_model else tasks.KIND, owner)
    locked = stored is not None and (stored["ready"] if is_model else stored["status"] == "published")
    if stored is None or (locked and event.get("allow_locked") is not True):
        return f"Invalid {'model' if is_model else 'task'} id {owner}"
    return None


def _owner(call: Call) -> str:
    """The id of the Task or model whose events are asked for; refused where there is none."""
    owner = call.text("task")
    if call.tx.get(models.KIND, owner) is None:
        tasks.require(call.tx, owner)
    return owner


def _statistics(doc: JsonObject, events: list[JsonObject], now: str, *, is_model: bool) -> JsonObject:
    """The fields of an owner that its new events change. `last_change` stays, because nobody edited it."""
    last: dict[str, dict[str, JsonObject]] = {key: dict(value) for key, value in doc["last_metrics"].items()}
    stats: dict[str, JsonObject] = dict(doc.get("metric_stats") or {})
    for event in events:
        metric, variant = event.get("metric") or "", event.get("variant") or ""
        kinds = dict((stats.get(_hash(metric)) or {}).get("event_stats_by_type") or {})
        kinds[event["type"]] = {"last_update": event.get("timestamp")}
        stats[_hash(metric)] = {"metric": metric, "event_stats_by_type": kinds}
        value = event.get("value")
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


def _events(tx: Transaction, owner: str, kind: str | None = None) -> list[JsonObject]:
    rows = tx.rows("SELECT doc FROM events WHERE owner = ? AND ? IN ('', type) ORDER BY iter, seq", (owner, kind or ""))
    return [loads(row[0]) for row in rows]


def _latest(call: Call, events: list[JsonObject]) -> list[JsonObject]:
    """The last `iters` different iterations of every metric and variant. A repeated one shows its latest event."""
    series: dict[tuple[Any, Any], dict[int, JsonObject]] = {}
    for event in events:
        series.setdefault((event.get("metric"), event.get("variant")), {})[event.get("iter") or 0] = event
    count = max(call.body.get("iters") or 1, 1)
    return [event for by_iteration in series.values() for _, event in sorted(by_iteration.items())[-count:]]


def _size(call: Call, default: int) -> int:
    size = call.body.get("batch_size") or 0
    return min(MAX_BATCH, size) if size > 0 else default


def _hash(name: str) -> str:
    # ClearML's key for a metric or variant name, not used for security
    return md5(name.encode(), usedforsecurity=False).hexdigest()


READS: Mapping[str, Handler] = {
    "events.get_task_log": get_task_log,
    "events.get_task_events": get_task_events,
    "events.get_task_plots": get_task_plots,
    "events.debug_images": debug_images,
    "events.scalar_metrics_iter_histogram": scalar_metrics_iter_histogram,
    "events.get_task_single_value_metrics": get_task_single_value_metrics,
}
WRITES: Mapping[str, Handler] = {"events.add_batch": add_batch}
