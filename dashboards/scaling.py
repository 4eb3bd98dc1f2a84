"""What the autoscalers read: how many gateways and Tritons a deployment needs, from load and measured capacity.

``group()`` is the rule file ``scaling.yml``; the HPAs, ScaledObjects and prometheus-adapter ask for its records by name
(k8s/). Every record belongs to one deployment (``SCOPE``; Tritons by pool), is never NaN (which prometheus-adapter
reports as "no load"), and is empty if the value is unknown (which a scaler treats as an error).

Only waiting requests ask for replicas, never computing time: another GPU makes no model faster.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import ENDPOINT, FAILED_OUTCOMES, INSTANCE, POOL, SCOPE, VERSION, Group, Record, by, on, rate
from gateway.metrics import catalog

WORK: Final = "instance:gateway_work:mean1m"
"""Mean number of requests that one gateway's CPU prepares, finishes or has waiting; those at Triton are not in it."""
ANSWERED_BEST: Final = "job:gateway_answered_per_replica:max1m"
"""Requests per second that the busiest gateway answered. Its maximum over some minutes is one gateway's capacity."""
WORK_DUE: Final = "instance:gateway_work_due:mean1m"
"""Arriving requests over one gateway's capacity, in the unit of ``WORK``: ``WORK_TARGET / CPU_TARGET`` if full."""
WORK_ASKED: Final = "instance:gateway_work_asked:mean1m"
"""The smaller of ``WORK`` and ``WORK_DUE``: a backlog asks for gateways by what arrives, not by what has piled up."""
WORK_TOTAL: Final = "job:gateway_work:total1m"
"""``WORK_ASKED`` of all gateways of a deployment. A gateway that cannot be scraped any more counts as the others' mean.
"""
HOLD_EACH: Final = "instance:gateway_hold:ratio"
"""From 0 (no request in flight) to 1 (``HOLD_IN_FLIGHT``): keeps the autoscaler from removing a full gateway."""
HOLD: Final = "job:gateway_hold:ratio"
"""Mean over a deployment's gateways."""
HOLD_TOTAL: Final = "job:gateway_hold:total"
TRITON_WAIT: Final = "job:gateway_triton_wait:mean1m"
"""Mean number of requests that wait for a call to Triton, or are in one."""
UNSEEN: Final = "job:triton_unseen:ratio"
"""Tritons per scraped Triton: above 1 while some that were scraped within the last hour cannot be."""
GATEWAYS_UNSEEN: Final = "job:gateway_unseen:ratio"
RUNS_ON: Final = "endpoint_version:gateway_pool:info"
"""1 for each version that calls Triton now; the label is its pool."""
INSIDE: Final = "job:triton_inside:ratio_rate1m"
"""Time that calls wait inside Triton, over the time that it computes."""
QUEUE_RATIO: Final = "job:triton_queue_compute:ratio_rate1m"
"""Time that requests wait for Triton, in the gateways and inside Triton, over the time that it computes."""
INFER_P95: Final = "job:gateway_infer_seconds:p95_1m"
SHORT: Final = "job:gateway_offered:ratio_rate1m"
"""Arrived requests per answered request: above 1 while some are refused or miss their deadline."""
ROWS_EACH: Final = "instance:triton_rows:rate1m"
ROWS: Final = "job:triton_rows:rate1m"
BEST: Final = "job:triton_rows_per_replica:max1m"
"""Rows per second of the busiest replica: one replica's capacity while requests wait."""
EFFICIENCY: Final = "job:triton_rows_per_busy_second:rate1m"
"""Rows per second of computing time: grows as batches fill."""
SERVING: Final = "job:triton_replicas_serving:count"
"""``STEADY`` if not empty, else the Tritons that compute now: the replicas behind the rates of the last minute."""
STEADY: Final = "job:triton_replicas_steady:count"
"""Tritons that have computed for a minute or longer; empty if there are none."""
BACK: Final = "job:triton_replicas_back:count"
"""Tritons that compute again after none did and requests failed: the rates of the last minute do not apply."""
CALL: Final = "endpoint_version:gateway_infer_seconds:mean1m"
"""Mean seconds of a call to Triton, for versions with enough answers in the window."""
PROMISED: Final = "endpoint:gateway_objective_latency:seconds"
"""Seconds within which an endpoint promises to answer, if it promises a time; the shortest of several."""
WANTED_BY_WAITING: Final = "job:triton_replicas_wanted:waiting"
"""1 if requests wait for a pool in which no Triton answers; this wakes a pool that was scaled to zero."""
WANTED_BY_QUEUE: Final = "job:triton_replicas_wanted:queue"
WANTED_BY_P95: Final = "job:triton_replicas_wanted:p95"
WANTED_BY_LOAD: Final = "job:triton_replicas_wanted:load"
"""Wanted number of Tritons: by the queue (``WANTED_BY_QUEUE``), by the p95 guard rail, and at least by their load."""

OBJECTIVE_S: Final = 0.25
"""Seconds: target for endpoints that promise no time. It must be a bound of the latency histogram."""
HOLD_IN_FLIGHT: Final = 256
"""Requests in flight at which a gateway is full: a quarter of the default of ``TRITON_GATEWAY_MAX_IN_FLIGHT``."""
WORK_TARGET: Final = 4.0
"""Target of ``WORK``: requests that one gateway's CPU may have in hand."""
CPU_TARGET: Final = 0.65
"""Target utilisation of a gateway's CPU, 0 to 1."""
LOAD_TARGET: Final = 0.7
"""Target utilisation of a Triton, 0 to 1, at the best efficiency of the last day; for one instance per model."""
MAX_GROWTH: Final = 10.0
"""Largest growth factor: no signal asks for more than this many times the working replicas."""
PATIENCE: Final = 2.0
"""A request may wait this many times its model's computing time, whatever the objective."""
_LEAST_ANSWERS: Final = 10
"""Fewer answers in the window than this give no usable p95."""
_WINDOW: Final = "1m"
_NOW: Final = "30s"
_PROVEN: Final = "5m"
"""Window in which a gateway's best rate counts as its capacity; until then the CPU signal covers a change of texts."""
_EACH: Final = (*INSTANCE, "pod")
_TURNED_AWAY: Final = "overloaded|deadline_exceeded"


def gateway_work(labels: tuple[str, ...], matchers: str = "", window: str = _WINDOW) -> str:
    """Return the expression of ``WORK`` by other labels.

    Seconds per second are a mean number of requests: all of their time, less the time with Triton, and the wait before
    the gateway looked at them.
    """
    with_triton = ",".join(filter(None, (matchers, 'stage=~"queue|infer"')))
    whole = by(labels, rate(f"{catalog.REQUEST_SECONDS.name}_sum", window, matchers))
    away = by(labels, rate(f"{catalog.STAGE_SECONDS.name}_sum", window, with_triton))
    waited = by(labels, rate(catalog.CPU_WAIT.name, window, matchers))
    # A gateway that has not answered anything yet has no series of the first two.
    return f"clamp_min({whole}\n  - {away}\n  or 0 * {waited}, 0)\n  + {waited}"


def triton_wait(labels: tuple[str, ...], matchers: str = "", window: str = _WINDOW) -> str:
    """Return the expression of ``TRITON_WAIT`` by other labels."""
    with_triton = ",".join(filter(None, (matchers, 'stage=~"queue|infer"')))
    return by(labels, rate(f"{catalog.STAGE_SECONDS.name}_sum", window, with_triton))


def queue_ratio(matchers: str = "", window: str = _WINDOW) -> str:
    """Return how long calls wait inside Triton over how long it computes: 0 without calls, nothing without a Triton.

    A ratio of nothing to nothing would be NaN; an empty answer must stay one.
    """
    queued = _of_pool(by(POOL, rate("nv_inference_queue_duration_us", window, matchers)))
    computed = _of_pool(by(POOL, rate("nv_inference_compute_infer_duration_us", window, matchers)))
    return f"{queued} / ({computed} > 0)\n  or 0 * {computed}"


def infer_p95(matchers: str = "", window: str = _WINDOW) -> str:
    """Return the expression of ``INFER_P95``: seconds of a call to Triton; 0 without calls, empty without gateways."""
    stage = ",".join(filter(None, (matchers, 'stage="infer"')))
    buckets = by((*SCOPE, "le"), rate(f"{catalog.STAGE_SECONDS.name}_bucket", window, stage))
    calls = by(SCOPE, rate(f"{catalog.STAGE_SECONDS.name}_count", window, stage))
    # Only gateways with full detail show buckets: no series does not mean zero.
    shown = by(SCOPE, rate(f"{catalog.STAGE_SECONDS.name}_bucket", window, f'{stage},le="{OBJECTIVE_S}"'))
    return f"histogram_quantile(0.95, {buckets}) and ({calls} > 0) and {shown} >= 0\n  or 0 * {shown}"


def group() -> Group:
    """Return every record, in order of evaluation."""
    return Group("gateway-scaling", [*_gateways(), *_tritons(), *_wanted()], interval="15s")


def _gateways() -> list[Record]:
    requests = catalog.REQUESTS.name
    turned_away, answered = f'outcome=~"{_TURNED_AWAY}"', f'outcome!~"{_TURNED_AWAY}"'
    # With two samples: current arrivals, also at a gateway that started half a minute ago. With fewer, a full
    # gateway's.
    came, done = by(_EACH, rate(requests, _NOW)), by(_EACH, rate(requests, _WINDOW, answered))
    # The busiest gateway's maximum over some minutes: while Triton is full or down, gateways answer less than they
    # could.
    share = f"{came}\n  / {on(SCOPE, group='')} (max_over_time({ANSWERED_BEST}[{_PROVEN}]) > 0)"
    full = f"{WORK_TARGET / CPU_TARGET:.4g}"
    served = by(SCOPE, rate(requests, _WINDOW, answered))
    return [
        Record(WORK, gateway_work(_EACH)),
        Record(ANSWERED_BEST, by(SCOPE, done, "max")),
        Record(WORK_DUE, f"{full} * clamp_max({share}, {MAX_GROWTH:g})\nor 0 * {WORK} + {full}"),
        Record(WORK_ASKED, f"{WORK} < {WORK_DUE} or {WORK_DUE} and {WORK}"),
        Record(GATEWAYS_UNSEEN, _unseen("triton-gateway", SCOPE)),
        Record(WORK_TOTAL, f"{by(SCOPE, _scraped(WORK_ASKED, 'triton-gateway'))} * {GATEWAYS_UNSEEN}"),
        Record(TRITON_WAIT, triton_wait((*SCOPE, "job"))),
        Record(HOLD_EACH, f"clamp_max({by(_EACH, catalog.IN_FLIGHT.name)} / {HOLD_IN_FLIGHT}, 1)"),
        Record(HOLD, by(SCOPE, HOLD_EACH, "avg")),
        Record(HOLD_TOTAL, f"{by(SCOPE, HOLD_EACH)} * {GATEWAYS_UNSEEN}"),
        Record(
            SHORT,
            f"clamp_max(1 + {by(SCOPE, rate(requests, _WINDOW, turned_away))}\n  / ({served} > 0), {MAX_GROWTH:g})",
        ),
    ]


def _tritons() -> list[Record]:
    rows = by(POOL, ROWS_EACH)
    # Every call in a batch is charged with the whole batch's time.
    executed = by(POOL, rate("nv_inference_exec_count", _WINDOW))
    shared = f"{executed} / ({by(POOL, rate('nv_inference_request_success', _WINDOW))} > 0)"
    busy = f"{by(POOL, rate('nv_inference_compute_infer_duration_us', _WINDOW))} / 1e6 * {shared}"
    batches = by(VERSION, rate(f"{catalog.BATCH_ROWS.name}_count", _WINDOW))
    pools = by((*VERSION, "pool"), _of_pool(f"{catalog.MODEL_INFO.name} == 1"), "max")
    calls = by(VERSION, _stage("count", "infer"))
    failed = f'rate({catalog.REQUESTS.name}{{outcome=~"{FAILED_OUTCOMES}"}}[{_WINDOW}] offset {_WINDOW})'

    def seconds(stage: str) -> str:
        return by(POOL, f"{by(VERSION, _stage('sum', stage))}\n  * {on(VERSION, group='pool')} {RUNS_ON}")

    return [
        Record(UNSEEN, _of_pool(_unseen("triton", POOL))),
        Record(ROWS_EACH, _of_pool(_scraped(by((*POOL, "instance"), rate("nv_inference_count", _WINDOW)), "triton"))),
        Record(ROWS, f"{rows} * {UNSEEN}"),
        Record(BEST, by(POOL, ROWS_EACH, "max")),
        Record(EFFICIENCY, f"{rows}\n  / ({_of_pool(busy)} > 0.05)"),
        # One pool per version, even if gateways disagree while a change is under way.
        Record(RUNS_ON, f"topk by ({', '.join(VERSION)}) (1, {pools})\n  and {on(VERSION)} ({batches} > 0)"),
        Record(INSIDE, queue_ratio()),
        # The time of a call is waiting inside Triton plus computing; waiting before the call is divided by computing.
        Record(
            QUEUE_RATIO,
            f"{INSIDE} + (1 + {INSIDE}) * {seconds('queue')}\n  / ({seconds('infer')} > 0)\nor {INSIDE}",
        ),
        Record(CALL, f"{by(VERSION, _stage('sum', 'infer'))}\n  / ({calls} > {_LEAST_ANSWERS / 60:.3g})"),
        Record(INFER_P95, infer_p95()),
        Record(PROMISED, _promised()),
        Record(STEADY, f"{by(POOL, f'{ROWS_EACH} > 0 and {ROWS_EACH} offset {_WINDOW} > 0', 'count')} * {UNSEEN}"),
        Record(SERVING, f"{STEADY} or {by(POOL, f'{ROWS_EACH} > 0', 'count')} * {UNSEEN}"),
        Record(BACK, f"{SERVING} unless {STEADY}\n  and {on(SCOPE)} {by(SCOPE, failed)} > 0"),
    ]


def _wanted() -> list[Record]:
    # Utilisation of a server whose queue causes such waits (M/D/1): near 1 as soon as requests pile up.
    busy = f"2 * {QUEUE_RATIO} / (1 + 2 * {QUEUE_RATIO})"
    offered = f"({ROWS} * {on(SCOPE, group='')} {SHORT} and {QUEUE_RATIO} > 1 or {ROWS})"
    # Two minutes: while new replicas take over load, the busiest one's recent maximum still shows its capacity.
    needed = f"{offered}\n  / (max_over_time({BEST}[2m]) > 0)"
    tritons = _of_pool(by(POOL, 'up{job="triton"}', "count"))
    # A pool scaled to zero needs none. One that gateways reach but Prometheus does not know is not at zero.
    reached = f"{by(POOL, catalog.BACKEND_UP.name, 'max')} == 1"
    none = f"0 * {ROWS}\nor 0 * {WANTED_BY_WAITING} unless ({tritons} or {reached})"
    least = f"{ROWS} / (max_over_time({EFFICIENCY}[1d]) > 0) / {LOAD_TARGET:g}"
    waits = f"histogram_quantile(0.95, {by((*VERSION, 'le'), _stage('bucket', 'queue'))})"
    objective = f"(0 * {CALL} + {on(ENDPOINT, group='')} {PROMISED} or 0 * {CALL} + {OBJECTIVE_S:g})"
    bearable = f"({objective} - {CALL} > {PATIENCE:g} * {CALL} or {PATIENCE:g} * {CALL})"
    over = f"{waits}\n  / ({bearable} > 0)\n  * {on(VERSION, group='pool')} {RUNS_ON} >= 0"
    return [
        Record(WANTED_BY_WAITING, f"clamp_max({by(POOL, f'{catalog.POOL_WAITING.name} >= 0')}, 1)"),
        Record(
            WANTED_BY_QUEUE,
            f"clamp_max({busy} / {LOAD_TARGET:g}\n  * ({needed} > {SERVING} or {SERVING})\n  / {SERVING}, "
            f"{MAX_GROWTH:g}) * {SERVING}\n  unless {BACK}\nor {BACK}\nor {none}",
        ),
        # One step at a time: a p95 does not show how many replicas would bring it down.
        Record(
            WANTED_BY_P95,
            f"clamp_max({by(POOL, over, 'max')}, {1 / LOAD_TARGET:.4g}) * {SERVING}\n  unless {BACK}\nor {none}",
        ),
        # Keeps replicas, never asks for more: before the first peak the gain of full batches is unknown.
        # Targets that cannot be scraped count too: a lost scrape must not remove a replica.
        Record(WANTED_BY_LOAD, f"({least}) < {tritons}\nor {tritons} and {least} > 0\nor {none}"),
    ]


def _stage(part: str, stage: str) -> str:
    return rate(f"{catalog.STAGE_SECONDS.name}_{part}", _WINDOW, f'stage="{stage}"')


def _of_pool(expr: str) -> str:
    """Return ``expr`` with pool ``default`` for Tritons without a pool label."""
    return f'label_replace({expr}, "pool", "default", "pool", "")'


def _promised() -> str:
    """Return ``PROMISED``: the only label that PromQL reads as a number is a bucket's bound."""
    within = by((*ENDPOINT, "within"), f'{catalog.OBJECTIVE.name}{{objective="latency",endpoint!=""}} > 0', "max")
    bound, rest = (f'label_replace(0 * {within} + 1, "le", "{le}", "within", "(.+)")' for le in ("$1", "+Inf"))
    return by(ENDPOINT, f"histogram_quantile(1, {bound} or {rest})", "min")


def _scraped(expr: str, job: str) -> str:
    """Return ``expr`` without targets just lost: their rates last a minute longer, and ``_unseen`` counts them."""
    return f'{expr} and {on(INSTANCE)} up{{job="{job}"}} == 1'


def _unseen(job: str, labels: tuple[str, ...]) -> str:
    """Return targets per scraped target. Targets that were never scraped do not work yet and do not count."""
    up = f'up{{job="{job}"}}'
    lost, seen = by(labels, f"{up} == 0 and max_over_time({up}[1h]) == 1", "count"), by(labels, f"{up} == 1", "count")
    return f"1 + {lost} / {seen}\nor 0 * {seen} + 1"
