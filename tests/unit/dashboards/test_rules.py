"""The rules: each alert has its runbook, and Prometheus' own engine evaluates them as meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboards import rules
from dashboards.rules import FAILED_OUTCOMES
from tests.kube_tools import EVERY_RULE

ROOT = Path(__file__).parents[3]
Evaluate = Callable[..., None]
GONE = "stale"
FAILED_LEFT = f'{rules.FAILED_LEFT}{{endpoint="e"}}'


def test_what_counts_as_a_failure_is_what_the_gateway_answers_so() -> None:
    """Every list of outcomes with one of the server's faults names all of them."""
    lists = {one for rule in EVERY_RULE for one in re.findall(r'outcome=~"([^"]+)"', rule["expr"])}
    assert {FAILED_OUTCOMES} == {one for one in lists if "internal" in one}


def test_every_alert_has_a_heading_in_the_runbook() -> None:
    """Where its links lead: the one that tools read, and the one that people do."""
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "on-call.md").read_text(), re.M)
    alerts = [rule for rule in EVERY_RULE if "alert" in rule]
    assert sorted({alert["alert"] for alert in alerts}) == sorted(headings)
    for alert in alerts:
        link = f"docs/on-call.md#{alert['alert'].lower()}"
        assert [link] * 2 == [alert["annotations"][name] for name in ("runbook_url", "runbook")]


def evidence(state: str = "steady", *, version: str = "1", **days: str) -> dict[str, str]:
    """What a controller says of an endpoint's variables."""
    of = f'endpoint="e",version="{version}",instance="c",state="{state}"'
    return {f'controller_drift_evidence_days{{{of},variable="{name}"}}': values for name, values in days.items()}


def is_true(fact: str, at: str) -> dict[str, Any]:
    """A check that a comparison is true."""
    return {"expr": fact, "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]}


def fires(alert: str, at: str) -> dict[str, Any]:
    """A check that an alert fires; its name may be followed by other labels."""
    return is_true(f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) >= bool 1', at)


def moved(variable: str, **bins: float) -> dict[str, str]:
    """What a controller says of the shares of bins, by how much they moved."""
    of = f'controller_drift_share_ratio{{endpoint="e",version="1",variable="{variable}",instance="c",'
    return {f'{of}bin="{name}",of="now"}}': f"{0.2 + by}x100" for name, by in bins.items()} | {
        f'{of}bin="{name}",of="reference"}}': "0.2x100" for name in bins
    }


def test_one_cause_is_one_alert_that_says_what_moved(evaluate: Evaluate) -> None:
    """One for the endpoint, of the variables that are causes; numbers as people write them."""
    link = "docs/on-call.md#gatewaydrift"
    series = evidence("drift", token_length="9000x100", predicted_label="1000x100") | evidence(language="2x100")
    series |= moved("token_length", **{"+Inf": 0.657, "1.3": -0.057}) | moved("language", de=0.9)
    series |= moved("predicted_label", NEGATIVE=0.4, POSITIVE=-0.1)
    told = (
        "Chance alone gives this much evidence at most once in 3334 days. Variables, evidence in days: token_length of "
        "version 1: 9000; predicted_label of version 1: 1000. Shares that grew most: token_length +Inf of version "
        "1: +65.7 points; predicted_label NEGATIVE of version 1: +40.0 points. "
    )
    evaluate(series, alert_rule_test=[{
        "alertname": "GatewayDrift", "eval_time": "10m",
        "exp_alerts": [{
            "exp_labels": {"severity": "ticket", "endpoint": "e"},
            "exp_annotations": {"summary": "The texts or answers of e have drifted", "description": told,
                                "runbook": link, "runbook_url": link},
        }],
    }])  # fmt: skip


def requests(**outcomes: str) -> dict[str, str]:
    """Request counters of one endpoint, and what its gateway promises of those that do not say it: 99.9 %."""
    labels = 'endpoint="e",version="1",route="direct",instance="i"'
    counters = {f'gateway_requests_total{{{labels},outcome="{o}"}}': values for o, values in outcomes.items()}
    return {'gateway_objective_ratio{endpoint="",objective="availability",instance="i"}': "0.999x200", **counters}


def availability(promised: str) -> dict[str, str]:
    """What endpoint `e` promises, as two gateways say it."""
    of = 'endpoint="e",objective="availability"'
    return {f'gateway_objective_ratio{{{of},instance="{instance}"}}': promised for instance in ("i", "j")}


def latency(promised: str, in_time: str, late: str, within: str = "0.3") -> dict[str, str]:
    """Which share of the answers of `e` is promised within 0.3 s, and how many come so."""
    answers = f'gateway_objective_answers_total{{endpoint="e",version="1",within="{within}",instance="i"'
    return {
        f'gateway_objective_ratio{{endpoint="e",objective="latency",within="{within}",instance="i"}}': promised,
        f'{answers},result="in_time"}}': in_time, f'{answers},result="late"}}': late,
    }  # fmt: skip


def sides(canary_failed: str, stable_failed: str) -> dict[str, str]:
    """Requests of a canary and of its stable version."""
    base = 'gateway_requests_total{endpoint="e",instance="i"'
    return {
        f'{base},version="2",route="canary",outcome="ok"}}': "0+50x60",
        f'{base},version="2",route="canary",outcome="deadline_exceeded"}}': canary_failed,
        f'{base},version="1",route="stable",outcome="ok"}}': "0+500x60",
        f'{base},version="1",route="stable",outcome="deadline_exceeded"}}': stable_failed,
    }


def guarded(**gateways: str) -> dict[str, str]:
    """Until when a rollout is guarded, as gateways know it."""
    name = 'gateway_rollout_guarded_until_timestamp_seconds{{endpoint="e",instance="{}"}}'
    return {name.format(gateway): until for gateway, until in gateways.items()}


def mirrored(**outcomes: str) -> dict[str, str]:
    """Mirrored requests by outcome."""
    name = 'gateway_shadow_requests_total{{endpoint="e",version="2",instance="i",outcome="{}"}}'
    return {name.format(outcome): values for outcome, values in outcomes.items()}


def unknown(paths: str) -> dict[str, str]:
    """Requests for paths that there are not."""
    return {'gateway_requests_total{endpoint="",version="",route="",instance="i",outcome="endpoint_not_found"}': paths}


SLOW_POLL = {
    'gateway_registry_poll_seconds{instance="i"}': "300x120", 'up{job="triton-gateway",instance="i"}': "1x120"
}  # fmt: skip
LOOKS = " ".join(str(minute // 5) for minute in range(90))
CONTACT = 'gateway_registry_last_contact_timestamp_seconds{instance="i"}'
STAGE = 'gateway_stage_duration_seconds_{part}{{endpoint="e",version="1",stage="{stage}"}}'
BURN, PAGE = "GatewayErrorBudgetBurn", 'GatewayErrorBudgetBurn",severity="page'
CANARY = 'GatewayCanaryRegression",signal="'
LATE = latency("0.99x200", "0+80x200", "0+20x200")
"""A fifth of the answers comes later than 300 ms, where one in a hundred may."""
LATE_LEFT = f'{rules.LATE_LEFT}{{within="0.3"}}'
FIVE_PERCENT = requests(ok="0+95x200", internal="0+5x200")


@pytest.mark.parametrize(
    ("alert", "at", "series"),
    [
        ("GatewayDrift", "6m", evidence("drift", a="100x100") | evidence(b="0x100")),
        ("GatewayDrift", "6m", evidence("drift", a="100x100") | evidence(b=GONE)),  # judged no more
        (PAGE, "10m", requests(ok="0+95x200", backend_unavailable="0+5x200")),
        (PAGE, "10m", requests(ok="0+9900x200", internal="0+100x200") | availability("0.9999x200")),
        # Of 80 % no rate of failures is 14.4 times what it allows: it pages when nothing works.
        (PAGE, "10m", requests(ok="0+1x200", internal="0+99x200") | availability("0.8x200")),
        *((f'GatewayLatencyBudgetBurn",severity="{severity}",window="{window}', "20m", LATE)
          for severity, window in (("page", "1h"), ("page", "6h"), ("ticket", "1d"), ("ticket", "3d"))),
        # An outcome that never occurred has its series at 0 already: its growth is seen.
        (BURN, "22m", requests(ok="0+100x60", hook_failed="0x20 150x40")),
        (f"{CANARY}failures", "20m", sides("0+5x60", "0+1x60")),
        (f"{CANARY}fallbacks", "20m",
         {'gateway_canary_fallbacks_total{endpoint="e",version="2",outcome="model_failed"}': "0+5x60"}),
        ("GatewayCanaryUnguarded", "20m", guarded(a="90+60x10 690x60", b="90+60x8 570x60")),  # the controller has ended
        ("GatewayCanaryUnguarded", "20m", guarded(a="0x60")),  # it knows no gateways
        ("GatewayMirrorDisagrees", "6m", mirrored(agreed="0+32x60", differed="0+68x60")),
        ("GatewayMirrorDisagrees", "6m", mirrored(agreed="0+32x60", failed="0+68x60")),
        ("GatewayRequestsRefused", "20m", requests(ok="0x60", input_refused="0+30x60", malformed_body="0+5x60")),
        ("GatewayUnknownPaths", "20m", unknown("0+60x60") | requests(ok="0+10x60")),
        *((name, "60m", {**SLOW_POLL, CONTACT: "0x90",
                         'gateway_reconcile_total{instance="i",outcome="registry_unavailable"}': LOOKS})
          for name in ("GatewayReconcileFailing", "GatewayConfigurationStale")),
    ],
)  # fmt: skip
def test_an_alert_fires(evaluate: Evaluate, alert: str, at: str, series: dict[str, str]) -> None:
    """Within minutes of what it is for."""
    evaluate(series, promql_expr_test=[fires(alert, at)])


@pytest.mark.parametrize(
    ("alert", "at", "series"),
    [
        ("GatewayDrift", ["6m"], evidence("moved", a="50x100") | evidence(b="0x100")),
        ("GatewayDrift", ["6m"], evidence("drift", a=GONE) | evidence(b="0x100")),
        ("GatewayDrift", ["6m"], evidence(x="2x100") | moved("x", A=0.4)),
        # A caller's mistakes, and one failure alone.
        (BURN, ["60m"], requests(ok="0+95x200", input_refused="0+50x200", endpoint_not_found="0+9x200")),
        (BURN, ["30m"], requests(ok="0+1x200", internal="0 0 1x200")),
        (BURN, ["60m", "180m"], FIVE_PERCENT | availability("0.9x200")),  # it promises less
        (BURN, ["60m"], requests(ok="0+10x200", internal="0+90x200") | availability("0x200")),  # and this nothing
        ("GatewayLatencyBudgetBurn", ["60m"], latency("0.99x200", "0+995x200", "0+5x200")),
        # All were late for 100 ms; for 300 ms, which counts now, none is.
        ("GatewayLatencyBudgetBurn", ["12m", "30m", "60m"],
         latency(f"0.99x10 {GONE}", "0x200", "0+100x10 1000x190", "0.1")
         | latency("_x10 0.99x190", "_x9 0 0+100x190", "_x9 0x190")),
        ("GatewayCanaryRegression", ["20m"], sides("0+5x60", "0+60x60")),  # both fail
        ("GatewayCanaryUnguarded", ["5m", "20m"], guarded(a="90+60x60", b="30+60x60")),
        ("GatewayCanaryUnguarded", ["7m", "40m"], guarded(a=f"90+60x5 {GONE}")),  # it has ended
        ("GatewayMirrorDisagrees", ["6m", "30m"], mirrored(agreed="0+93x60", differed="0+7x60", dropped="0+500x60")),
        ("GatewayMirrorDisagrees", ["6m", "30m"], mirrored(agreed="0+1x60", differed="0+1x60")),
        ("GatewayRequestsRefused", ["20m"], requests(ok="0+90x60", input_refused="0+10x60")),
        ("GatewayUnknownPaths", ["20m"], unknown("0+5x60") | requests(ok="0+90x60")),
    ],
)  # fmt: skip
def test_an_alert_does_not_fire(evaluate: Evaluate, alert: str, at: list[str], series: dict[str, str]) -> None:
    """For what only looks like it."""
    evaluate(series, alert_rule_test=[{"alertname": alert, "eval_time": time, "exp_alerts": []} for time in at])


@pytest.mark.parametrize(
    ("record", "value", "series"),
    [
        # Half of the 0.1 % that may fail has failed: half of the budget is left; twice as much: it is overdrawn by all.
        (FAILED_LEFT, 0.5, requests(ok="0+9995x200", internal="0+5x200")),
        (FAILED_LEFT, -1.0, requests(ok="0+998x200", internal="0+2x200")),
        (FAILED_LEFT, 0.5, FIVE_PERCENT | availability("0.9x200")),
        ('endpoint:gateway_requests_failed:ratio_rate5m{endpoint="e"}', 0.05, FIVE_PERCENT),
        (LATE_LEFT, -19.0, LATE),
        # A promise that is taken back leaves the one of all.
        (rules.AVAILABILITY, 0.999, FIVE_PERCENT | availability(f"0.9x20 {GONE}")),
    ],
)
def test_what_is_recorded_of_an_error_budget(
    evaluate: Evaluate, record: str, value: float, series: dict[str, str]
) -> None:
    """By the objective that an endpoint declares."""
    evaluate(series, promql_expr_test=[is_true(f"abs(sum({record}) - {value!r}) < bool 1e-6", "60m")])


def test_states_that_need_someone_fire(evaluate: Evaluate) -> None:
    """Down, stale, stuck, failing builds, refusing, queueing in both tiers; a version that was removed does not."""
    evaluate(
        {
            'up{job="triton-gateway",instance="i"}': "0x60",
            'gateway_registry_last_contact_timestamp_seconds{instance="i"}': "0x60",
            'gateway_registry_poll_seconds{instance="i"}': "5x60",
            'gateway_endpoint_ready{endpoint="e",version="1",instance="i"}': "0x60",
            'gateway_endpoint_ready{endpoint="gone",version="1",instance="i"}': f"0 {GONE}",
            'gateway_endpoint_builds_total{instance="i",outcome="model_not_ready"}': "0+1x60",
            'gateway_configuration_faults{job="g",instance="i"}': "1x60",
            'gateway_callers_source_good{job="g",instance="i",source="keys_file"}': "0x60",
            'gateway_quota_store_up{job="g",instance="i",store="s"}': "0x60",
            'gateway_reconcile_total{instance="i",outcome="registry_unavailable"}': "0+2x60",
            **requests(ok="0+90x60", overloaded="0+10x60"),
            STAGE.format(part="sum", stage="queue"): "0+30x60", STAGE.format(part="count", stage="queue"): "0+100x60",
            STAGE.format(part="sum", stage="infer"): "0+10x60", STAGE.format(part="count", stage="infer"): "0+100x60",
            'nv_inference_queue_duration_us{instance="t",model="m"}': "0+900x60",
            'nv_inference_compute_infer_duration_us{instance="t",model="m"}': "0+100x60",
        },
        promql_expr_test=[
            fires(name, "30m")
            for name in ("GatewayDown", "GatewayConfigurationStale", "GatewayModelStuckLoading", "GatewayBuildFailing",
                         "GatewayConfigurationFault", "GatewayKeysUnusable", "GatewayQuotaStoreAway",
                         "GatewayReconcileFailing",
                         "GatewaySaturated", "GatewayQueueing", "TritonSaturated")
        ] + [{"expr": 'count(ALERTS{endpoint="gone"})', "eval_time": "30m", "exp_samples": []}],
    )  # fmt: skip


def test_outages_that_no_request_tells_of_fire(evaluate: Evaluate) -> None:
    """A Triton that is gone while nobody asks; gateways that Prometheus does not even know any more."""
    evaluate(
        {
            'up{job="triton",instance="t"}': "1 0x60", 'up{job="triton-gateway",instance="i"}': "1x5 stale",
            'gateway_backend_up{backend="t:8001",instance="i"}': "1 0x60",
            'gateway_backend_up{backend="t:8001",instance="j"}': "1 0x60",
            'gateway_backend_up{backend="u:8001",instance="i"}': "1 0x60",
            'gateway_backend_up{backend="u:8001",instance="j"}': "1x60",
            'gateway_backend_up{backend="gone:8001",instance="i"}': f"0 {GONE}",
            'up{job="controller",instance="c"}': "1 0x60", 'up{job="controller",release="two",instance="d"}': "1 0x60",
            'up{job="controller",release="two",instance="e"}': "1x60",
            'controller_leads{job="controller",release="two",instance="e"}': "1x60",
            'up{job="model-sync",instance="s"}': "1 0x60", 'up{job="model-sync",instance="well"}': "1x60",
            'model_sync_models{state="failed",instance="behind"}': "1x60",
            'model_sync_models{state="loaded",instance="well"}': "3x60",
            'model_sync_models{state="pending",instance="well"}': "1x5 0x60",
        },
        promql_expr_test=[
            {"expr": 'count by (backend) (ALERTS{alertname="GatewayBackendDown",alertstate="firing"})',
             "eval_time": "10m", "exp_samples": [{"labels": '{backend="t:8001"}', "value": 1}]},
            fires('TritonDown",instance="t', "10m"), fires("GatewayAbsent", "20m"),
            {"expr": 'count by (release) (ALERTS{alertname="ControllerDown",alertstate="firing"})', "eval_time": "10m",
             "exp_samples": [{"labels": "{}", "value": 1}]},
            {"expr": 'count by (alertname, instance) (ALERTS{alertname=~"ModelSync.*",alertstate="firing"})',
             "eval_time": "30m", "exp_samples": [
                 {"labels": '{alertname="ModelSyncBehind",instance="behind"}', "value": 1},
                 {"labels": '{alertname="ModelSyncDown",instance="s"}', "value": 1}]},
        ],
    )  # fmt: skip


HEALTHY = {
    'up{job="triton-gateway",instance="i"}': "1x60", 'up{job="triton",instance="t"}': "1x60",
    CONTACT: "0+60x60", 'gateway_registry_poll_seconds{instance="i"}': "5x60",
    'gateway_endpoint_ready{endpoint="e",version="1",instance="i"}': "0 0 1x60",
    'gateway_endpoint_builds_total{instance="i",outcome="ok"}': "0 1x60",
    'gateway_configuration_faults{job="g",instance="i"}': "0 1 1 0x60",
    'gateway_reconcile_total{instance="i",outcome="unchanged"}': "0+12x60",
    'gateway_reconcile_total{instance="i",outcome="registry_unavailable"}': "0 0 3x60",
    **requests(ok="0+100x60", input_refused="0+5x60", client_gone="0+1x60"),
    STAGE.format(part="sum", stage="queue"): "0+1x60", STAGE.format(part="count", stage="queue"): "0+100x60",
    STAGE.format(part="sum", stage="infer"): "0+10x60", STAGE.format(part="count", stage="infer"): "0+100x60",
}  # fmt: skip


@pytest.mark.parametrize(
    ("series", "times"),
    [
        (HEALTHY, ("10m", "30m", "60m")),
        # A look every five minutes is neither stale nor blind.
        ({**SLOW_POLL, CONTACT: " ".join(str(300 * (minute // 5)) for minute in range(90)),
          'gateway_reconcile_total{instance="i",outcome="unchanged"}': LOOKS}, ("34m", "60m", "84m")),
    ],
    ids=["healthy", "slow poll"],
)  # fmt: skip
def test_a_healthy_gateway_fires_nothing(evaluate: Evaluate, series: dict[str, str], times: tuple[str, ...]) -> None:
    """An hour of it."""
    quiet = [{"expr": "count(ALERTS)", "eval_time": at, "exp_samples": []} for at in times]
    evaluate(series, promql_expr_test=quiet)
