"""The number of series per version, by metric: what docs/metrics.md says."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

from collections import Counter

from gateway.http.problems import FAILURES
from gateway.metrics import catalog
from gateway.metrics.observer import Observer
from gateway.metrics.watch import Served
from gateway.objectives import Objective
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from tests import expositions


def observer(*variables: MetricVariable, route: str = "stable") -> Observer:
    """Return an observer that has counted answers, batches and words of one text version."""
    found = Observer(failures=FAILURES)
    spec = MetricSpec("e/1", None, variables)
    found.watch.configure(
        {"e/1": Served("e", "1", is_text=True, labels=("GOOD", "BAD"))}, {"e/1": spec} if variables else {}, 1.0
    )
    found.expect([("e", "1", route)])
    found.show(catalog.MODEL_INFO, {("e", "1", "m", "name", "", "default"): 1})
    found.show(catalog.ENDPOINT_READY, {("e", "1"): True})
    for _ in range(3):
        trace = Trace("r")
        trace.endpoint, trace.version, trace.route, trace.outcome, trace.url = "e", "1", route, "ok", "e/1"
        trace.total_ns, trace.queue_ns, trace.infer_ns, trace.rows = 7_000_000, 1_000_000, 4_000_000, 1
        trace.answer = {"label": "GOOD", "score": 0.9, "top_score": 0.9}
        found.started()
        found.finished(trace)
    found.called("e", "1", 2, 32, 20)
    return found


def shown(counted: Observer) -> Counter[str]:
    """Return the number of samples of each metric of the version."""
    found: Counter[str] = Counter()
    for name, labels, _ in expositions.parse(expositions.render(counted.snapshot()).decode()):
        if labels.get("endpoint") == "e":
            family = next(m.name for m in catalog.CATALOG if name == m.name or name.rsplit("_", 1)[0] == m.name)
            found[family] += 1
    return found


def test_a_version_that_answers_has_so_many_series() -> None:
    assert {
        "gateway_requests_total": 1 + len(FAILURES), "gateway_request_duration_seconds": 23,
        "gateway_stage_duration_seconds": 4 * 13, "gateway_tokens_total": 1, "gateway_truncated_texts_total": 1,
        "gateway_request_rows": 2, "gateway_batch_rows": 11, "gateway_batch_padded_tokens": 2,
        "gateway_batch_tokens_total": 1, "gateway_endpoint_ready": 1, "gateway_model_info": 1,
        "gateway_variable_scalar": 18, "gateway_variable_enum_total": 1,
    } == shown(observer())  # fmt: skip


def test_a_canary_shows_the_failures_that_stable_answered_instead() -> None:
    """From the start."""
    more = shown(observer(route="canary")) - shown(observer())
    assert Counter(gateway_canary_fallbacks_total=len(FAILURES)) == more


def test_a_latency_objective_adds_two_series() -> None:
    """Answers in time and late ones; endpoints without such an objective have none."""
    counted = observer()
    counted.promise({"": Objective(), "e": Objective(0.999, 0.3)})
    extra = shown(counted) - shown(observer())
    assert Counter(gateway_objective_answers_total=2, gateway_objective_ratio=2) == extra
