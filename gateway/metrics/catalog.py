"""THE table of metrics: names, types, help, labels, buckets. Data, no code; boards, rules and docs read it too.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

LATENCY_BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip
"""Seconds, 0.5 ms to 10 s, dense where a text model on CPU or GPU answers."""
STAGE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.15, 0.25, 1.0, 10.0)
"""Seconds, 1 ms to 10 s; fewer than of requests, as each version has four stages."""

ROW_BUCKETS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
RATIO_BUCKETS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.999, 1.0)
"""Scores and entropies: fine near 1, where confident models live."""
RARE_RATIO_BUCKETS: Final = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
WORD_RATIO_BUCKETS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.85, 1.0)
COSINE_BUCKETS: Final = (*(number / 20 for number in range(-8, 19)), 0.92, 0.94, 0.96, 0.97, 0.98, 0.99, 1.0)
TEXT_TOKEN_BUCKETS: Final = (
    4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family; ``labels`` are fixed, ``buckets`` only for histograms. A summary has a sum and a count."""

    name: str
    type: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SERVED: Final = ("endpoint", "version", "route")

REQUESTS: Final = Metric(
    "gateway_requests_total", "counter",
    "Requests finished, by outcome: ok or the kind of error. Every request is counted exactly once.",
    (*_SERVED, "outcome"),
)  # fmt: skip
REQUEST_SECONDS: Final = Metric(
    "gateway_request_duration_seconds", "histogram",
    "Time of successful requests, from the first byte of the body to the finished answer.", _SERVED, LATENCY_BUCKETS,
)  # fmt: skip
OBJECTIVE: Final = Metric(
    "gateway_objective_ratio", "gauge",
    "What an endpoint promises: the share of requests that are answered (objective availability), or of answers that "
    "come within the given seconds (objective latency). 0: no promise. The empty endpoint has the default.",
    ("endpoint", "objective", "within"),
)  # fmt: skip
OBJECTIVE_ANSWERS: Final = Metric(
    "gateway_objective_answers_total", "counter",
    "Answers of endpoints that promise a time, by result (in_time or late) and by the seconds promised.",
    ("endpoint", "version", "within", "result"),
)  # fmt: skip
FALLBACKS: Final = Metric(
    "gateway_canary_fallbacks_total", "counter",
    "Requests that a canary version failed and the stable version then answered, by the canary's version and error. "
    "gateway_requests_total counts them under the stable version and route fallback.",
    ("endpoint", "version", "outcome"),
)  # fmt: skip
STAGE_SECONDS: Final = Metric(
    "gateway_stage_duration_seconds", "histogram",
    "Time that a successful request spent in one stage: prepare (parse, tokenize, hook), queue, infer (Triton), "
    "finish.",
    (*_SERVED, "stage"), STAGE_BUCKETS,
)  # fmt: skip
IN_FLIGHT: Final = Metric("gateway_requests_in_flight", "gauge", "Requests in progress now.")
CPU_WAIT: Final = Metric(
    "gateway_cpu_wait_seconds_total", "counter",
    "Seconds that requests waited for the gateway's own CPU (not for Triton). The rate is the mean number of waiting "
    "requests.",
)  # fmt: skip
ROWS: Final = Metric(
    "gateway_request_rows", "summary", "Texts (or hook calls) in one request.", ("endpoint", "version")
)  # fmt: skip
TOKENS: Final = Metric("gateway_tokens_total", "counter", "Tokens sent to the model.", ("endpoint", "version"))
TRUNCATED: Final = Metric(
    "gateway_truncated_texts_total", "counter", "Texts truncated at the model's maximum length.",
    ("endpoint", "version"),
)  # fmt: skip
BATCH_ROWS: Final = Metric(
    "gateway_batch_rows", "histogram", "Rows in one call to Triton.", ("endpoint", "version"), ROW_BUCKETS,
)  # fmt: skip
BATCH_TOKENS: Final = Metric(
    "gateway_batch_padded_tokens", "summary", "Padded tokens (longest × rows) in one call to Triton.",
    ("endpoint", "version"),
)  # fmt: skip
BATCH_REAL_TOKENS: Final = Metric(
    "gateway_batch_tokens_total", "counter",
    "Tokens in calls to Triton, without padding.",
    ("endpoint", "version"),
)  # fmt: skip
CACHE: Final = Metric(
    "gateway_cache_requests_total", "counter",
    "Requests of endpoints with a response cache, by result: hit or miss.", ("endpoint", "version", "result"),
)  # fmt: skip
ENDED_CONNECTIONS: Final = Metric(
    "gateway_ended_connections_total", "counter",
    "HTTP connections that the gateway closed although the client wanted to keep them, by reason: no_room, made_room, "
    "nothing_asked, not_read, or the error sent to the client.",
    ("reason",),
)  # fmt: skip
REFUSED: Final = Metric(
    "gateway_refused_requests_total", "counter",
    "Requests refused for lack of capacity or time, by reason (gateway_full, endpoint_full, batch_full, work_full, "
    "bytes_full, backend, deadline_unreachable) and priority class.",
    ("reason", "priority"),
)  # fmt: skip
_AT: Final = ("endpoint", "version")
WORK: Final = Metric(
    "gateway_work_seconds", "gauge",
    "Work in hand, waiting or in calls: the seconds that one idle Triton would need for it, estimated from the cost "
    "of past calls.",
    _AT,
)  # fmt: skip
QUEUED: Final = Metric(
    "gateway_queued_requests", "gauge",
    "Requests that wait for a call to Triton, by priority class.", (*_AT, "priority"),
)  # fmt: skip
REFUSED_CALLERS: Final = Metric(
    "gateway_refused_callers_total", "counter",
    "Requests refused by authentication or authorization, by reason: no_credentials, unknown_key, "
    "unknown_certificate, expired, revoked, bad_token, unknown_signing_key, operation_not_permitted, "
    "endpoint_not_permitted.",
    ("reason",),
)  # fmt: skip
OVER_QUOTA: Final = Metric(
    "gateway_over_quota_total", "counter",
    "Requests of a tenant that were refused over a limit: quota_requests or quota_tokens.", ("tenant", "reason"),
)  # fmt: skip
_TENANT: Final = ("tenant", "endpoint")
TENANT_REQUESTS: Final = Metric(
    "gateway_tenant_requests_total", "counter",
    "Requests answered, by tenant. After 1,000 tenants, further ones are counted as other.", _TENANT,
)  # fmt: skip
TENANT_TOKENS_IN: Final = Metric(
    "gateway_tenant_tokens_in_total", "counter", "Tokens sent to models in those requests.", _TENANT
)
TENANT_TOKENS_OUT: Final = Metric(
    "gateway_tenant_tokens_out_total", "counter", "Tokens generated in those requests.", _TENANT
)
CALLERS_SOURCE: Final = Metric(
    "gateway_callers_source_good", "gauge",
    "1 if the newest keys of this source (keys_file, registry, jwt) are in use; 0 if they are unusable and older ones "
    "are in use.", ("source",),
)  # fmt: skip
QUOTA_STORE: Final = Metric(
    "gateway_quota_store_up", "gauge",
    "1 if the store that shares quotas among gateways answers; 0 while each gateway admits its share instead. Only "
    "with TRITON_GATEWAY_QUOTA_STORE.", ("store",),
)  # fmt: skip
_VARIABLE: Final = ("endpoint", "version", "variable")

VARIABLE_SCALAR: Final = Metric(
    "gateway_variable_scalar", "histogram",
    "Values of scalar variables, built in or declared with `metrics add --variable-scalar`; each has its own bounds.",
    _VARIABLE, RATIO_BUCKETS,
)  # fmt: skip
VARIABLE_ENUM: Final = Metric(
    "gateway_variable_enum_total", "counter",
    "Values of enum variables (`--variable-enum`, predicted labels). Values that are not listed are counted as other.",
    (*_VARIABLE, "value"),
)  # fmt: skip
VARIABLE_VALUE: Final = Metric(
    "gateway_variable_value", "gauge", "The newest value of a variable declared with `--variable-value`.", _VARIABLE
)
VARIABLE_IGNORED: Final = Metric(
    "gateway_variable_ignored_total", "counter",
    "Times that a variable had no usable value, by reason: missing, wrong_type, not_finite.",
    (*_VARIABLE, "reason"),
)  # fmt: skip
_BIN: Final = (*_VARIABLE, "bin")
DRIFT_REFERENCE: Final = Metric(
    "gateway_drift_reference_observations", "gauge",
    "Number of a variable's values in its reference, by bin (upper bound or value; other; missing).", _BIN,
)  # fmt: skip
SHADOWS: Final = Metric(
    "gateway_shadow_requests_total", "counter",
    "Requests drawn for shadow traffic, by the version they were mirrored to and outcome: agreed, differed, failed "
    "(the model or its code), dropped (no capacity or no time).",
    ("endpoint", "version", "outcome"),
)  # fmt: skip
SHADOW_GROUPS: Final = Metric(
    "gateway_shadow_group_requests_total", "counter",
    "Mirrored requests of one text by group: the label that the caller got, its language, and its number of tokens (up "
    "to a power of two). Outcome: agreed, or differed (which includes failed).",
    ("endpoint", "version", "group", "outcome"),
)  # fmt: skip
ROLLOUT_GUARDED: Final = Metric(
    "gateway_rollout_guarded_until_timestamp_seconds", "gauge",
    "Until when (Unix time) a controller guards the rollout of this route: 30 s after its last look; 0: nobody. Only "
    "while its canary has a weight.",
    ("endpoint",),
)  # fmt: skip
PAYLOADS: Final = Metric(
    "gateway_payload_log_records_total", "counter",
    "Requests drawn for the payload log, by outcome: written, or lost because of queue_full, disk_full, too_large, "
    "not_json, not_writable.", ("outcome",),
)  # fmt: skip
FEEDBACK: Final = Metric(
    "gateway_feedback_total", "counter",
    "True labels received (`/v1/feedback`), by the version that answered, its prediction and the true label. After 15 "
    "values of a version, further ones are counted as other, and a label that differs from such a prediction as "
    "another.", ("endpoint", "version", "predicted", "label"),
)  # fmt: skip
RECONCILES: Final = Metric(
    "gateway_reconcile_total", "counter",
    "Reads of the serving Task, by outcome: unchanged, changed, registry_unavailable, registry_refused, error.",
    ("outcome",),
)  # fmt: skip
BUILDS: Final = Metric(
    "gateway_endpoint_builds_total", "counter", "Endpoint versions built, by outcome: ok or the kind of error.",
    ("outcome",),
)  # fmt: skip
CONFIGURATION_FAULTS: Final = Metric(
    "gateway_configuration_faults", "gauge",
    "Faults of the serving Task as last read; `triton-gateway status` says which and why.",
)  # fmt: skip
ENDPOINT_READY: Final = Metric(
    "gateway_endpoint_ready", "gauge",
    "1: this version is served. 0: it is pending, or has failed.",
    ("endpoint", "version"),
)  # fmt: skip
LAST_CONTACT: Final = Metric(
    "gateway_registry_last_contact_timestamp_seconds", "gauge", "Unix time of the last response of the ClearML API."
)
BACKEND_UP: Final = Metric(
    "gateway_backend_up", "gauge",
    "1: this Triton answers this gateway. 0: it does not.",
    ("backend", "pool"),
)  # fmt: skip
POOL_WAITING: Final = Metric(
    "gateway_pool_waiting_requests", "gauge",
    "Calls and builds of versions that wait because no Triton of the pool answers; 1 for a minute after the last one.",
    ("pool",),
)  # fmt: skip
POLL: Final = Metric(
    "gateway_registry_poll_seconds", "gauge", "Seconds between two reads of the serving Task by this gateway."
)
MODEL_INFO: Final = Metric(
    "gateway_model_info", "gauge",
    "1 for the model of a served version: id, name and page in ClearML, and its pool.",
    ("endpoint", "version", "model_id", "model", "link", "pool"),
)  # fmt: skip
BUILD_INFO: Final = Metric(
    "gateway_build_info", "gauge", "Always 1; the label is the version of the software.", ("version",)
)

SYNC_STATES: Final = ("pending", "failed", "refused", "loaded", "retiring")
SYNC_MODELS: Final = Metric(
    "model_sync_models", "gauge",
    f"Models that this model sync keeps in its Triton, by state: {', '.join(SYNC_STATES)}.", ("state",),
)  # fmt: skip
CONTROLLER_LEADS: Final = Metric("controller_leads", "gauge", "1 while this controller decides; of several, one does.")
DRIFT_EVIDENCE: Final = Metric(
    "controller_drift_evidence_days", "gauge",
    "Evidence of drift over all gateways, in days: chance alone gives as much at most once in that many days. State: "
    "drift (the endpoint alarms, and this variable is a cause), moved (alone it would alarm), steady or too few.",
    (*_VARIABLE, "state"),
)  # fmt: skip
DRIFT_SHARE: Final = Metric(
    "controller_drift_share_ratio", "gauge",
    "Share of each bin of a variable that has a reference, over all gateways: in the last hour (now), and in the "
    "reference, smoothed (reference).", (*_BIN, "of"),
)  # fmt: skip
ACCURACY: Final = Metric(
    "controller_accuracy_ratio", "gauge",
    "Accuracy of a version with labels (`/v1/feedback`): share right (value), and its 95 % interval (low, high).",
    ("endpoint", "version", "of"),
)  # fmt: skip
ROLLOUT_PHASE: Final = Metric(
    "controller_rollout_phase", "gauge",
    "1 for the phase of the last rollout of a route: running, promoted, rolled_back, aborted, taken_over or refused.",
    ("endpoint", "version", "phase"),
)  # fmt: skip
ROLLOUT_EVIDENCE: Final = Metric(
    "controller_rollout_evidence", "gauge",
    "Evidence that the canary of a rollout is worse than stable; from 100 on it is rolled back. Only until it ends.",
    ("endpoint", "version"),
)  # fmt: skip


def _named(start: str) -> tuple[Metric, ...]:
    return tuple(one for one in globals().values() if isinstance(one, Metric) and one.name.startswith(start))


CATALOG: Final = _named("gateway_")
"""What a gateway counts, in the order of ``/metrics``."""
JUDGED: Final = tuple(one for one in _named("controller_") if one is not CONTROLLER_LEADS)
"""What the controller judges, and shows itself."""
