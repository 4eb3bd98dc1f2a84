"""The rules: catalogue names only, each alert has its runbook, and Prometheus' own engine evaluates them as meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboards import rules
from dashboards.promql import FAILED_OUTCOMES
from gateway.metrics.catalog import CATALOG, CONTROLLER_LEADS, JUDGED

ROOT = Path(__file__).parents[3]
Evaluate = Callable[..., None]
NAN = " ".join(["NaN"] * 60)


def test_what_counts_as_a_failure_is_what_the_gateway_answers_so() -> None:
    """Every list of outcomes with one of the server's faults names all of them."""
    lists = {one for rule in rules.every() for one in re.findall(r'outcome=~"([^"]+)"', rule["expr"])}
    assert {FAILED_OUTCOMES} == {one for one in lists if "internal" in one}


def test_rules_name_metrics_of_the_catalogue_only() -> None:
    """And each other, and Triton's own."""
    known = {m.name for m in (*CATALOG, *JUDGED, CONTROLLER_LEADS)}
    known |= {
        f"{m.name}_{part}" for m in CATALOG if m.type in ("histogram", "summary") for part in ("bucket", "sum", "count")
    }
    for rule in rules.every():
        named = set(re.findall(r"(?<![:\w])(?:gateway|controller)_[a-z0-9_]+(?![:\w])", rule["expr"]))
        assert set() == named - known, rule


def test_recording_rules_are_named_level_metric_operation() -> None:
    """And every recorded name that is used is recorded."""
    recorded = [rule["record"] for rule in rules.every() if "record" in rule]
    assert len(recorded) == len(set(recorded))
    assert [] == [name for name in recorded if not re.fullmatch(r"[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", name)]
    used = {name for rule in rules.every() for name in re.findall(r"\b[a-z_]+:[a-z0-9_]+:[a-z0-9_]+", rule["expr"])}
    assert set() == used - set(recorded)


def test_every_alert_has_a_heading_in_the_runbook() -> None:
    """Where its links lead: the one that tools read, and the one that people do."""
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "on-call.md").read_text(), re.M)
    assert sorted({alert["alert"] for alert in rules.alerts()}) == sorted(headings)
    for alert in rules.alerts():
        link = f"docs/on-call.md#{alert['alert'].lower()}"
        assert [link] * 2 == [alert["annotations"][name] for name in ("runbook_url", "runbook")]


def equals(expr: str, value: float, tolerance: float = 1e-6) -> dict[str, Any]:
    """A check that an expression of one series is a number."""
    return {
        "expr": f"abs(sum({expr}) - {float(value)!r}) < bool {tolerance}",
        "eval_time": "60m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }


def evidence(state: str = "steady", *, version: str = "1", **days: str) -> dict[str, str]:
    """What a controller says of an endpoint's variables."""
    of = f'endpoint="e",version="{version}",instance="c",state="{state}"'
    return {f'controller_drift_evidence_days{{{of},variable="{name}"}}': values for name, values in days.items()}


def silent(name: str, at: str) -> dict[str, Any]:
    """A check that an alert does not fire."""
    return {"alertname": name, "eval_time": at, "exp_alerts": []}


def count_of(selector: str, at: str, at_least: int = 1) -> dict[str, Any]:
    """A check that this many series exist."""
    return {
        "expr": f"count({selector}) >= bool {at_least}", "eval_time": at,
        "exp_samples": [{"labels": "{}", "value": 1}],
    }  # fmt: skip


def test_an_endpoint_with_a_variable_that_has_drifted_fires_and_no_other_does(evaluate: Evaluate) -> None:
    """What is judged no more (NaN) is left out."""
    fires = count_of('ALERTS{alertname="GatewayDrift",endpoint="e"}', "6m")
    evaluate(evidence("drift", a="100x100") | evidence(b="0x100"), promql_expr_test=[fires])
    evaluate(evidence("drift", a="100x100") | evidence(b=NAN), promql_expr_test=[fires])
    for quiet in (evidence("moved", a="50x100") | evidence(b="0x100"), evidence("drift", a=NAN) | evidence(b="0x100"),
                  evidence(x="2x100") | moved("x", A=0.4)):  # fmt: skip
        evaluate(quiet, alert_rule_test=[silent("GatewayDrift", "6m")])


def moved(variable: str, **bins: float) -> dict[str, str]:
    """What a controller says of bins whose share moved."""
    of = f'endpoint="e",version="1",variable="{variable}",instance="c"'
    return {f'controller_drift_moved_ratio{{{of},bin="{name}"}}': f"{by}x100" for name, by in bins.items()}


def test_one_cause_is_one_alert_that_says_what_moved(evaluate: Evaluate) -> None:
    """One for the endpoint, of the variables that are causes; numbers as people write them."""
    link = "docs/on-call.md#gatewaydrift"
    series = evidence("drift", token_length="9000x100", predicted_label="1000x100") | evidence(language="2x100")
    series |= moved("token_length", **{"above 1.3": 0.657, "up to 1.3": -0.657}) | moved("language", de=0.9)
    series |= moved("predicted_label", NEGATIVE=0.4, POSITIVE=-0.4)
    told = (
        "Chance alone gives this much evidence at most once in 3334 days. Variables, evidence in days: token_length of "
        "version 1: 9000; predicted_label of version 1: 1000. Shares that grew most: token_length above 1.3 of version "
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


def test_failures_beyond_the_budget_page_and_a_callers_mistakes_do_not(evaluate: Evaluate) -> None:
    """5 % failures page within minutes; 422 and 404 are the caller's; one failure alone is no outage."""
    burning = requests(ok="0+95x200", backend_unavailable="0+5x200")
    evaluate(burning, promql_expr_test=[
        count_of('ALERTS{alertname="GatewayErrorBudgetBurn",severity="page"}', "10m"),
        equals('endpoint:gateway_requests_failed:ratio_rate5m{endpoint="e"}', 0.05),
    ])  # fmt: skip
    evaluate(requests(ok="0+95x200", input_refused="0+50x200", endpoint_not_found="0+9x200"),
             alert_rule_test=[silent("GatewayErrorBudgetBurn", "60m")])  # fmt: skip
    evaluate(requests(ok="0+1x200", internal="0 0 1x200"), alert_rule_test=[silent("GatewayErrorBudgetBurn", "30m")])


def test_what_is_left_of_the_error_budget_is_recorded(evaluate: Evaluate) -> None:
    """Half of the 0.1 % that may fail has failed: half of the budget is left; twice as much: it is overdrawn by all."""
    left = f'{rules.FAILED_LEFT}{{endpoint="e"}}'
    evaluate(requests(ok="0+9995x200", internal="0+5x200"), promql_expr_test=[equals(left, 0.5)])
    evaluate(requests(ok="0+998x200", internal="0+2x200"), promql_expr_test=[equals(left, -1.0)])
    evaluate(requests(ok="0+998x200"), promql_expr_test=[equals(left, 1.0)])


def test_an_endpoint_burns_by_the_objective_it_declares(evaluate: Evaluate) -> None:
    """5 % failures are within 90 %; 1 % is a hundred times what 99.99 % allows; of no promise nothing is broken.

    Of 80 % no rate of failures is 14.4 times what it allows: it pages when nothing works. A promise that is taken back
    (NaN) leaves the one of all.
    """
    name = "GatewayErrorBudgetBurn"
    pages = count_of(f'ALERTS{{alertname="{name}",severity="page"}}', "10m")
    evaluate(
        requests(ok="0+95x200", internal="0+5x200") | availability("0.9x200"),
        alert_rule_test=[silent(name, "60m"), silent(name, "180m")],
        promql_expr_test=[equals(f'{rules.FAILED_LEFT}{{endpoint="e"}}', 0.5)],
    )
    evaluate(
        requests(ok="0+9900x200", internal="0+100x200") | availability("0.9999x200"),
        promql_expr_test=[pages],
    )
    evaluate(requests(ok="0+1x200", internal="0+99x200") | availability("0.8x200"), promql_expr_test=[pages])
    evaluate(
        requests(ok="0+10x200", internal="0+90x200") | availability("0x200"), alert_rule_test=[silent(name, "60m")]
    )
    series = requests(ok="0+95x200", internal="0+5x200") | availability(f"0.9x20 {NAN}")
    evaluate(series, promql_expr_test=[equals(rules.AVAILABILITY, 0.999)])


def test_late_answers_beyond_the_budget_page_and_the_alert_says_of_what(evaluate: Evaluate) -> None:
    """A fifth of the answers comes later than 300 ms, where one in a hundred may; nobody else promises a time."""
    evaluate(
        latency("0.99x200", "0+80x200", "0+20x200"),
        alert_rule_test=[{
            "alertname": "GatewayLatencyBudgetBurn", "eval_time": "20m",
            "exp_alerts": [
                {
                    "exp_labels": {"endpoint": "e", "within": "0.3", "severity": severity, "window": window},
                    "exp_annotations": {
                        "summary": "e is slow", "runbook_url": "docs/on-call.md#gatewaylatencybudgetburn",
                        "runbook": "docs/on-call.md#gatewaylatencybudgetburn",
                        "description": f"20% of the answers of e took more than 0.3 s in the last {window}, more than "
                        f"{times} times what its objective allows. Promised: 99% come in time.",
                    },
                }
                for severity, window, times in (
                    ("page", "1h", "14.4"), ("page", "6h", "6"), ("ticket", "1d", "3"), ("ticket", "3d", "1"),
                )
            ],
        }],
        promql_expr_test=[equals(f'{rules.LATE_LEFT}{{within="0.3"}}', -19.0)],
    )  # fmt: skip
    evaluate(
        latency("0.99x200", "0+995x200", "0+5x200"), promql_expr_test=[equals(rules.LATE_LEFT, 0.5)],
        alert_rule_test=[silent("GatewayLatencyBudgetBurn", "60m")],
    )  # fmt: skip


def test_a_new_time_is_not_judged_by_what_was_counted_for_another(evaluate: Evaluate) -> None:
    """All were late for 100 ms; for 300 ms none is."""
    series = latency(f"0.99x10 {NAN}", "0x200", "0+100x10 1000x190", "0.1") | latency(
        "_x10 0.99x190", "_x9 0 0+100x190", "_x9 0x190"
    )
    name = "GatewayLatencyBudgetBurn"
    evaluate(
        series, alert_rule_test=[silent(name, at) for at in ("12m", "30m", "60m")],
        promql_expr_test=[count_of(f'ALERTS{{alertname="{name}",within="0.1"}}', "9m"), equals(rules.LATE_LEFT, 1.0)],
    )  # fmt: skip


def test_canary_that_fails_more_than_stable_pages(evaluate: Evaluate) -> None:
    """Its own failures, or requests that fell back; failures of both are no news about the canary."""

    def sides(canary_failed: str, stable_failed: str) -> dict[str, str]:
        base = 'gateway_requests_total{endpoint="e",instance="i"'
        return {
            f'{base},version="2",route="canary",outcome="ok"}}': "0+50x60",
            f'{base},version="2",route="canary",outcome="deadline_exceeded"}}': canary_failed,
            f'{base},version="1",route="stable",outcome="ok"}}': "0+500x60",
            f'{base},version="1",route="stable",outcome="deadline_exceeded"}}': stable_failed,
        }

    alert = 'ALERTS{alertname="GatewayCanaryRegression",signal="failures"}'
    evaluate(sides("0+5x60", "0+1x60"), promql_expr_test=[count_of(alert, "20m")])
    evaluate(sides("0+5x60", "0+60x60"), alert_rule_test=[silent("GatewayCanaryRegression", "20m")])
    fallbacks = {'gateway_canary_fallbacks_total{endpoint="e",version="2",outcome="model_failed"}': "0+5x60"}
    evaluate(fallbacks, promql_expr_test=[
        count_of('ALERTS{alertname="GatewayCanaryRegression",signal="fallbacks"}', "20m"),
    ])  # fmt: skip


def test_a_canary_that_nobody_guards_fires(evaluate: Evaluate) -> None:
    """Its controller has ended, or knows no gateways (0); with a guard, or after the end, nothing fires."""
    guard = 'gateway_rollout_guarded_until_timestamp_seconds{{endpoint="e",instance="{}"}}'
    fires = count_of('ALERTS{alertname="GatewayCanaryUnguarded",endpoint="e",alertstate="firing"}', "20m")
    evaluate({guard.format("a"): "90+60x10 690x60", guard.format("b"): "90+60x8 570x60"}, promql_expr_test=[fires])
    evaluate({guard.format("a"): "0x60"}, promql_expr_test=[fires])
    guarded = {guard.format("a"): "90+60x60", guard.format("b"): "30+60x60"}
    evaluate(guarded, alert_rule_test=[silent("GatewayCanaryUnguarded", at) for at in ("5m", "20m")])
    ended = {guard.format("a"): f"90+60x5 {NAN}"}
    evaluate(ended, alert_rule_test=[silent("GatewayCanaryUnguarded", at) for at in ("7m", "40m")])


def test_mirrored_answers_that_disagree_fire(evaluate: Evaluate) -> None:
    """68 % of them within six minutes, and failures alike; a fine retrain, few answers and dropped ones do not."""

    def mirrored(**outcomes: str) -> dict[str, str]:
        name = 'gateway_shadow_requests_total{{endpoint="e",version="2",instance="i",outcome="{}"}}'
        return {name.format(outcome): values for outcome, values in outcomes.items()}

    fires = count_of('ALERTS{alertname="GatewayMirrorDisagrees",version="2",alertstate="firing"}', "6m")
    evaluate(mirrored(agreed="0+32x60", differed="0+68x60"), promql_expr_test=[fires])
    evaluate(mirrored(agreed="0+32x60", failed="0+68x60"), promql_expr_test=[fires])
    quiet = [silent("GatewayMirrorDisagrees", at) for at in ("6m", "30m")]
    evaluate(mirrored(agreed="0+93x60", differed="0+7x60", dropped="0+500x60"), alert_rule_test=quiet)
    evaluate(mirrored(agreed="0+1x60", differed="0+1x60"), alert_rule_test=quiet)


def test_states_that_need_someone_fire(evaluate: Evaluate) -> None:
    """Down, stale, stuck, failing builds, refusing, queueing in both tiers; a version that was removed does not."""
    stage = 'gateway_stage_duration_seconds_{part}{{endpoint="e",version="1",stage="{stage}"}}'
    evaluate(
        {
            'up{job="triton-gateway",instance="i"}': "0x60",
            'gateway_registry_last_contact_timestamp_seconds{instance="i"}': "0x60",
            'gateway_registry_poll_seconds{instance="i"}': "5x60",
            'gateway_endpoint_ready{endpoint="e",version="1",instance="i"}': "0x60",
            'gateway_endpoint_ready{endpoint="gone",version="1",instance="i"}': f"0 {NAN}",
            'gateway_endpoint_builds_total{instance="i",outcome="model_not_ready"}': "0+1x60",
            'gateway_configuration_faults{job="g",instance="i"}': "1x60",
            'gateway_callers_source_good{job="g",instance="i",source="keys_file"}': "0x60",
            'gateway_quota_store_up{job="g",instance="i",store="s"}': "0x60",
            'gateway_reconcile_total{instance="i",outcome="registry_unavailable"}': "0+2x60",
            **requests(ok="0+90x60", overloaded="0+10x60"),
            stage.format(part="sum", stage="queue"): "0+30x60", stage.format(part="count", stage="queue"): "0+100x60",
            stage.format(part="sum", stage="infer"): "0+10x60", stage.format(part="count", stage="infer"): "0+100x60",
            'nv_inference_queue_duration_us{instance="t",model="m"}': "0+900x60",
            'nv_inference_compute_infer_duration_us{instance="t",model="m"}': "0+100x60",
        },
        promql_expr_test=[
            count_of(f'ALERTS{{alertname="{name}",alertstate="firing"}}', "30m")
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
            'gateway_backend_up{backend="gone:8001",instance="i"}': f"0 {NAN}",
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
            count_of('ALERTS{alertname="TritonDown",alertstate="firing",instance="t"}', "10m"),
            count_of('ALERTS{alertname="GatewayAbsent",alertstate="firing"}', "20m"),
            {"expr": 'count by (release) (ALERTS{alertname="ControllerDown",alertstate="firing"})', "eval_time": "10m",
             "exp_samples": [{"labels": "{}", "value": 1}]},
            {"expr": 'count by (alertname, instance) (ALERTS{alertname=~"ModelSync.*",alertstate="firing"})',
             "eval_time": "30m", "exp_samples": [
                 {"labels": '{alertname="ModelSyncBehind",instance="behind"}', "value": 1},
                 {"labels": '{alertname="ModelSyncDown",instance="s"}', "value": 1}]},
        ],
    )  # fmt: skip


def test_an_endpoint_that_refuses_every_request_fires(evaluate: Evaluate) -> None:
    """Nobody gets an answer, and no failure is ours: an outage all the same; a tenth of bad requests is none."""
    refusing = requests(ok="0x60", input_refused="0+30x60", malformed_body="0+5x60")
    alert = 'ALERTS{alertname="GatewayRequestsRefused",alertstate="firing",endpoint="e"}'
    evaluate(refusing, promql_expr_test=[count_of(alert, "20m")])
    evaluate(requests(ok="0+90x60", input_refused="0+10x60"), alert_rule_test=[silent("GatewayRequestsRefused", "20m")])
    gone = 'gateway_requests_total{endpoint="",version="",route="",instance="i",outcome="endpoint_not_found"}'
    evaluate(
        {gone: "0+60x60", **requests(ok="0+10x60")},
        promql_expr_test=[count_of('ALERTS{alertname="GatewayUnknownPaths",alertstate="firing"}', "20m")],
    )
    evaluate({gone: "0+5x60", **requests(ok="0+90x60")}, alert_rule_test=[silent("GatewayUnknownPaths", "20m")])


def test_the_first_burst_of_failures_fires(evaluate: Evaluate) -> None:
    """An outcome that never occurred has its series at 0 already: its growth is seen."""
    burst = requests(ok="0+100x60", hook_failed="0x20 150x40")
    evaluate(burst, promql_expr_test=[count_of('ALERTS{alertname="GatewayErrorBudgetBurn"}', "22m")])


def test_a_slow_poll_is_neither_stale_nor_blind(evaluate: Evaluate) -> None:
    """Looks every five minutes: all is well, nothing fires; none succeeds, it fires."""
    poll = {'gateway_registry_poll_seconds{instance="i"}': "300x120", 'up{job="triton-gateway",instance="i"}': "1x120"}
    contact = 'gateway_registry_last_contact_timestamp_seconds{instance="i"}'
    looks = " ".join(str(minute // 5) for minute in range(90))
    times = " ".join(str(300 * (minute // 5)) for minute in range(90))
    evaluate(
        {**poll, contact: times, 'gateway_reconcile_total{instance="i",outcome="unchanged"}': looks},
        promql_expr_test=[
            {"expr": "count(ALERTS)", "eval_time": at, "exp_samples": []} for at in ("34m", "60m", "84m")
        ],
    )
    evaluate(
        {**poll, contact: "0x90", 'gateway_reconcile_total{instance="i",outcome="registry_unavailable"}': looks},
        promql_expr_test=[
            count_of(f'ALERTS{{alertname="{name}",alertstate="firing"}}', "60m")
            for name in ("GatewayReconcileFailing", "GatewayConfigurationStale")
        ],
    )


def test_a_healthy_gateway_fires_nothing(evaluate: Evaluate) -> None:
    """An hour of it."""
    stage = 'gateway_stage_duration_seconds_{part}{{endpoint="e",version="1",stage="{stage}"}}'
    evaluate(
        {
            'up{job="triton-gateway",instance="i"}': "1x60",
            'gateway_registry_last_contact_timestamp_seconds{instance="i"}': "0+60x60",
            'gateway_registry_poll_seconds{instance="i"}': "5x60",
            'up{job="triton",instance="t"}': "1x60",
            'gateway_endpoint_ready{endpoint="e",version="1",instance="i"}': "0 0 1x60",
            'gateway_endpoint_builds_total{instance="i",outcome="ok"}': "0 1x60",
            'gateway_configuration_faults{job="g",instance="i"}': "0 1 1 0x60",
            'gateway_reconcile_total{instance="i",outcome="unchanged"}': "0+12x60",
            'gateway_reconcile_total{instance="i",outcome="registry_unavailable"}': "0 0 3x60",
            **requests(ok="0+100x60", input_refused="0+5x60", client_gone="0+1x60"),
            stage.format(part="sum", stage="queue"): "0+1x60", stage.format(part="count", stage="queue"): "0+100x60",
            stage.format(part="sum", stage="infer"): "0+10x60", stage.format(part="count", stage="infer"): "0+100x60",
        },
        promql_expr_test=[
            {"expr": "count(ALERTS)", "eval_time": at, "exp_samples": []} for at in ("10m", "30m", "60m")
        ],
    )  # fmt: skip
