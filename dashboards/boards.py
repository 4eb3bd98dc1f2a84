"""The boards: which question each panel answers, in which unit, from which expression. Data.

Metric names come from the catalogue and from ``rules``, or are Triton's own (``nv_*``).
Expressions use ``$__rate_interval``, so that they hold at any zoom.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dashboards import rules
from dashboards.panels import Board, Panel, Query, Section, Variable, render
from dashboards.rules import FAILED_OUTCOMES, POOL, SCOPE, VERSION, by, on
from gateway.metrics import catalog
from gateway.metrics.catalog import Metric
from gateway.metrics.drift import ALARM_DAYS, MISSING, OTHER
from gateway.trace import CANARY as CANARY_ROUTE
from gateway.trace import FALLBACK as FALLBACK_ROUTE

_PICK: Final = 'endpoint=~"$endpoint",version=~"$version"'
_BY_ENDPOINT: Final = 'endpoint=~"$endpoint"'
_W: Final = "$__rate_interval"
_EV: Final = "{{endpoint}} {{version}}"
_OURS: Final = 'job="triton-gateway"'
_FAILED: Final = f'outcome=~"{FAILED_OUTCOMES}"'
_HITS: Final = f'{_PICK},result="hit"'
_RED: Final = "red"
_ORANGE: Final = "orange"

ENDPOINT: Final = Variable("endpoint", "Endpoint", f"label_values({catalog.REQUESTS.name}, endpoint)")
VERSION_PICK: Final = Variable(
    "version", "Version", f'label_values({catalog.REQUESTS.name}{{endpoint=~"$endpoint"}}, version)'
)
_WITH_VARIABLES: Final = "|".join(
    (f"{catalog.VARIABLE_SCALAR.name}_count", catalog.VARIABLE_ENUM.name, catalog.DRIFT_REFERENCE.name)
)
VARIABLE_PICK: Final = Variable(
    "variable", "Variable", f'label_values({{__name__=~"{_WITH_VARIABLES}",endpoint=~"$endpoint"}}, variable)', one=True
)
_OF_POOL: Final = 'pool=~"$pool"'
POOL_PICK: Final = Variable("pool", "Pool of Tritons", 'label_values(up{job="triton"}, pool)')
"""Outside Kubernetes Tritons may have no label of a pool: then only All can be chosen, and it shows them."""
TRITON_MODEL: Final = Variable(
    "model", "Triton model", f"label_values(nv_inference_request_success{{{_OF_POOL}}}, model)"
)

ANNOTATIONS: Final = (
    (
        "version served",
        f'sum by (outcome) (increase({catalog.BUILDS.name}{{outcome="ok"}}[1m])) > 0',
        "green",
    ),
    (
        "configuration changed",
        f'sum by (outcome) (increase({catalog.RECONCILES.name}{{outcome="changed"}}[1m])) > 0',
        "blue",
    ),
)  # fmt: skip
"""Changes of what is served, drawn on every time series."""


def _rate(metric: Metric | str, matchers: str = _PICK) -> str:
    return f"rate({metric if isinstance(metric, str) else metric.name}{{{matchers}}}[{_W}])"


def _mean(metric: Metric, labels: tuple[str, ...] = VERSION) -> str:
    return f"{by(labels, _rate(f'{metric.name}_sum'))} / {by(labels, _rate(f'{metric.name}_count'))}"


def _quantile(share: float, metric: Metric, labels: tuple[str, ...] = VERSION, matchers: str = _PICK) -> str:
    return f"histogram_quantile({share}, {by((*labels, 'le'), _rate(f'{metric.name}_bucket', matchers))})"


def _heat(metric: Metric, matchers: str = _PICK) -> tuple[Query, ...]:
    return (Query(by(("le",), f"increase({metric.name}_bucket{{{matchers}}}[{_W}])"), "{{le}}"),)


_NO_LABELS: Final = "Shown once true labels are sent (POST /v1/feedback)"
_NO_CALLERS: Final = "Shown when callers have keys"


def _lines(title: str, description: str, expr: str, legend: str = _EV, unit: str = "short", **more: object) -> Panel:
    return Panel(title, description, (Query(expr, legend),), unit=unit, **more)  # type: ignore[arg-type]  # passed on


OVERVIEW: Final = Board(
    "triton-gateway-overview", "Gateway · overview", "Rate, errors and duration of every endpoint version.",
    (ENDPOINT, VERSION_PICK),
    (
        Section("Now", (
            Panel("Requests", "Requests per second, including refusals.",
                  (Query(f"sum({_rate(catalog.REQUESTS)})"),), "stat", "reqps", 4, 5),
            Panel("Failures", "Share of requests that failed on the server side.",
                  (Query(f"(sum({_rate(catalog.REQUESTS, f'{_PICK},{_FAILED}')}) or vector(0)) "
                         f"/ sum({_rate(catalog.REQUESTS)})"),),
                  "stat", "percentunit", 4, 5, ((0.001, _ORANGE), (0.01, _RED))),
            Panel("p99", "99 of 100 answers are faster than this.",
                  (Query(_quantile(0.99, catalog.REQUEST_SECONDS, ())),), "stat", "s", 4, 5,
                  ((0.25, _ORANGE), (1.0, _RED))),
            Panel("In flight", "Requests in progress now.", (Query(f"sum({catalog.IN_FLIGHT.name})"),),
                  "stat", "short", 4, 5),
            Panel("Versions served", "Endpoint versions that answer.",
                  (Query(f"count(max by (endpoint, version) ({catalog.ENDPOINT_READY.name}) == 1) or vector(0)"),),
                  "stat", "short", 4, 5),
            Panel("Gateways", "Gateways that Prometheus scrapes, by software version.",
                  (Query(by(("version",), catalog.BUILD_INFO.name), "{{version}}"),), "stat", "short", 4, 5),
        )),
        Section("Traffic", (
            _lines("Requests by version", "Requests per second of each version.",
                   by(VERSION, _rate(catalog.REQUESTS)), unit="reqps"),
            _lines("Failures by reason", "Failed requests per second by outcome, including callers' mistakes.",
                   by(("outcome",), _rate(catalog.REQUESTS, f'{_PICK},outcome!="ok"')), "{{outcome}}", "reqps"),
            Panel("Latency", "Successful requests: median, p95, p99. Points are single requests that have a trace.",
                  tuple(Query(_quantile(q, catalog.REQUEST_SECONDS, ()), f"p{q * 100:.0f}", has_exemplars=q == 0.99)
                        for q in (0.5, 0.95, 0.99)),
                  unit="s"),
            _lines("p99 by version", "99 of 100 answers are faster than this; versions side by side.",
                   _quantile(0.99, catalog.REQUEST_SECONDS), unit="s"),
            Panel("Error budget burn", "How fast the error budget was used in the last hour. At 1 it lasts exactly 30 "
                  "days; at 14.4 a fiftieth of it is gone in an hour.",
                  (Query(f"{rules.error_ratio('1h')}{{{_BY_ENDPOINT}}} / (1 - {rules.AVAILABILITY})", "{{endpoint}}"),
                   Query(f"{rules.late_ratio('1h')}{{{_BY_ENDPOINT}}} / (1 - {rules.LATENCY})",
                         "{{endpoint}} within {{within}} s")),
                  thresholds=((1.0, _ORANGE), (14.4, _RED))),
            Panel("Error budget left", "What is left of the failures or late answers that the objective allows in 30 "
                  "days. Below 0 it is overdrawn; -100 % means twice the budget or more.",
                  (Query(f"clamp_min({rules.FAILED_LEFT}{{{_BY_ENDPOINT}}}, -1)", "{{endpoint}}"),
                   Query(f"clamp_min({rules.LATE_LEFT}{{{_BY_ENDPOINT}}}, -1)", "{{endpoint}} within {{within}} s")),
                  unit="percentunit", least=None, most=1.0),
            _lines("Texts per request", "Mean number of texts in one request.", _mean(catalog.ROWS)),
        )),
        Section("Alerts and served models", (
            Panel("Alerts", "Alerts that fire now; each has a section in the runbook.",
                  (Query('ALERTS{alertstate="firing"}'),), "table", width=24, height=6),
            Panel("Models", "The model of each version. Click for the model in ClearML or for its lineage (read from "
                  "the scraped gateway).",
                  (Query(f"max by (endpoint, version, model, model_id, link, instance) "
                         f"({catalog.MODEL_INFO.name}{{{_PICK}}}) == 1"),), "table", width=24, height=6,
                  links=(("Model in ClearML", "${__data.fields.link}"),
                         ("Lineage: Task, data, code",
                          "http://${__data.fields.instance}/v1/endpoints/${__data.fields.endpoint}/"
                          "${__data.fields.version}/lineage"))),
        )),
        Section("Configuration", (
            Panel("Age of the last contact with ClearML", "Above the limit (three polls, at least two minutes) the "
                  "gateway does not see changes.",
                  (Query(f"time() - {catalog.LAST_CONTACT.name}", "{{instance}}"),
                   Query(f"max(clamp_min(3 * {catalog.POLL.name}, 120))", "limit")), unit="s",
                  thresholds=((120.0, _RED),)),
            _lines("Reads of the serving Task", "Every poll counts once, by outcome.",
                   by(("outcome",), _rate(catalog.RECONCILES, "")), "{{outcome}}", "suffix:reads/s"),
            _lines("Tritons", "1 if the Triton answers the gateways that need it, else 0.",
                   by(("backend",), catalog.BACKEND_UP.name, "min"), "{{backend}}", most=1.0),
            _lines("Waiting for a pool", "Calls that wait because no Triton of the pool answers; 1 for a minute after "
                   "the last one.",
                   by(("pool",), catalog.POOL_WAITING.name), "{{pool}}"),
            _lines("Builds of versions", "By outcome; builds that failed are tried again.",
                   by(("outcome",), f"increase({catalog.BUILDS.name}[{_W}])"), "{{outcome}}"),
            _lines("Faults of the configuration", "Parts of the serving Task that cannot be used; `triton-gateway "
                   "status` says why.",
                   f"max({catalog.CONFIGURATION_FAULTS.name})", "faults", thresholds=((1.0, _RED),)),
        )),
        Section("Feedback: true labels", (
            _lines("Accuracy", "How often a version is right by all its true labels, with a 95 % interval.",
                   by(("endpoint", "version", "of"), catalog.ACCURACY.name, "max"),
                   "{{endpoint}} {{version}} {{of}}", "percentunit", most=1.0, if_empty=_NO_LABELS),
            _lines("True labels", "True labels received, by version.",
                   by(("endpoint", "version"), _rate(catalog.FEEDBACK, "")),
                   "{{endpoint}} {{version}}", "suffix:labels/s", if_empty=_NO_LABELS),
            _lines("Confusions", "True labels received, by predicted and true label.",
                   by(("predicted", "label"), f"increase({catalog.FEEDBACK.name}[{_W}])"),
                   "{{predicted}} was {{label}}", if_empty=_NO_LABELS),
        ), is_folded=True),
        Section("Callers and tenants", (
            _lines("Refused callers", "Requests refused by authentication or authorization, by reason.",
                   by(("reason",), _rate(catalog.REFUSED_CALLERS, "")), "{{reason}}", "reqps", if_empty="None so far"),
            _lines("Tenants", "Requests answered, by tenant.",
                   by(("tenant",), _rate(catalog.TENANT_REQUESTS, "")), "{{tenant}}", "reqps", if_empty=_NO_CALLERS),
            _lines("Tokens in by tenant", "Tokens sent to models, by tenant.",
                   by(("tenant",), _rate(catalog.TENANT_TOKENS_IN, "")), "{{tenant}}", "suffix:tokens/s",
                   if_empty=_NO_CALLERS),
            _lines("Tokens out by tenant", "Tokens generated, by tenant.",
                   by(("tenant",), _rate(catalog.TENANT_TOKENS_OUT, "")), "{{tenant}}", "suffix:tokens/s",
                   if_empty=_NO_CALLERS),
            _lines("Over quota", "Requests of a tenant that were refused over a limit.",
                   by(("tenant", "reason"), _rate(catalog.OVER_QUOTA, "")), "{{tenant}} {{reason}}", "suffix:times/s",
                   if_empty=_NO_CALLERS),
            _lines("Sources of callers", "1 if the newest keys are in use, 0 if they are unusable and older ones are "
                   "in use.", by(("source",), catalog.CALLERS_SOURCE.name, "min"), "{{source}}", most=1.0,
                   if_empty=_NO_CALLERS),
            _lines("Store of quotas", "1 if the shared store answers, 0 while each gateway admits its share.",
                   by(("instance",), catalog.QUOTA_STORE.name, "min"), "{{instance}}", most=1.0,
                   if_empty="Shown when quotas are shared through a store"),
        ), is_folded=True),
        Section("Payload log and connections", (
            _lines("Payload log", "Requests drawn for the payload log: written, or the reason they were lost.",
                   by(("outcome",), _rate(catalog.PAYLOADS, "")), "{{outcome}}", "reqps",
                   if_empty="Shown when a payload log is kept"),
            _lines("Closed connections", "HTTP connections that the gateway closed although the client wanted to keep "
                   "them, by reason.",
                   by(("reason",), _rate(catalog.ENDED_CONNECTIONS, "")), "{{reason}}", "suffix:connections/s",
                   if_empty="None so far"),
        ), is_folded=True),
    ),
)  # fmt: skip

_STAGE: Final = catalog.STAGE_SECONDS

LATENCY: Final = Board(
    "triton-gateway-latency", "Gateway · latency", "Where the time of a request goes.", (ENDPOINT, VERSION_PICK),
    (
        Section("Stages", (
            Panel("Mean time by stage", "prepare (parse, tokenize, hook), queue, infer (Triton), finish.",
                  (Query(f"{by(('stage',), _rate(f'{_STAGE.name}_sum'))} / "
                         f"{by(('stage',), _rate(f'{_STAGE.name}_count'))}", "{{stage}}"),), "stacked", "s", 12),
            _lines("p99 by stage", "99 of 100 requests spend less time than this in the stage.",
                   _quantile(0.99, _STAGE, ("stage",)), "{{stage}}",
                   "s", width=12),
        )),
        Section("Distributions over time", (
            Panel("Whole request",
                  "Successful requests per bucket.", _heat(catalog.REQUEST_SECONDS), "heatmap", "s", 12),
            *(Panel(stage, f"Stage {stage}.", _heat(_STAGE, f'{_PICK},stage="{stage}"'), "heatmap", "s", 12)
              for stage in ("prepare", "queue", "infer", "finish")),
            Panel("Within the objective", "Share of answers within the time that the endpoint promises, and the "
                  "promised share.",
                  (Query(f"1 - {rules.late_ratio('5m')}{{{_BY_ENDPOINT}}}", "{{endpoint}} within {{within}} s"),
                   Query(f"{rules.LATENCY}{{{_BY_ENDPOINT}}}", "{{endpoint}} promised")),
                  unit="percentunit", width=12, most=1.0),
        )),
    ),
)  # fmt: skip


def _route(route: str) -> str:
    return f'{_BY_ENDPOINT},route=~"{route}"'


def _compared(title: str, description: str, stable: str, canary: str, unit: str) -> Panel:
    return Panel(
        title, description, (Query(stable, "stable {{endpoint}}"), Query(canary, "canary {{endpoint}}")),
        unit=unit, width=12,
    )  # fmt: skip


_BEHIND_CANARY: Final = f"{CANARY_ROUTE}|stable|{FALLBACK_ROUTE}"
_ALL_SIDES: Final = by(("endpoint",), _rate(catalog.REQUESTS, _route(_BEHIND_CANARY)))
_CANARY_CHOSEN: Final = by(("endpoint",), _rate(catalog.REQUESTS, _route(f"{CANARY_ROUTE}|{FALLBACK_ROUTE}")))
"""Requests that the canary was to answer, including those that fell back, which count under the stable version."""


def _failures(route: str) -> str:
    whole = by(("endpoint",), _rate(catalog.REQUESTS, _route(route)))
    return (
        f"({by(('endpoint',), _rate(catalog.REQUESTS, f'{_route(route)},{_FAILED}'))} or 0 * {whole}) / ({whole} > 0)"
    )


def _canary_failures() -> str:
    fell_back = by(("endpoint",), _rate(catalog.REQUESTS, _route(FALLBACK_ROUTE)))
    failed = by(("endpoint",), _rate(catalog.REQUESTS, f"{_route(CANARY_ROUTE)},{_FAILED}"))
    none = f"0 * {_CANARY_CHOSEN}"
    return f"(({failed} or {none}) + ({fell_back} or {none})) / ({_CANARY_CHOSEN} > 0)"


_AGREED: Final = f'{_PICK},outcome="agreed"'
_COMPARED: Final = f'{_PICK},outcome=~"agreed|differed"'
_ALL_COMPARED: Final = by(VERSION, _rate(catalog.SHADOWS, _COMPARED))
_GUARDED: Final = f"{catalog.ROLLOUT_GUARDED.name}{{{_BY_ENDPOINT}}}"
_GROUP: Final = (*VERSION, "group")
_ALL_IN_GROUP: Final = by(_GROUP, _rate(catalog.SHADOW_GROUPS, _PICK))
_DIFFERED: Final = by(_GROUP, _rate(catalog.SHADOW_GROUPS, f'{_PICK},outcome="differed"'))
_LABELS: Final = f'{_PICK},variable="predicted_label"'

CANARY: Final = Board(
    "triton-gateway-canary", "Gateway · canary", "The canary and the stable version over the same time.",
    (ENDPOINT, VERSION_PICK),
    (
        Section("Split", (
            _lines("Requests by route", "stable, canary, and fallback (the canary failed and the stable version "
                   "answered).",
                   by((*VERSION, "route"), _rate(catalog.REQUESTS, _route(_BEHIND_CANARY))),
                   "{{endpoint}} {{version}} {{route}}", "reqps"),
            _lines("Share of the canary", "Share of the canary in the requests of its path, including those that fell "
                   "back.",
                   f"({_CANARY_CHOSEN} or 0 * {_ALL_SIDES}) / ({_ALL_SIDES} > 0)", "{{endpoint}}", "percentunit",
                   most=1.0),
            _lines("Fallbacks", "Requests that the canary failed and the stable version answered, by error.",
                   by(("version", "outcome"), f"increase({catalog.FALLBACKS.name}{{{_BY_ENDPOINT}}}[{_W}])"),
                   "{{version}} {{outcome}}"),
        )),
        Section("Stable and canary", (
            _compared("Failures", "Share of requests that failed on the server side. The canary's include those that "
                      "fell back to the stable version.", _failures("stable"), _canary_failures(), "percentunit"),
            _compared("p95", "95 of 100 answers are faster than this.",
                      _quantile(0.95, catalog.REQUEST_SECONDS, ("endpoint",), _route("stable")),
                      _quantile(0.95, catalog.REQUEST_SECONDS, ("endpoint",), _route("canary")), "s"),
            _compared("Median", "Half of the answers are faster than this.",
                      _quantile(0.5, catalog.REQUEST_SECONDS, ("endpoint",), _route("stable")),
                      _quantile(0.5, catalog.REQUEST_SECONDS, ("endpoint",), _route("canary")), "s"),
            _lines("Labels by version", "Share of each predicted label.",
                   f"{by((*VERSION, 'value'), _rate(catalog.VARIABLE_ENUM, _LABELS))} / "
                   f"{on(VERSION, group='')} ({by(VERSION, _rate(catalog.VARIABLE_ENUM, _LABELS))} > 0)",
                   "{{endpoint}} {{version}} {{value}}", "percentunit", width=12, most=1.0),
        )),
        Section("Shadow", (
            _lines("Phase of the rollout", "Of the last rollout of each route; 1 while it is in this phase.",
                   by(("endpoint", "version", "phase"), f"{catalog.ROLLOUT_PHASE.name}{{{_BY_ENDPOINT}}}", "max"),
                   "{{endpoint}} {{version}} {{phase}}"),
            Panel("Evidence against the canary", "At the red line the rollout is rolled back.",
                  (Query(by(("endpoint", "version"), f"{catalog.ROLLOUT_EVIDENCE.name}{{{_BY_ENDPOINT}}}", "max"),
                         "{{endpoint}} {{version}}"),), unit="short", thresholds=((100.0, _RED),)),
            _lines("Rollout without a guard", "Time since a rollout that has not ended was last guarded, up to an "
                   "hour. From half a minute on an alert says so; a controller that runs again continues it.",
                   f"clamp(time() - {by(('endpoint',), _GUARDED, 'max')}, 0, 3600)", "{{endpoint}}", "s"),
            _lines("Mirrored requests", "Requests also answered by the shadow version, whose answers no caller gets. "
                   "Dropped first under load.",
                   by((*VERSION, "outcome"), _rate(catalog.SHADOWS, _PICK)), "{{endpoint}} {{version}} {{outcome}}",
                   "reqps"),
            _lines("Agreement", "Share of compared answers that agree, with numbers within the tolerance.",
                   f"({by(VERSION, _rate(catalog.SHADOWS, _AGREED))} or 0 * {_ALL_COMPARED}) / ({_ALL_COMPARED} > 0)",
                   "{{endpoint}} {{version}}", "percentunit", most=1.0),
            _lines("Different answers by group", "Share of a group's mirrored answers that differ: by the label that "
                   "the caller got, the text's length and its language.",
                   f"({_DIFFERED} or 0 * {_ALL_IN_GROUP}) / ({_ALL_IN_GROUP} > 0)",
                   "{{endpoint}} {{version}} {{group}}", "percentunit", most=1.0),
        )),
    ),
)  # fmt: skip

_VAR: Final = f'{_PICK},variable=~"$variable"'
_NAMED: Final = "{{endpoint}} {{version}} {{variable}}"


_ONE_ENDPOINT: Final = replace(ENDPOINT, one=True)
_ONE_VERSION: Final = replace(VERSION_PICK, one=True)


def _bin_in_order(expr: str) -> str:
    """Return one series per bin with a label ``order``, a number if the bin is one; bins without a number come last."""
    ordered = f'label_replace({by(("bin",), expr, "avg")}, "order", "$1", "bin", "(.*)")'
    for order, name in (("1e300", "[+]Inf"), ("1e301", OTHER), ("1e302", MISSING)):
        ordered = f'label_replace({ordered}, "order", "{order}", "bin", "{name}")'
    return ordered


_DAYS: Final = catalog.DRIFT_EVIDENCE.name
_CAUSES: Final = f'{_DAYS}{{state="drift"}}'
"""The variables that are causes of their endpoint's alarm."""


def _moved(matchers: str = "") -> str:
    """Return by how much the share of each bin in the last hour differs from the reference's."""
    now, then = (f'{catalog.DRIFT_SHARE.name}{{{matchers}of="{of}"}}' for of in ("now", "reference"))
    return f"({now} - ignoring (of) {then})"


def _table(name: str, *more: str) -> Query:
    return Query(f"sort_desc(max by ({', '.join(('endpoint', 'version', 'variable', *more))}) ({name}))")


DRIFT: Final = Board(
    "triton-gateway-drift", "Gateway · drift", "Texts and answers compared with the reference.",
    (_ONE_ENDPOINT, _ONE_VERSION, VARIABLE_PICK),
    (
        Section("What has drifted, all endpoints", (
            Panel("Variables", "The variables that the alert lists, most certain first. Empty if nothing has drifted.",
                  (_table(_CAUSES),), "table", "suffix:days", width=12, height=6, values=("evidence",)),
            Panel("Categories", "Bins of these variables whose share grew by more than a hundredth.",
                  (_table(f"{_moved()} > 0.01 and on ({', '.join((*VERSION, 'variable'))}) ({_CAUSES})", "bin"),),
                  "table", "percentunit", width=12, height=6,
                  values=("moved by",)),
        )),
        Section("How sure it is", (
            Panel("Evidence of the endpoint", "Chance alone gives as much at most once in that many days. At the red "
                  "line the alert fires.",
                  (Query(by(("endpoint",), f"{_DAYS}{{{_BY_ENDPOINT}}}", "avg"), "{{endpoint}}"),),
                  unit="suffix:days", thresholds=((ALARM_DAYS, _RED),)),
            _lines("Evidence by variable", "The endpoint's evidence is the mean over all variables and versions.",
                   by(("variable",), f"{_DAYS}{{{_PICK}}}", "avg"), "{{variable}}", "suffix:days"),
        )),
        Section("Distributions", (
            Panel("Now and in the reference", "The chosen variable: share of each bin in the last hour and in the "
                  "reference.",
                  tuple(Query(_bin_in_order(f'{catalog.DRIFT_SHARE.name}{{{_VAR},of="{of}"}}'))
                        for of in ("now", "reference")), "bars", "percentunit", 12),
            _lines("Moved categories over 1h", "The chosen variable: the share of each bin, minus the reference's.",
                   by(("bin",), _moved(f"{_VAR},"), "avg"), "{{bin}}",
                   "percentunit", width=12, least=None),
            Panel("Values over time", "Histogram of the chosen scalar variable, built in or declared.",
                  _heat(catalog.VARIABLE_SCALAR, _VAR), "heatmap", "short", 12, if_empty="Only for numbers"),
            _lines("Categories over time", "Values per second of the chosen enum variable.",
                   by(("value",), _rate(catalog.VARIABLE_ENUM, _VAR)), "{{value}}", "suffix:values/s", kind="stacked",
                   width=12, if_empty="Only for categories"),
        )),
        Section("Text", (
            _lines("Truncated texts", "Truncated texts per second.", by(VERSION, _rate(catalog.TRUNCATED)),
                   unit="suffix:texts/s"),
        )),
        Section("Declared variables and references", (
            _lines("Newest values", "Newest values of `--variable-value` variables.",
                   f"{catalog.VARIABLE_VALUE.name}{{{_PICK}}}", _NAMED, least=None),
            _lines("Ignored", "Values that could not be used, by reason.",
                   by(("variable", "reason"), _rate(catalog.VARIABLE_IGNORED)), "{{variable}} {{reason}}",
                   "suffix:values/s"),
            Panel("References", "Number of values in each reference.",
                  (_table(f"sum without (bin) ({catalog.DRIFT_REFERENCE.name}{{{_PICK}}})"),),
                  "table", width=24, values=("values",)),
        )),
    ),
)  # fmt: skip

_NAMED_POOL: Final = "{{release}} {{pool}}"
_TRITON_WAIT: Final = by(("instance",), _rate(f"{_STAGE.name}_sum", 'stage=~"queue|infer"'))
_CPU_WAIT: Final = by(("instance",), _rate(catalog.CPU_WAIT, ""))
_GATEWAY_WORK: Final = (  # seconds per second are a mean number of requests
    f"clamp_min({by(('instance',), _rate(f'{catalog.REQUEST_SECONDS.name}_sum', ''))} - {_TRITON_WAIT} "
    f"or 0 * {_CPU_WAIT}, 0) + {_CPU_WAIT}"
)


def _pools(record: str) -> str:
    """Return a record of the chosen pools."""
    return by(POOL, f"{record}{{{_OF_POOL}}}", "max")


CAPACITY: Final = Board(
    "triton-gateway-capacity", "Gateway · capacity", "Are there enough gateways and Tritons, and are they used well?",
    (ENDPOINT, VERSION_PICK, POOL_PICK),
    (
        Section("Demand", (
            _lines("In flight", "Requests in progress per gateway.",
                   by(("instance",), catalog.IN_FLIGHT.name), "{{instance}}"),
            _lines("Refused, by reason", "Refused requests by what was full and by priority class.",
                   by(("reason", "priority"), f"rate({catalog.REFUSED.name}[{_W}])"), "{{reason}} {{priority}}",
                   "reqps", least=None),
            _lines("Work in hand", "Seconds that one idle Triton would need for all waiting and running work, per "
                   "gateway.",
                   by((*VERSION, "instance"), catalog.WORK.name), f"{_EV} {{{{instance}}}}", "s"),
            _lines("Queue, by class", "Requests that wait for a call to Triton.",
                   by(("endpoint", "priority"), catalog.QUEUED.name), "{{endpoint}} {{priority}}"),
            _lines("Tokens", "Tokens per second: the best measure of text traffic.", by(VERSION, _rate(catalog.TOKENS)),
                   unit="suffix:tokens/s"),
        )),
        Section("Scaling signals of gateways", (
            _lines("Work", "Requests in the hands of each gateway's own CPU. The gateways' autoscaler reads this "
                   "beside CPU.",
                   _GATEWAY_WORK, "{{instance}}"),
            _lines("Wait for CPU", "How many of these requests wait for the CPU.",
                   _CPU_WAIT, "{{instance}}"),
            _lines("Waiting for Triton", "Requests that wait for Triton. More gateways would not help.",
                   _TRITON_WAIT, "{{instance}}"),
        )),
        Section("Scaling signals of Tritons, by pool", (
            Panel("Tritons wanted", "How many Tritons each signal asks for, and how many compute now. The pool's "
                  "autoscaler takes the largest; load only keeps Tritons, it adds none.",
                  (Query(_pools(rules.WANTED_BY_QUEUE), f"{_NAMED_POOL} queue"),
                   Query(_pools(rules.WANTED_BY_LOAD), f"{_NAMED_POOL} load"),
                   Query(by(POOL, f"{rules.ROWS}{{{_OF_POOL}}} > 0", "count"), f"{_NAMED_POOL} compute now"))),
            _lines("Queue over compute", "Time that calls wait, in gateways and inside Triton, over time of computing. "
                   "The signal queue is made of this.",
                   _pools(rules.QUEUE_RATIO), _NAMED_POOL, thresholds=((1.0, _ORANGE), (2.0, _RED))),
            _lines("Rows", "Rows that the Tritons of a pool compute per second.",
                   by(POOL, f"{rules.ROWS}{{{_OF_POOL}}}"), _NAMED_POOL, "suffix:rows/s"),
            _lines("p95 of a call", "95 of 100 requests spend less time than this in calls to Triton. Time of "
                   "computing asks for no Triton: only waiting does.",
                   _quantile(0.95, _STAGE, SCOPE, 'stage="infer"'), "all", "s"),
        )),
        Section("CPU tier", (
            _lines("CPU", "Cores each gateway uses (one process; with several workers use the machine's own metrics).",
                   f"rate(process_cpu_seconds_total{{{_OURS}}}[{_W}])", "{{instance}}"),
            _lines("CPU per request", "Milliseconds of CPU for one request.",
                   f"sum(rate(process_cpu_seconds_total{{{_OURS}}}[{_W}])) / (sum({_rate(catalog.REQUESTS, '')}) > 0)",
                   "all", "s"),
            _lines("Response cache", "Share of requests answered from the response cache, on endpoints that have one.",
                   f"{by(VERSION, _rate(catalog.CACHE, _HITS))} / {by(VERSION, _rate(catalog.CACHE))}",
                   unit="percentunit", most=1.0),
        )),
        Section("Batches", (
            _lines("Rows per call to Triton", "Mean rows per call, which is the size of the gateway's batches.",
                   _mean(catalog.BATCH_ROWS)),
            Panel("Rows per call over time", "Number of calls by rows per call.", _heat(catalog.BATCH_ROWS), "heatmap"),
            _lines("Padded tokens per call", "Mean of longest text × rows: what a call costs Triton.",
                   _mean(catalog.BATCH_TOKENS)),
            _lines("Padding waste", "Share of the tokens in calls that are only padding.",
                   f"1 - {by(VERSION, _rate(catalog.BATCH_REAL_TOKENS))} / "
                   f"{by(VERSION, _rate(f'{catalog.BATCH_TOKENS.name}_sum'))}", unit="percentunit"),
        )),
    ),
)  # fmt: skip

_MODEL: Final = f'{_OF_POOL},model=~"$model"'
_BY_MODEL: Final = ("pool", "model")


def _triton(name: str) -> str:
    return by(_BY_MODEL, f"rate({name}{{{_MODEL}}}[{_W}])")


def _machine(name: str, *labels: str) -> str:
    return by(("pool", "instance", *labels), f"{name}{{{_OF_POOL}}}", "max")


TRITON: Final = Board(
    "triton-gateway-triton", "Gateway · Triton", "Triton's own metrics.", (POOL_PICK, TRITON_MODEL),
    (
        Section("Models", (
            _lines("Calls", "Successful calls per second.",
                   _triton("nv_inference_request_success"), "{{pool}} {{model}}", "reqps"),
            _lines("Failures", "Failed calls per second, by Triton's reason.",
                   by((*_BY_MODEL, "reason"), f"rate(nv_inference_request_failure{{{_MODEL}}}[{_W}])"),
                   "{{pool}} {{model}} {{reason}}", "reqps"),
            _lines("Rows per execution", "Mean rows per execution, after Triton's own batching.",
                   f"{_triton('nv_inference_count')} / {_triton('nv_inference_exec_count')}", "{{pool}} {{model}}"),
            _lines("Queue over compute", "Above 1, calls wait longer than they are computed: add Tritons.",
                   f"{_triton('nv_inference_queue_duration_us')} / {_triton('nv_inference_compute_infer_duration_us')}",
                   "{{pool}} {{model}}", thresholds=((1.0, _ORANGE), (2.0, _RED))),
            _lines("Time of a call", "Mean time in Triton, including its queue.",
                   f"{_triton('nv_inference_request_duration_us')} / {_triton('nv_inference_request_success')}",
                   "{{pool}} {{model}}", "µs"),
            _lines("Pending", "Calls that wait for an instance of the model.",
                   by(_BY_MODEL, f"nv_inference_pending_request_count{{{_MODEL}}}"),
                   "{{pool}} {{model}}"),
        )),
        Section("Machine", (
            _lines("GPU", "Utilization of each GPU.",
                   _machine("nv_gpu_utilization", "gpu_uuid"), "{{pool}} {{instance}} {{gpu_uuid}}", "percentunit",
                   most=1.0),
            _lines("GPU memory", "Memory used on each GPU.",
                   _machine("nv_gpu_memory_used_bytes", "gpu_uuid"), "{{pool}} {{instance}} {{gpu_uuid}}", "bytes"),
            _lines("CPU", "Utilization of the machine.",
                   _machine("nv_cpu_utilization"), "{{pool}} {{instance}}", "percentunit", most=1.0),
            _lines("Memory", "Memory used on the machine.",
                   _machine("nv_cpu_memory_used_bytes"), "{{pool}} {{instance}}", "bytes"),
        )),
    ),
)  # fmt: skip

BOARDS: Final = (OVERVIEW, LATENCY, CANARY, DRIFT, CAPACITY, TRITON)
"""Every board."""


def files() -> dict[str, str]:
    """Return the boards' JSON by file name."""
    return {f"{board.uid.removeprefix('triton-gateway-')}.json": render(board, ANNOTATIONS) for board in BOARDS}
