"""`events.*`: logs, scalars, plots and debug images of Tasks and models, stored unchanged, read in ClearML's forms."""

import base64
import binascii
import math
from collections.abc import Mapping
from hashlib import md5
from typing import Any

from deploy.controlplane import fields
from deploy.controlplane.api import models, tasks
from deploy.controlplane.api.call import Call, Handler
from deploy.controlplane.clock import Clock
from deploy.controlplane.envelope import JsonObject, events_not_added, validation_error
from deploy.controlplane.store import Reader, Store, dumps, loads

SCALAR, LOG, PLOT, IMAGE = "training_stats_scalar", "log", "plot", "training_debug_image"
# the iteration number of values reported without an iteration
SINGLE_VALUE = -(2**31)
TYPES = frozenset({SCALAR, LOG, PLOT, IMAGE, "training_stats_vector"})
MAX_BATCH = 10_000
MAX_POINTS = 6_000


class EventsApi:
    """Events of the store."""

    def __init__(self, *, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def endpoints(self) -> Mapping[str, Handler]:
        """Name -> handler."""
        return {
            "events.add": self.add,
            "events.add_batch": self.add_batch,
            "events.get_task_log": self.get_task_log,
            "events.get_task_events": self.get_task_events,
            "events.get_task_plots": self.get_task_plots,
            "events.debug_images": self.debug_images,
            "events.scalar_metrics_iter_histogram": self.scalar_metrics_iter_histogram,
            "events.get_task_single_value_metrics": self.get_task_single_value_metrics,
            "events.get_task_latest_scalar_values": self.get_task_latest_scalar_values,
        }

    def add(self, call: Call) -> JsonObject:
        """One event."""
        return self._add([call.body])

    def add_batch(self, call: Call) -> JsonObject:
        """Store a batch. Valid events are stored even if others of the batch are refused; 400/131 if all are."""
        return self._add(call.lines)

    def _add(self, lines: list[JsonObject]) -> JsonObject:
        refused: dict[str, int] = {}
        by_owner: dict[tuple[str, bool], list[JsonObject]] = {}
        arrived = self._clock.now()
        with self._store.write() as tx:
            problems: dict[tuple[str, bool, bool], str | None] = {}
            for event in lines:
                problem = fields.fault_of_event(event) or _malformed(event)
                owner = (str(event.get("task") or ""), event.get("model_event") is True)
                key = (*owner, event.get("allow_locked") is True)
                if problem is None and key not in problems:
                    problems[key] = _refusal(tx, owner[0], is_model=owner[1], allow_locked=key[2])
                problem = problem or problems[key]
                if problem:
                    refused[problem] = refused.get(problem, 0) + 1
                    continue
                stored = {name: value for name, value in event.items() if name != "allow_locked"}
                stored["@timestamp"] = arrived.isoformat(timespec="milliseconds").replace("+00:00", "Z")
                stored.setdefault("worker", "")
                stored.setdefault("timestamp", int(arrived.timestamp() * 1000))
                by_owner.setdefault(owner, []).append(stored)
            if lines and not by_owner:
                raise events_not_added(", ".join(f"{why}={count}" for why, count in refused.items()))
            for (owner_id, is_model), events in by_owner.items():
                tx.execute_many(
                    "INSERT INTO events (owner, type, metric, variant, iter, timestamp, doc)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [_row(owner_id, event) for event in events],
                )
                kind = models.KIND if is_model else tasks.KIND
                stored_owner = tx.get(kind, owner_id)
                if stored_owner is not None:
                    now = self._clock.stamp()
                    tx.put(kind, _with_statistics(stored_owner, events, now, is_model=is_model))
        return {"added": sum(map(len, by_owner.values())), "errors": sum(refused.values()), "errors_info": refused}

    def get_task_log(self, call: Call) -> JsonObject:
        """A page of log lines.

        The newest (`navigate_earlier`, the default) or the oldest, before or after a time stamp.
        """
        owner, size = call.text("task"), _size(call, 100)
        earlier = call.flag("navigate_earlier", default=True)
        where = "owner = ? AND type = ?"
        values: list[Any] = [owner, LOG]
        from_timestamp = call.body.get("from_timestamp")
        if isinstance(from_timestamp, int | float):
            where += " AND timestamp < ?" if earlier else " AND timestamp > ?"
            values.append(int(from_timestamp))
        direction = "DESC" if earlier else "ASC"
        with self._store.read() as tx:
            _require_owner(tx, owner)
            total = _count(tx, where, values)
            rows = tx.rows(
                f"SELECT doc FROM events WHERE {where} ORDER BY timestamp {direction}, seq {direction} LIMIT ?",  # noqa: S608
                [*values, size],
            )
        events = [loads(row[0]) for row in rows]
        if (call.body.get("order") or ("desc" if earlier else "asc")) != ("desc" if earlier else "asc"):
            events.reverse()
        for event in events:
            event.setdefault("metric", "")
            event.setdefault("variant", "")
        return {"events": events, "returned": len(events), "total": total}

    def get_task_events(self, call: Call) -> JsonObject:
        """Events of one type in pages; `scroll_id` continues, an empty page ends."""
        owner, size, start = call.text("task"), _size(call, 500), _scroll_start(call)
        kind = call.body.get("event_type")
        where, values = ("owner = ? AND type = ?", [owner, kind]) if kind else ("owner = ?", [owner])
        direction = "ASC" if call.body.get("order") == "asc" else "DESC"
        with self._store.read() as tx:
            total = _count(tx, where, values)
            rows = tx.rows(
                f"SELECT doc FROM events WHERE {where}"  # noqa: S608 - literals only
                f" ORDER BY timestamp {direction}, seq {direction} LIMIT ? OFFSET ?",
                [*values, size, start],
            )
        events = [loads(row[0]) for row in rows]
        return {"events": events, "returned": len(events), "total": total, "scroll_id": _scroll_id(start + len(events))}

    def get_task_plots(self, call: Call) -> JsonObject:
        """The plots of the last `iters` iterations of every metric and variant."""
        iters = call.body.get("iters") or 1
        with self._store.read() as tx:
            events = _latest(_events(tx, call.text("task"), PLOT), iters)
        plots = [event | {"plot_len": len(event.get("plot_str") or "")} for event in events]
        return {"plots": plots, "returned": len(plots), "total": len(plots), "scroll_id": None}

    def debug_images(self, call: Call) -> JsonObject:
        """The images of the last `iters` iterations. The first page contains everything, the next one is empty."""
        iters = call.body.get("iters") or 1
        answers: list[JsonObject] = []
        with self._store.read() as tx:
            for wanted in call.items("metrics"):
                if not isinstance(wanted, Mapping) or not wanted.get("task"):
                    raise validation_error("metrics need a task")
                variants = wanted.get("variants")
                images = [
                    event
                    for event in _events(tx, str(wanted["task"]), IMAGE)
                    if (wanted.get("metric") in (None, event.get("metric")))
                    and (not variants or event.get("variant") in variants)
                ]
                by_iteration: dict[int, list[JsonObject]] = {}
                for event in _latest(images, iters) if not call.body.get("scroll_id") else []:
                    by_iteration.setdefault(_int(event.get("iter")), []).append(event)
                answers.append(
                    {
                        "task": wanted["task"],
                        "iterations": [
                            {"iter": iteration, "events": events}
                            for iteration, events in sorted(by_iteration.items(), reverse=True)
                        ],
                    }
                )
        return {"metrics": answers, "scroll_id": call.body.get("scroll_id") or _scroll_id(0)}

    def scalar_metrics_iter_histogram(self, call: Call) -> JsonObject:
        """`{metric: {variant: {name, x, y}}}`, thinned to about `samples` points a curve."""
        axis = call.body.get("key") or "iter"
        column = "iter" if axis == "iter" else "timestamp"
        samples = call.body.get("samples")
        limit = samples if isinstance(samples, int) and samples > 0 else MAX_POINTS
        with self._store.read() as tx:
            owner = call.text("task")
            _require_owner(tx, owner)
            rows = tx.rows(
                f"SELECT metric, variant, {column}, json_extract(doc, '$.value') FROM events"  # noqa: S608 - one of two literals
                f" WHERE owner = ? AND type = ? AND iter != ? ORDER BY {column}, seq",
                (owner, SCALAR, SINGLE_VALUE),
            )
        curves: dict[str, dict[str, JsonObject]] = {}
        for metric, variant, x, y in rows:
            curve = curves.setdefault(metric, {}).setdefault(variant, {"name": variant, "x": [], "y": []})
            curve["x"].append(x)
            curve["y"].append(y)
        for variants in curves.values():
            for curve in variants.values():
                step = -(-len(curve["x"]) // limit)
                if step > 1:
                    curve["x"], curve["y"] = curve["x"][::step], curve["y"][::step]
        return dict(curves)

    def get_task_single_value_metrics(self, call: Call) -> JsonObject:
        """The latest of each value that was reported without an iteration."""
        answers: list[JsonObject] = []
        with self._store.read() as tx:
            for owner in call.items("tasks"):
                stored = tx.get(models.KIND if call.flag("model_events") else tasks.KIND, str(owner))
                latest: dict[tuple[str, str], JsonObject] = {}
                for event in _events(tx, str(owner), SCALAR):
                    if event.get("iter") == SINGLE_VALUE:
                        latest[event.get("metric", ""), event.get("variant", "")] = {
                            key: event.get(key) for key in ("metric", "variant", "value", "timestamp")
                        }
                if stored is not None and latest:
                    answers.append({"task": owner, "task_name": stored["name"], "values": [*latest.values()]})
        return {"tasks": answers}

    def get_task_latest_scalar_values(self, call: Call) -> JsonObject:
        """The latest value of every scalar."""
        with self._store.read() as tx:
            doc = tasks.require(tx, call.text("task"))
        metrics: dict[str, list[JsonObject]] = {}
        for variants in (doc.get("last_metrics") or {}).values():
            for item in variants.values():
                metrics.setdefault(item["metric"], []).append({"name": item["variant"], "last_value": item["value"]})
        return {
            "metrics": [{"name": name, "variants": variants} for name, variants in metrics.items()],
            "last_iter": doc.get("last_iteration", 0),
            "name": doc["name"],
            "status": doc["status"],
        }


def _malformed(event: JsonObject) -> str | None:
    kind = event.get("type")
    if not kind:
        return "Event must have a 'type' field"
    return None if kind in TYPES else f"Invalid event type {kind:.100}"


def _refusal(tx: Reader, owner: str, *, is_model: bool, allow_locked: bool) -> str | None:
    """Why events of `owner` are refused; None if they are accepted."""
    stored = tx.get(models.KIND if is_model else tasks.KIND, owner)
    locked = stored is not None and (stored["ready"] if is_model else stored["status"] == "published")
    if stored is None or (locked and not allow_locked):
        return f"Invalid {'model' if is_model else 'task'} id {owner}"
    return None


def _require_owner(tx: Reader, owner: str) -> None:
    if tx.get(models.KIND, owner) is None:
        tasks.require(tx, owner)


def _with_statistics(doc: JsonObject, events: list[JsonObject], now: str, *, is_model: bool) -> JsonObject:
    """The owner with its last metrics updated. `last_change` stays, because nobody edited it."""
    last: dict[str, dict[str, JsonObject]] = {
        key: dict(value) for key, value in (doc.get("last_metrics") or {}).items()
    }
    stats: dict[str, JsonObject] = dict(doc.get("metric_stats") or {})
    iteration = doc.get("last_iteration") or 0
    for event in events:
        metric, variant = str(event.get("metric") or ""), str(event.get("variant") or "")
        iteration = max(iteration, _int(event.get("iter")))
        key = _hash(metric)
        kinds = dict((stats.get(key) or {}).get("event_stats_by_type") or {})
        kinds[str(event["type"])] = {"last_update": event.get("timestamp")}
        stats[key] = {"metric": metric, "event_stats_by_type": kinds}
        value = event.get("value")
        if event["type"] == SCALAR and isinstance(value, int | float) and not math.isnan(value):
            row = last.setdefault(key, {}).get(_hash(variant))
            last[key][_hash(variant)] = _next_statistics(row, metric, variant, value)
    changed: JsonObject = {"last_metrics": last, "last_iteration": iteration}
    if not is_model:
        changed |= {"metric_stats": stats, "last_update": now}
    return doc | changed


def _next_statistics(row: JsonObject | None, metric: str, variant: str, value: float) -> JsonObject:
    if row is None:
        row = {"min_value": value, "max_value": value, "first_value": value, "count": 0, "mean_value": 0.0}
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


def _events(tx: Reader, owner: str, kind: str) -> list[JsonObject]:
    rows = tx.rows("SELECT doc FROM events WHERE owner = ? AND type = ? ORDER BY iter, seq", (owner, kind))
    return [loads(row[0]) for row in rows]


def _latest(events: list[JsonObject], iters: Any) -> list[JsonObject]:
    """The last `iters` different iterations of every metric and variant. A repeated one shows its latest event."""
    series: dict[tuple[Any, Any], dict[int, JsonObject]] = {}
    for event in events:
        series.setdefault((event.get("metric"), event.get("variant")), {})[_int(event.get("iter"))] = event
    count = iters if isinstance(iters, int) and iters > 0 else 1
    return [event for by_iteration in series.values() for _, event in sorted(by_iteration.items())[-count:]]


def _row(owner: str, event: JsonObject) -> tuple[Any, ...]:
    return (
        owner,
        str(event["type"]),
        str(event.get("metric") or ""),
        str(event.get("variant") or ""),
        _int(event.get("iter")),
        _int(event.get("timestamp")),
        dumps(event),
    )


def _count(tx: Reader, where: str, values: list[Any]) -> int:
    row = tx.one(f"SELECT COUNT(*) FROM events WHERE {where}", values)  # noqa: S608 - built from literals here
    return int(row[0]) if row else 0


def _size(call: Call, default: int) -> int:
    size = call.body.get("batch_size")
    return min(MAX_BATCH, size) if isinstance(size, int) and size > 0 else default


def _scroll_id(offset: int) -> str:
    return base64.urlsafe_b64encode(f"offset:{offset}".encode()).decode()


def _scroll_start(call: Call) -> int:
    text = call.body.get("scroll_id")
    if not text:
        return 0
    try:
        word, _, number = base64.urlsafe_b64decode(str(text)).decode().partition(":")
        if word == "offset":
            # an offset past the largest one is past the last event
            return min(int(number), (1 << 63) - 1)
    except (binascii.Error, ValueError):
        pass
    raise validation_error("unknown scroll_id")


def _int(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _hash(name: str) -> str:
    # ClearML's key for a metric or variant name, not used for security
    return md5(name.encode(), usedforsecurity=False).hexdigest()
