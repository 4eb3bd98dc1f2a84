"""What autoscalers read, by Prometheus' own engine: never NaN, one deployment's, and as many replicas as are needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dashboards import rules
from tests.kube_tools import EVERY_RULE, RECORDS

Evaluate = Callable[..., None]
WORK_MOST = 7.0
"""What the rules say: requests in a gateway's own hands that it counts for at most."""
HOLD = "job:gateway_hold:total"
"""What KEDA asks about gateways that are full; no board shows it."""
STEPS = 80
"""Samples, one every 15 seconds: twenty minutes."""


def grows(per_second: float, *, since: int = 0, until: int = STEPS, then: float = 0.0) -> str:
    """A counter's samples: it is there from the sample ``since``, and grows by ``then`` from ``until`` on."""
    before = f"0+{per_second * 15!r}x{until - since}"
    at = per_second * 15 * (until - since)
    after = f" {at + then * 15!r}+{then * 15!r}x{STEPS - until}" if until < STEPS else ""
    return (f"_x{since} " if since else "") + before + after


def gateway(
    pod: str = "g-0", namespace: str = "a", *, rate: float = 100.0, refused: float = 0.0, work: float = 1.0,
    queue_s: float = 0.0, infer_s: float = 0.01, in_flight: int = 4, more: str = "",
) -> dict[str, str]:  # fmt: skip
    """One gateway of an endpoint on Triton: requests per second, seconds of each, and requests in its own hands."""
    on = f'namespace="{namespace}",release="r",pod="{pod}",instance="{pod}:8080",job="triton-gateway"'
    of = f'{on},endpoint="e",version="1",route="direct"'
    whole = queue_s + infer_s
    found = {
        f"up{{{on}}}": f"1x{STEPS}",
        f"gateway_requests_in_flight{{{on}}}": f"{in_flight}x{STEPS}",
        f"gateway_cpu_wait_seconds_total{{{on}}}": grows(work),
        f'gateway_requests_total{{{of},outcome="ok"}}': grows(rate),
        f'gateway_requests_total{{{of},outcome="overloaded"}}': grows(refused),
        f"gateway_request_duration_seconds_sum{{{of}}}": grows(rate * whole),
        f"gateway_request_duration_seconds_count{{{of}}}": grows(rate),
        f'gateway_batch_rows_count{{{on},endpoint="e",version="1"}}': grows(rate / 8),
        f'gateway_batch_rows_sum{{{on},endpoint="e",version="1"}}': grows(rate),
        f'gateway_model_info{{{on},endpoint="e",version="1",model_id="m",model="m",link=""{more}}}': f"1x{STEPS}",
    }
    for stage, seconds in (("queue", queue_s), ("infer", infer_s)):
        found[f'gateway_stage_duration_seconds_sum{{{of},stage="{stage}"}}'] = grows(rate * seconds)
        found[f'gateway_stage_duration_seconds_count{{{of},stage="{stage}"}}'] = grows(rate)
        for bound in (0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0):
            seen = rate if seconds <= bound else 0.0
            found[f'gateway_stage_duration_seconds_bucket{{{of},stage="{stage}",le="{bound}"}}'] = grows(seen)
        found[f'gateway_stage_duration_seconds_bucket{{{of},stage="{stage}",le="+Inf"}}'] = grows(rate)
    return found


def triton(
    pod: str = "t-0", namespace: str = "a", *, rows: float = 100.0, busy: float = 0.5, waits: float = 0.0,
    since: int = 0, until: int = STEPS, then: float = 0.0, up: str = "", more: str = "",
) -> dict[str, str]:  # fmt: skip
    """One Triton: rows per second in calls of eight, how busy it is, and how many calls wait inside it."""
    on = f'namespace="{namespace}",release="r",pod="{pod}",instance="{pod}:8002",job="triton"{more}'
    of = f'{on},model="m",version="1"'
    share = then / rows if rows else 0.0

    def counter(value: float) -> str:
        return grows(value, since=since, until=until, then=value * share)

    return {
        f"up{{{on}}}": up or f"1x{STEPS}",
        f"nv_inference_count{{{of}}}": counter(rows),
        f"nv_inference_exec_count{{{of}}}": counter(rows / 8),
        f"nv_inference_request_success{{{of}}}": counter(rows / 8),
        f"nv_inference_compute_infer_duration_us{{{of}}}": counter(busy * 1e6),
        f"nv_inference_queue_duration_us{{{of}}}": counter(waits * 1e6),
    }


POOL = '{{namespace="a",release="r",pool="{}"}}'


def is_so(fact: str, at: str = "10m", of: str = POOL.format("default")) -> dict[str, Any]:
    """A check that a comparison is true of one series."""
    return {"expr": fact, "eval_time": at, "exp_samples": [{"labels": of, "value": 1}]}


def says(expr: str, at: str = "10m", **wanted: float | None) -> list[dict[str, Any]]:
    """Checks that an expression is a number by namespace, to a twentieth; None: that it is nothing."""
    found = []
    for namespace, value in wanted.items():
        one = f'sum({expr}{{namespace="{namespace}"}})'
        if value is None:
            found.append({"expr": one, "eval_time": at, "exp_samples": []})
        else:
            found.append(is_so(f"abs({one} - {value!r}) <= bool {max(0.05 * value, 0.02)!r}", at, "{}"))
    return found


def lost(series: dict[str, str], since: int) -> dict[str, str]:
    """The same, but nothing can be scraped from a sample on."""
    return {
        name: f"1x{since} 0x{STEPS - since}" if name.startswith("up{") else f"{values.partition('x')[0]}x{since} stale"
        for name, values in series.items()
    }


IDLE = gateway(rate=0.0, work=0.0, in_flight=0) | triton(rows=0.0, busy=0.0)
RESET = {name: f"{(step := values.partition('x')[0])}x20 {step}x50" for name, values in (gateway() | triton()).items()}
JUST_STARTED = {name: f"_x40 {values}" for name, values in (gateway() | triton()).items()}
BORN = {name: f"_x40 {values.split('+')[0].split('x')[0]}" for name, values in (gateway() | triton()).items()}
ONE_LOST = gateway() | triton() | triton("t-1", up="1x40 0x40", until=40, then=0.0)
ODD = gateway(rate=1.0, queue_s=0.0, infer_s=0.0) | triton(rows=0.0, busy=0.5, waits=1.0)
CASES = {
    "no-traffic": IDLE, "counters-reset": RESET, "just-started": JUST_STARTED, "one-sample": BORN,
    "lost-target": ONE_LOST, "calls-without-rows": ODD,
}  # fmt: skip


def test_no_record_is_ever_nan_or_infinite(evaluate: Evaluate) -> None:
    """prometheus-adapter hands NaN on as 0, or as the smallest number there is: at full load a tier would shrink."""
    series = {
        name.replace('namespace="a"', f'namespace="{case}"'): values
        for case, found in CASES.items() for name, values in found.items()
    }  # fmt: skip
    evaluate(
        series, interval="15s",
        promql_expr_test=[
            {"expr": f"{name} != {name} or abs({name}) == Inf", "eval_time": at, "exp_samples": []}
            for name in RECORDS for at in ("5m15s", "10m15s", "11m", "19m")
        ],
    )  # fmt: skip


def test_every_record_and_alert_keeps_deployments_apart() -> None:
    """Nothing is summed over namespaces; what names no labels is `absent`, and what keeps all of them."""
    for expr in (rule["expr"] for rule in EVERY_RULE):
        assert not re.search(r"\b(sum|max|min|avg|count|topk) ?\(", expr), expr
        for part in expr.split(" by (")[1:]:
            assert "namespace, release" in part.partition(")")[0], expr
        for part in expr.split(" on (")[1:]:
            assert part.startswith("namespace, release"), expr


SLOW = gateway(rate=2.0, infer_s=1.0, queue_s=0.005) | triton(rows=2.0, busy=0.6, waits=0.01)
OWN = {k: v for k, v in gateway(rate=5.0, infer_s=2.0, queue_s=3.0).items() if "gateway_batch_rows" not in k}


@pytest.mark.parametrize("series", [SLOW, OWN | triton(rows=1.0, busy=0.01)], ids=["slow", "in the gateway"])
def test_what_another_triton_makes_no_faster_asks_for_none(evaluate: Evaluate, series: dict[str, str]) -> None:
    """A second of computing, hardly any waiting; and an engine of the gateway's own processes, which counts what it
    computes as `infer` and makes no call to Triton.
    """
    wanted = (rules.WANTED_BY_QUEUE, rules.WANTED_BY_LOAD)
    evaluate(series, interval="15s", promql_expr_test=[is_so(f"{name} <= bool 1") for name in wanted])


REFUSED = gateway(rate=1430.0, refused=3570.0, queue_s=0.3)
BUSY = {k: v for pod in ("g-0", "g-1") for k, v in gateway(pod, rate=960.0, work=60.0).items()}
TURNED_AWAY = {
    k: v for pod in ("g-0", "g-1")
    for k, v in gateway(pod, rate=300.0, refused=900.0, work=0.5, queue_s=0.5, in_flight=900).items()
}  # fmt: skip


@pytest.mark.parametrize(
    ("record", "value", "series"),
    [
        # 5,000 rows a second come to a Triton that does 1,430: five at 70 %, and not three times what there is.
        (rules.WANTED_BY_QUEUE, 5.0, REFUSED | triton(rows=1430.0, busy=1.0, waits=2.0)),
        # What is refused is load; where no request waits for Triton it is not Triton's.
        (rules.WANTED_BY_QUEUE, 0.25 / 0.7,
         gateway(rate=1430.0, refused=3570.0) | triton(rows=1430.0, busy=0.6, waits=0.1)),
        # A gateway that keeps Triton's queue short hides no load: the same ratio, wherever requests wait.
        (rules.QUEUE_RATIO, 2.0, gateway(infer_s=0.03, queue_s=0.0) | triton(busy=0.5, waits=1.0)),
        (rules.QUEUE_RATIO, 2.0, gateway(infer_s=0.01, queue_s=0.02) | triton(busy=0.5, waits=0.0)),
        # Full gateways ask for less than twice as many, however much waits: a backlog is soon over, a load is not.
        (rules.WORK, 2 * WORK_MOST, BUSY),
        # What Triton refuses is no work of the gateways: their CPU has little in hand. Full ones stay.
        (rules.WORK, 1.0, TURNED_AWAY), (HOLD, 2.0, TURNED_AWAY),
    ],
)  # fmt: skip
def test_what_a_signal_says(evaluate: Evaluate, record: str, value: float, series: dict[str, str]) -> None:
    """Of a tier that is full, or whose work waits."""
    evaluate(series, interval="15s", promql_expr_test=says(record, a=value))


def test_what_is_asked_for_does_not_grow_while_new_replicas_start(evaluate: Evaluate) -> None:
    """Those that do not work yet are no reason for more; half a minute after they do, neither."""
    old = triton(rows=1430.0, busy=1.0, waits=2.0, until=40, then=1000.0)
    starting = {k: v for pod in range(1, 5) for k, v in triton(f"t-{pod}", rows=1000.0, busy=0.7, since=41).items()}
    starting = {k: f"0x40 {'1x40'}" if k.startswith("up") else v for k, v in starting.items()}
    evaluate(
        REFUSED | old | starting, interval="15s",
        promql_expr_test=[
            is_so(f"{rules.WANTED_BY_QUEUE} <= bool 5.1", at) for at in ("9m", "10m30s", "10m45s")
        ] + says(rules.WANTED_BY_QUEUE, at="10m", a=5.0),
    )  # fmt: skip


def test_a_pool_at_zero_asks_for_nothing(evaluate: Evaluate) -> None:
    """KEDA wakes it by what waits, which its trigger counts. A pool that gateways reach is not at zero."""
    on = 'namespace="a",release="r",instance="g:8080"'
    waiting = {f'gateway_pool_waiting_requests{{{on},pool="{pool}"}}': f"{count}x{STEPS}"
               for pool, count in (("woken", 7), ("asleep", 0), ("hidden", 0))}  # fmt: skip
    waiting |= {f'gateway_backend_up{{{on},pool="{pool}",backend="b-{pool}"}}': f"{value}x{STEPS}"
                for pool, value in (("woken", 0), ("hidden", 1))}  # fmt: skip

    def is_(name: str, pool: str, *value: int) -> dict[str, Any]:
        samples = [{"labels": "{}", "value": each} for each in value]
        return {"expr": f'sum({name}{{pool="{pool}"}})', "eval_time": "10m", "exp_samples": samples}

    evaluate(waiting, interval="15s", promql_expr_test=[
        is_(rules.WANTED_BY_QUEUE, "woken", 0), is_(rules.WANTED_BY_LOAD, "asleep", 0),
        is_(rules.WANTED_BY_QUEUE, "hidden"), is_(rules.WANTED_BY_LOAD, "hidden"),
    ])  # fmt: skip


def test_pools_scale_apart(evaluate: Evaluate) -> None:
    """The waits of an endpoint count for the pool that it runs on."""
    tritons = triton("l", more=',pool="large"', busy=0.5) | triton("s", more=',pool="small"', busy=0.5)
    series = gateway(infer_s=0.01, queue_s=0.02, more=',pool="large"') | tritons
    ratio = f'{rules.QUEUE_RATIO}{{pool="%s",namespace="a"}}'
    evaluate(series, interval="15s", promql_expr_test=[
        is_so(f"abs({ratio % pool} - {wanted}) < bool 0.05", of=POOL.format(pool))
        for pool, wanted in (("large", 2), ("small", 0))
    ])  # fmt: skip


def test_a_target_that_is_lost_takes_nothing_away(evaluate: Evaluate) -> None:
    """Some or all of both tiers are not scraped any more: as many are asked for as there are, for an hour."""
    seen = triton("t-0", rows=7.0, busy=0.07) | gateway("g-0", work=0.1, in_flight=1)
    gone = triton("t-1", rows=7.0, busy=0.07) | gateway("g-1", work=0.1, in_flight=1)
    before = [*says(HOLD, at="7m", a=2 / 256), *says(rules.WANTED_BY_LOAD, at="7m", a=0.2)]
    after = [c for at in ("8m", "15m") for name in (HOLD, rules.WANTED_BY_LOAD) for c in says(name, at=at, a=2.0)]
    evaluate(seen | lost(gone, 30), interval="15s", promql_expr_test=before + after)
    evaluate(lost(seen | gone, 30), interval="15s", promql_expr_test=after)
    nothing = says(rules.WANTED_BY_QUEUE, at="15m", a=None) + says(rules.WORK, at="15m", a=None)
    evaluate(lost(seen | gone, 30), interval="15s", promql_expr_test=nothing)


def test_targets_that_are_lost_one_after_the_other_ask_for_no_more(evaluate: Evaluate) -> None:
    """For a minute the rates of what was just lost are still there."""
    seen: dict[str, str] = {}
    for number in range(10):
        one = triton(f"t-{number}", rows=70.0, busy=0.7, waits=0.5) | gateway(f"g-{number}", work=3.0, in_flight=128)
        seen |= lost(one, 30) if number < 6 else one
    most = {rules.WORK: 30.0, HOLD: 10.0, rules.WANTED_BY_LOAD: 10.0, rules.WANTED_BY_QUEUE: 10.0}
    evaluate(seen, interval="15s", promql_expr_test=[
        is_so(f'sum({name}{{namespace="a"}}) <= bool {1.01 * value}', f"{sample * 15}s", "{}")
        for name, value in most.items() for sample in range(28, 60)
    ])  # fmt: skip
