"""The recording rules and alerts, which Prometheus computes from the numbers of all gateways together. Data.

``RULES`` maps file names to groups; ``python -m dashboards`` writes them, and a test compares. Values that cannot be
added up (ratios, quantiles) are computed here, after the sum over workers and pods, never in a gateway.
"""

from __future__ import annotations

from typing import Final

from dashboards import scaling
from dashboards.promql import (
    BIN,
    ENDPOINT,
    FAILED_OUTCOMES,
    INSTANCE,
    SCOPE,
    VARIABLE,
    VERSION,
    Alert,
    Group,
    Record,
    by,
    increase,
    rate,
    rule_file,
)
from gateway.metrics import catalog
from gateway.metrics.drift import MISSING, OTHER, SHIFT_SIGMAS
from gateway.objectives import BUDGET_S, LEAST_BAD

RUNBOOK: Final = "docs/runbook.md"

SLO_WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
_BUDGET: Final = f"{BUDGET_S / 86400:.0f}d"
"""Period of the error budget, which the burn rates below refer to."""
_DRIFT_WINDOW: Final = "1h"

_BURN: Final = (
    # burn rate, long window, short window, severity: the SRE workbook's pairs
    (14.4, "1h", "5m", "page"),
    (6.0, "6h", "30m", "page"),
    (3.0, "1d", "2h", "ticket"),
    (1.0, "3d", "6h", "ticket"),
)
_MAX_BAD: Final = 0.9
"""Share of bad requests that is enough for any burn rate: at an objective of 90 %, at most 10 times the budget fail."""

_REFUSED: Final = 0.9
"""Share of an endpoint's requests refused as the caller's fault above which it counts as an outage."""
_LEAST_REFUSED: Final = 50
_DISAGREE: Final = 0.3
"""Share of different mirrored answers that somebody should know of; a rollout permits a third of it."""

_REQUESTS: Final = catalog.REQUESTS.name
_SECONDS: Final = catalog.REQUEST_SECONDS.name
_ANSWERS: Final = catalog.OBJECTIVE_ANSWERS.name
_LATE: Final = 'result="late"'
_FAILED: Final = f'outcome=~"{FAILED_OUTCOMES}"'
_KNOWN: Final = 'endpoint!=""'

_GATEWAY: Final = "gateway_requests"


def error_ratio(window: str) -> str:
    """Return the name of the recorded share of failed requests."""
    return f"endpoint:{_GATEWAY}_failed:ratio_rate{window}"


def late_ratio(window: str) -> str:
    """Return the name of the recorded share of answers that came later than promised (promised time: ``within``)."""
    return f"endpoint_within:{_GATEWAY}_late:ratio_rate{window}"


_OF_VARIABLE: Final = "endpoint_version_variable:gateway_drift"
_OF_BIN: Final = "endpoint_version_variable_bin:gateway_drift"
DRIFT_N: Final = f"{_OF_VARIABLE}_observations:increase1h"
"""Number of values of a variable."""
DRIFT_BIN_N: Final = f"{_OF_BIN}_observations:increase1h"
DRIFT_SHARE: Final = f"{_OF_BIN}:ratio1h"
"""Share of each bin now."""
DRIFT_SHIFT: Final = f"{_OF_BIN}_shift:ratio1h"
"""Difference of each bin's share to the reference."""
DRIFT_SHIFT_NOISE: Final = f"{_OF_BIN}_shift_noise:ratio1h"


def drift_special(bin_name: str) -> str:
    """Return the name of the recorded share of the bin ``other`` or ``missing``."""
    return f"{_OF_VARIABLE}_{bin_name}:ratio1h"


AVAILABILITY: Final = "endpoint:gateway_objective_availability:ratio"
"""Share of an endpoint's requests that must not fail on the server side: its own objective or the default."""
LATENCY: Final = "endpoint_within:gateway_objective_latency:ratio"
"""Share of its answers that must come within ``within`` seconds, if that is promised."""
FAILED_LEFT: Final = f"endpoint:{_GATEWAY}_failed_budget:left{_BUDGET}"
"""Share that is left of the failures that the objective allows in ``_BUDGET``."""
LATE_LEFT: Final = f"endpoint_within:{_GATEWAY}_late_budget:left{_BUDGET}"
"""The same of late answers."""
EVIDENCE: Final = "endpoint:gateway_drift_evidence:days"
"""The number that alarms: chance alone gives an endpoint as much evidence at most once in that many days."""
VARIABLE_EVIDENCE: Final = "endpoint_version_variable:gateway_drift_evidence:days"
ALARM: Final = "gateway:gateway_drift_alarm:days"
"""The evidence from which an endpoint counts as drifted."""
FOUND: Final = "endpoint_version_variable:gateway_drift_found:days"
"""The evidence of every variable that is a cause of its endpoint's alarm."""
FOUND_SHIFT: Final = "endpoint_version_variable_bin:gateway_drift_found:shift"
"""Shifts of those variables' bins that are larger than noise."""
FOUND_NEW: Final = "endpoint_version_variable_value:gateway_drift_found:new"
"""How often each named value came that the reference of such a variable does not have. No share: this counter begins
with the value, so ``increase`` guesses its beginning otherwise than that of the variable's counters.
"""
REFERENCE: Final = "endpoint_version_variable_bin:gateway_drift_reference:ratio"
REFERENCE_SIZE: Final = "endpoint_version_variable:gateway_drift_reference:observations"


def _red() -> Group:
    rules = [
        Record("endpoint_version_route_outcome:gateway_requests:rate5m",
               by((*VERSION, "route", "outcome"), rate(_REQUESTS, "5m"))),
        Record("endpoint_version:gateway_requests:rate5m", by(VERSION, rate(_REQUESTS, "5m"))),
        Record("endpoint_version:gateway_requests_failed:ratio_rate5m", _ratio(VERSION, "5m")),
    ]  # fmt: skip
    for share in (0.5, 0.95, 0.99):
        buckets = by((*VERSION, "le"), rate(f"{_SECONDS}_bucket", "5m"))
        rules.append(
            Record(f"endpoint_version:{_SECONDS}:p{share * 100:.0f}_5m", f"histogram_quantile({share}, {buckets}) >= 0")
        )
    waste = (
        f"1 - {by(VERSION, rate(catalog.BATCH_REAL_TOKENS.name, '5m'))}\n"
        f"  / ({by(VERSION, rate(f'{catalog.BATCH_TOKENS.name}_sum', '5m'))} > 0)"
    )
    rows = (
        f"{by(VERSION, rate(f'{catalog.BATCH_ROWS.name}_sum', '5m'))}\n"
        f"  / ({by(VERSION, rate(f'{catalog.BATCH_ROWS.name}_count', '5m'))} > 0)"
    )
    rules += [
        Record("endpoint_version:gateway_batch_padding:ratio_rate5m", waste),
        Record("endpoint_version:gateway_batch_rows:mean5m", rows),
    ]
    return Group("gateway-requests", rules)


def _ratio(labels: tuple[str, ...], window: str) -> str:
    # Without a single failure there is no failure series: `or` brings its zero.
    everything = by(labels, rate(_REQUESTS, window, _KNOWN))
    failed = by(labels, rate(_REQUESTS, window, f"{_KNOWN},{_FAILED}"))
    return f"({failed}\n  or 0 * {everything})\n  / ({everything} > 0)"


def _slo() -> Group:
    rules: list[Record | Alert] = [*_promised()]
    within = (*ENDPOINT, "within")
    current = f"\n  and on ({', '.join(within)}) {LATENCY}"
    for window in SLO_WINDOWS:
        late = by(within, rate(_ANSWERS, window, _LATE))
        rules += [
            Record(error_ratio(window), _ratio(ENDPOINT, window)),
            # Counts of an earlier promised time stay in the sum.
            Record(late_ratio(window), f"{late}\n  / ({by(within, rate(_ANSWERS, window))} > 0){current}"),
        ]
    hourly = {
        f"endpoint:{_GATEWAY}:increase1h": by(ENDPOINT, increase(_REQUESTS, "1h", _KNOWN)),
        f"endpoint:{_GATEWAY}_failed:increase1h": by(ENDPOINT, increase(_REQUESTS, "1h", f"{_KNOWN},{_FAILED}")),
        f"endpoint_within:{_GATEWAY}_timed:increase1h": by(within, increase(_ANSWERS, "1h")),
        f"endpoint_within:{_GATEWAY}_late:increase1h": by(within, increase(_ANSWERS, "1h", _LATE)),
    }
    rules += [Record(name, expr) for name, expr in hourly.items()]
    for factor, long, short, severity in _BURN:
        failures = by(ENDPOINT, increase(_REQUESTS, long, f"{_KNOWN},{_FAILED}"))
        limit = f"clamp_max({factor:g} * (1 - {AVAILABILITY}), {_MAX_BAD})"
        rules.append(
            Alert(
                "GatewayErrorBudgetBurn",
                f"{error_ratio(long)} > {limit}\nand {error_ratio(short)} > {limit}\nand {failures} >= {LEAST_BAD}",
                "{{ $labels.endpoint }} fails too often",
                f"{{{{ $value | humanizePercentage }}}} of the requests of {{{{ $labels.endpoint }}}} failed in the "
                f"last {long}, more than {factor:g} times what its objective allows."
                + _promise(AVAILABILITY, "are answered"),
                severity, labels={"window": long},
            )
        )  # fmt: skip
        late = by(within, increase(_ANSWERS, long, _LATE))
        limit = f"clamp_max({factor:g} * (1 - {LATENCY}), {_MAX_BAD})"
        rules.append(
            Alert(
                "GatewayLatencyBudgetBurn",
                f"{late_ratio(long)} > {limit}\nand {late_ratio(short)} > {limit}\nand {late} >= {LEAST_BAD}",
                "{{ $labels.endpoint }} is slow",
                f"{{{{ $value | humanizePercentage }}}} of the answers of {{{{ $labels.endpoint }}}} took more than "
                f"{{{{ $labels.within }}}} s in the last {long}, more than {factor:g} times what its objective allows."
                + _promise(LATENCY, "come in time"),
                severity, labels={"window": long},
            )
        )  # fmt: skip
    return Group("gateway-slo", rules)


def _promise(record: str, what: str) -> str:
    """Return the end of an alert's text: the promised share."""
    its = ",".join(f"{label}=%q" for label in ENDPOINT)
    names = " ".join(f"$labels.{label}" for label in ENDPOINT)
    return (
        f"{{{{ with query (printf `{record}{{{its}}}` {names}) }}}} Promised: "
        f"{{{{ . | first | value | humanizePercentage }}}} {what}.{{{{ end }}}}"
    )


def _promised() -> list[Record]:
    """Return the records of the objectives. Gateways may differ briefly after a change: the stricter one counts."""
    shares = catalog.OBJECTIVE.name
    stated = by(ENDPOINT, f'{shares}{{objective="availability",{_KNOWN}}} >= 0', "max")
    default = by(SCOPE, f'{shares}{{objective="availability",endpoint=""}}', "max")
    known = f"0 * {by(ENDPOINT, f'{_REQUESTS}{{{_KNOWN}}}', 'count')}"
    return [
        Record(AVAILABILITY, f"({stated}\n  or {known} + on ({', '.join(SCOPE)}) group_left () {default}) > 0"),
        Record(LATENCY, by((*ENDPOINT, "within"), f'{shares}{{objective="latency",{_KNOWN}}} > 0', "max")),
    ]


def _budgets() -> Group:
    """Return the records of what is left of a budget, computed from recorded hours: a month of raw counters is too
    much.
    """
    hours = f"[{_BUDGET}:15m]"

    def left(bad: str, of: str, objective: str) -> str:
        # Until the first quarter of an hour has been recorded, the last hour is used.
        everything = f"(sum_over_time({of}{hours}) or {of})"
        return (
            f"1 - (sum_over_time({bad}{hours}) or {bad} or 0 * {everything})\n  / ({everything} > 0)\n"
            f"  / (1 - {objective})"
        )

    timed, late = (f"endpoint_within:{_GATEWAY}_{what}:increase1h" for what in ("timed", "late"))
    every = f"endpoint:{_GATEWAY}:increase1h"
    return Group(
        "gateway-budgets",
        [
            Record(FAILED_LEFT, left(f"endpoint:{_GATEWAY}_failed:increase1h", every, AVAILABILITY)),
            Record(LATE_LEFT, left(late, timed, LATENCY)),
        ],
    )


def _drift() -> Group:
    on, seen = f"on ({', '.join(VARIABLE)})", by(BIN, increase(catalog.DRIFT_OBSERVATIONS.name, _DRIFT_WINDOW))
    rules: list[Record | Alert] = [
        # All pods report the same. Bins of a removed reference are NaN, which is not above 0.
        Record(REFERENCE, by(BIN, f"{catalog.DRIFT_REFERENCE.name} > 0", "max")),
        Record(REFERENCE_SIZE, by(VARIABLE, catalog.DRIFT_REFERENCE_SIZE.name, "max")),
        Record(DRIFT_BIN_N, f"{seen}\n  and on ({', '.join(BIN)}) {REFERENCE}"),
        Record(DRIFT_N, by(VARIABLE, DRIFT_BIN_N)),
        # Not smoothed: an empty bin has no share.
        Record(DRIFT_SHARE, f"{DRIFT_BIN_N}\n  / {on} group_left () ({DRIFT_N} > 0)"),
        Record(DRIFT_SHIFT, f"{DRIFT_SHARE} - {REFERENCE}"),
        Record(
            DRIFT_SHIFT_NOISE,
            f"{SHIFT_SIGMAS} * sqrt({REFERENCE} * (1 - {REFERENCE})\n"
            f"  * {on} group_left () (1 / ({DRIFT_N} > 0) + 1 / {REFERENCE_SIZE}))",
        ),
        *(
            Record(
                drift_special(bin_name), by(VARIABLE, f'{DRIFT_BIN_N}{{bin="{bin_name}"}}') + f" / ({DRIFT_N} > 0)"
            )
            for bin_name in (OTHER, MISSING)
        ),
    ]  # fmt: skip
    days = f"{catalog.DRIFT_EVIDENCE.name} >= 0"
    every = f"on ({', '.join(SCOPE)}) group_left ()"
    bins = "version, variable, bin"
    rules += [
        # The same mean as on the page: over versions, variables and gateways, each of which bets on its own traffic.
        Record(EVIDENCE, by(ENDPOINT, days, "avg")),
        Record(VARIABLE_EVIDENCE, by((*VERSION, "variable"), days, "avg")),
        Record(ALARM, by(SCOPE, catalog.DRIFT_ALARM.name, "max")),
        Record(
            FOUND,
            f"{VARIABLE_EVIDENCE} >= {every} {ALARM}\n"
            f"and on ({', '.join(ENDPOINT)}) ({EVIDENCE} >= {every} {ALARM})",
        ),
        Record(
            FOUND_SHIFT,
            f"{DRIFT_SHIFT}\nand abs({DRIFT_SHIFT}) > {DRIFT_SHIFT_NOISE}\n"
            f"and on ({', '.join((*VERSION, 'variable'))}) {FOUND}",
        ),
        Record(
            FOUND_NEW,
            f"{by((*VARIABLE, 'value'), increase(catalog.DRIFT_NEW.name, _DRIFT_WINDOW))}\n"
            f'and {on} ({FOUND_SHIFT}{{bin="{OTHER}"}} > 0)',
        ),
        # One cause moves many bins of many variables, so one alert reports all of it.
        Alert(
            "GatewayDrift",
            f"{EVIDENCE} >= {every} {ALARM}",
            "The texts or answers of {{ $labels.endpoint }} have drifted",
            "Chance alone gives this much evidence at most once in {{ $value | printf `%.0f` }} days. "
            + _listed("Variables, evidence in days",
                    f"max by (version, variable) ({FOUND}{_ITS})", "{{ .Labels.variable }}",
                    "%.0f")
            + _listed("Shares that grew most", f"topk(5, 100 * avg by ({bins}) ({FOUND_SHIFT}{_ITS} > 0))",
                    "{{ .Labels.variable }} {{ .Labels.bin }}", "%+.1f points")
            + _listed("New values (bin other)",
                    f"topk(3, avg by (version, variable, value) ({FOUND_NEW}{_ITS} > 0))",
                    "{{ .Labels.variable }} {{ .Labels.value }}"),
            "ticket",
        ),
    ]  # fmt: skip
    return Group("gateway-drift", rules, interval="30s")


_ITS: Final = "{its}"


def _listed(title: str, query: str, name: str, form: str = "") -> str:
    """Return the part of an alert's text that lists an endpoint's series of ``query`` (``_ITS``: of that endpoint).

    Without a ``form``, the series' values are left out.
    """
    its = ",".join(f"{label}=%q" for label in ENDPOINT)
    names = " ".join(f"$labels.{label}" for label in ENDPOINT)
    series = f"(query (printf `sort_desc({query.replace(_ITS, f'{{{its}}}')})` {names}))"
    return (
        f"{{{{ with {series} }}}}{title}: {{{{ range $i, $_ := . }}}}"
        f"{{{{ if $i }}}}; {{{{ end }}}}{name} of version {{{{ .Labels.version }}}}"
        + (f": {{{{ printf `{form}` .Value }}}}" if form else "")
        + "{{ end }}. {{ end }}"
    )


def _canary() -> Group:
    def side(route: str, what: str) -> str:
        if what == "failed":
            part = by(ENDPOINT, rate(_REQUESTS, "10m", f'route="{route}",{_FAILED}'))
            whole = by(ENDPOINT, rate(_REQUESTS, "10m", f'route="{route}"'))
            return f"(({part} or 0 * {whole}) / {whole})"
        buckets = by((*ENDPOINT, "le"), rate(f"{_SECONDS}_bucket", "10m", f'route="{route}"'))
        return f"histogram_quantile(0.95, {buckets})"

    canary = by(ENDPOINT, increase(_REQUESTS, "10m", 'route="canary"'))
    canary_failed = by(ENDPOINT, increase(_REQUESTS, "10m", f'route="canary",{_FAILED}'))
    fallbacks = by(ENDPOINT, increase(catalog.FALLBACKS.name, "10m"))
    compared = by(VERSION, increase(catalog.SHADOWS.name, "10m", 'outcome=~"agreed|differed|failed"'))
    different = by(VERSION, increase(catalog.SHADOWS.name, "10m", 'outcome=~"differed|failed"'))
    return Group(
        "gateway-canary",
        [
            Alert(
                "GatewayCanaryRegression",
                f"{side('canary', 'failed')} > {side('stable', 'failed')} + 0.01\n"
                f"and {canary_failed} >= {LEAST_BAD}",
                "The canary of {{ $labels.endpoint }} fails more often than the stable version",
                "{{ $value | humanizePercentage }} of its requests failed in the last 10 minutes, at least one point "
                "more than those of the stable version.",
                "page", labels={"signal": "failures"},
            ),
            Alert(
                "GatewayCanaryRegression",
                f"{fallbacks} > 0.01 * ({fallbacks} + ({canary} or 0 * {fallbacks}))\nand {fallbacks} >= {LEAST_BAD}",
                "The canary of {{ $labels.endpoint }} fails; the stable version answers instead",
                "{{ $value | humanize }} requests fell back to the stable version in the last 10 minutes.",
                "page", labels={"signal": "fallbacks"},
            ),
            Alert(
                "GatewayCanaryRegression",
                f"{side('canary', 'slow')} > 1.5 * {side('stable', 'slow')}\nand {canary} >= 100",
                "The canary of {{ $labels.endpoint }} is slower than the stable version",
                "Its p95 is {{ $value | humanizeDuration }}, more than 1.5 times the stable version's.",
                "ticket", hold="5m", labels={"signal": "latency"},
            ),
            Alert(
                # A lease is renewed every ten seconds; scrapes may be a minute apart.
                "GatewayCanaryUnguarded", f"time() - {by(ENDPOINT, catalog.ROLLOUT_GUARDED.name, 'max')} > 120",
                "Nobody runs the rollout of {{ $labels.endpoint }}",
                "Its canary keeps its share of the requests, and for two minutes nobody has been there to roll it "
                "back. `triton-gateway canary run --endpoint {{ $labels.endpoint }}` continues the rollout.",
                "ticket",
            ),
            Alert(
                "GatewayMirrorDisagrees", f"{different}\n  / ({compared} > 0) > {_DISAGREE}\nand {compared} >= 30",
                "{{ $labels.endpoint }} {{ $labels.version }} answers mirrored requests differently",
                "{{ $value | humanizePercentage }} of its answers to mirrored requests in the last 10 minutes differ "
                "from those that callers got, or failed.", "ticket", hold="1m",
            ),
        ],
    )  # fmt: skip


def _state() -> Group:
    reads = by(INSTANCE, increase(catalog.RECONCILES.name, "10m", 'outcome=~"changed|unchanged"'))
    reads_failed = by(INSTANCE, increase(catalog.RECONCILES.name, "10m", 'outcome!~"changed|unchanged"'))
    builds_failed = by((*INSTANCE, "outcome"), increase(catalog.BUILDS.name, "15m", 'outcome!="ok"'))
    refused = by(INSTANCE, rate(_REQUESTS, "5m", 'outcome="overloaded"'))
    callers_fault = by(ENDPOINT, rate(_REQUESTS, "10m", f'{_KNOWN},outcome!~"ok|client_gone|{FAILED_OUTCOMES}"'))
    asked = by(ENDPOINT, rate(_REQUESTS, "10m", _KNOWN))
    nowhere = 'outcome=~"endpoint_not_found|version_not_found"'
    return Group(
        "gateway-state",
        [
            Record("job:gateway_requests_in_flight:sum", by((*SCOPE, "job"), catalog.IN_FLIGHT.name)),
            Alert(
                "GatewayDown", 'up{job="triton-gateway"} == 0',
                "{{ $labels.instance }} cannot be scraped",
                "The gateway at {{ $labels.instance }} does not answer /metrics.", "page", hold="1m",
            ),
            Alert(
                "GatewayAbsent", 'absent(up{job="triton-gateway"})',
                "Prometheus finds no gateway",
                "Prometheus has scraped no gateway for 5 minutes. All are gone, or Prometheus does not find them.",
                "page", hold="5m",
            ),
            Alert(
                "TritonDown", 'up{job="triton"} == 0',
                "Triton at {{ $labels.instance }} cannot be scraped",
                "It has not answered /metrics for 2 minutes. This is independent of traffic.",
                "page", hold="2m",
            ),
            Alert(
                "ControllerDown",
                by(SCOPE, f'{catalog.CONTROLLER_LEADS.name} or 0 * up{{job="controller"}}', "max") + " == 0",
                "No controller decides",
                "None has led for 2 minutes. Everything is served on, but new models get no versions, and changes are "
                "not recorded.",
                "ticket", hold="2m",
            ),
            Alert(
                "ModelSyncDown", 'up{job="model-sync"} == 0',
                "Model sync at {{ $labels.instance }} cannot be scraped",
                "It has not answered for 5 minutes. Its Triton keeps serving what it has loaded but gets nothing new.",
                "ticket", hold="5m",
            ),
            Alert(
                "ModelSyncBehind",
                by(INSTANCE, f'{catalog.SYNC_MODELS.name}{{state=~"pending|downloading|loading|failed"}}') + " > 0",
                "Triton at {{ $labels.instance }} lacks models",
                "Models have been missing for 15 minutes. `triton-gateway status` and /status of model sync say which, "
                "and why.",
                "ticket", hold="15m",
            ),
            Alert(
                # Gateways notice a Triton that is not scraped, because they need it; this takes no traffic.
                "GatewayBackendDown", f"{by((*SCOPE, 'backend'), catalog.BACKEND_UP.name, 'max')} == 0",
                "No gateway reaches Triton at {{ $labels.backend }}",
                "It has answered no gateway that needs it for a minute. Its endpoints answer 503.",
                "page", hold="1m",
            ),
            Alert(
                "GatewayRequestsRefused",
                f"{callers_fault}\n  / {asked} > {_REFUSED}\nand {by(ENDPOINT, increase(_REQUESTS, '10m', _KNOWN))} >= "
                f"{_LEAST_REFUSED}",
                "{{ $labels.endpoint }} refuses almost every request",
                "{{ $value | humanizePercentage }} of its requests in the last 10 minutes were refused as the caller's "
                "fault. Almost no caller gets an answer.", "page", hold="5m",
            ),
            Alert(
                "GatewayUnknownPaths",
                f"{by(SCOPE, rate(_REQUESTS, '10m', nowhere))}\n  / {by(SCOPE, rate(_REQUESTS, '10m'))} > 0.5\n"
                f"and {by(SCOPE, increase(_REQUESTS, '10m', nowhere))} >= {_LEAST_REFUSED}",
                "Most requests ask for endpoints that do not exist",
                "{{ $value | humanizePercentage }} of the requests in the last 10 minutes were answered 404. Was an "
                "endpoint removed or renamed?", "ticket", hold="5m",
            ),
            Alert(
                # Three polls that should have happened, and at least two minutes.
                "GatewayConfigurationStale",
                f"time() - {catalog.LAST_CONTACT.name}\n  > clamp_min(3 * {catalog.POLL.name}, 120)",
                "{{ $labels.instance }} gets no response from ClearML",
                "ClearML's last response is {{ $value | humanizeDuration }} old. The gateway keeps serving but does "
                "not see changes.", "ticket", hold="5m",
            ),
            Alert(
                # All gateways read the same Task: one alert, not one per gateway.
                "GatewayConfigurationFault",
                f"{by((*SCOPE, 'job', 'kind'), catalog.CONFIGURATION_FAULTS.name, 'max')} > 0",
                "The serving Task has a faulty {{ $labels.kind }}",
                "{{ $value }} faults for 5 minutes. These parts are not served as configured. `triton-gateway status` "
                "and the gateway's page say which and why.", "ticket", hold="5m",
            ),
            Alert(
                "GatewayKeysUnusable", f"{by(('source', *INSTANCE), catalog.CALLERS_SOURCE.name, 'min')} == 0",
                "{{ $labels.instance }} cannot use the newest keys",
                "{{ $labels.source }} has been unusable for 5 minutes. The previous keys stay valid, even those "
                "revoked since. `/v1/status` and the log say why.", "ticket", hold="5m",
            ),
            Alert(
                "GatewayQuotaStoreAway", f"{by(INSTANCE, catalog.QUOTA_STORE.name, 'min')} == 0",
                "{{ $labels.instance }} does not reach the store of quotas",
                "The store has not answered for 5 minutes. Each gateway admits its share of the quotas meanwhile. "
                "`/v1/status` and the log say why.", "ticket", hold="5m",
            ),
            Alert(
                "GatewayPayloadLogLosing",
                by(INSTANCE, rate(catalog.PAYLOADS.name, "10m", 'outcome!="written"'))
                + f"\n  / ({by(INSTANCE, rate(catalog.PAYLOADS.name, '10m'))} > 0) > 0.05",
                "{{ $labels.instance }} loses records of the payload log",
                "{{ $value | humanizePercentage }} of the records of the last 10 minutes were lost. `/v1/status` says "
                "why under `payload_log`.", "ticket", hold="15m",
            ),
            Alert(
                "GatewayReconcileFailing",
                f"{reads_failed} > 0\nunless {reads} > 0",
                "{{ $labels.instance }} cannot read its configuration",
                "Every read of the serving Task in the last 10 minutes failed.", "ticket", hold="5m",
            ),
            Alert(
                "GatewayModelStuckLoading", f"{by((*VERSION, *INSTANCE), catalog.ENDPOINT_READY.name, 'max')} == 0",
                "{{ $labels.endpoint }} {{ $labels.version }} is not served",
                "It has not been ready on {{ $labels.instance }} for 10 minutes. The gateway's page shows the reason.",
                "ticket", hold="10m",
            ),
            Alert(
                "GatewayBuildFailing",
                f"{builds_failed} > 3",
                "Versions cannot be built on {{ $labels.instance }}",
                "{{ $value | humanize }} builds failed with {{ $labels.outcome }} in the last 15 minutes.", "ticket",
            ),
            Alert(
                "GatewaySaturated",
                f"{refused}\n  / {by(INSTANCE, rate(_REQUESTS, '5m'))} > 0.01",
                "{{ $labels.instance }} refuses requests",
                "{{ $value | humanizePercentage }} of its requests are answered 429. Add gateways or Tritons.",
                "page", hold="2m",
            ),
            Alert(
                "GatewayRefusesCritical",
                by(INSTANCE, rate(catalog.REFUSED.name, "5m", 'priority="critical"')) + " > 0",
                "{{ $labels.instance }} refuses requests of class critical",
                "{{ $value | humanize }} per second. Even the capacity reserved for this class is full.", "page",
                hold="2m",
            ),
            Alert(
                "GatewayDeadlinesUnreachable",
                by(INSTANCE, rate(catalog.REFUSED.name, "5m", 'reason="deadline_unreachable"'))
                + f"\n  / {by(INSTANCE, rate(_REQUESTS, '5m'))} > 0.01",
                "{{ $labels.instance }} refuses requests that cannot meet their deadline",
                "{{ $value | humanizePercentage }} of its requests have less time left than the queue ahead of them "
                "needs.", "ticket", hold="5m",
            ),
            Alert(
                "GatewayQueueing",
                f"{_stage('queue')}\n  > {_stage('infer')}",
                "Requests of {{ $labels.endpoint }} wait longer for Triton than Triton computes",
                "The mean wait is {{ $value | humanizeDuration }}.", "ticket", hold="10m",
            ),
            Alert(
                "TritonSaturated",
                f"{by((*INSTANCE, 'model'), rate('nv_inference_queue_duration_us', '5m'))}\n"
                f"  > 2 * {by((*INSTANCE, 'model'), rate('nv_inference_compute_infer_duration_us', '5m'))}",
                "{{ $labels.model }} queues in Triton",
                "Requests wait in {{ $labels.instance }} more than twice as long as it computes them.",
                "ticket", hold="10m",
            ),
        ],
    )  # fmt: skip


def _stage(stage: str) -> str:
    matcher = f'stage="{stage}"'
    seconds = by(VERSION, rate(f"{catalog.STAGE_SECONDS.name}_sum", "5m", matcher))
    requests = by(VERSION, rate(f"{catalog.STAGE_SECONDS.name}_count", "5m", matcher))
    return f"{seconds}\n  / ({requests} > 0)"


RULES: Final = {
    "requests.yml": (_red(), _slo(), _budgets()),
    "drift.yml": (_drift(),),
    "canary.yml": (_canary(),),
    "state.yml": (_state(),),
    "scaling.yml": (scaling.group(),),
}
"""Rule files and their groups."""


def alerts() -> list[Alert]:
    """Return every alert."""
    return [rule for groups in RULES.values() for group in groups for rule in group.rules if isinstance(rule, Alert)]


def records() -> list[Record]:
    """Return every recording rule, in order of evaluation."""
    return [rule for groups in RULES.values() for group in groups for rule in group.rules if isinstance(rule, Record)]


def files() -> dict[str, str]:
    """Return the rule files' texts by name."""
    return {name: rule_file(groups, runbook=RUNBOOK) for name, groups in RULES.items()}
