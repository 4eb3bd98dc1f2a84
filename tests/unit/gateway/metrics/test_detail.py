"""The number of series per version at each level of detail, by metric; no level changes the counts."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest

from gateway.http.problems import FAILURES
from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.exposition import Declared, Numbers, respond
from gateway.metrics.observer import Observer
from gateway.metrics.variable_counts import Served
from gateway.objectives import Objective
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from tests.expositions import parse

MOST = 40
"""Series of a version that answers, per gateway, at the level that is the default (docs/metrics.md says what for)."""


def observer(*variables: MetricVariable, route: str = "stable") -> Observer:
    """Return an observer that has counted answers, batches and words of one text version."""
    found = Observer(failures=FAILURES, later=lambda call, _: call())
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
        trace.answer = {"label": "GOOD", "score": 0.9}
        found.started()
        found.finished(trace)
    found.text_calls("e", "1").called(2, 32, 20)
    return found


def shown(counted: Observer, brief: Declared | None) -> Counter[str]:
    """Return the number of samples of each metric of the version."""
    text = respond("", Numbers(counted.snapshot(), brief=brief))[0].decode()
    found: Counter[str] = Counter()
    for name, labels, _ in parse(text):
        if labels.get("endpoint") == "e":
            family = next(m.name for m in catalog.CATALOG if name == m.name or name.rsplit("_", 1)[0] == m.name)
            found[family] += 1
    return found


def test_a_version_that_answers_has_few_series() -> None:
    """Those that rules, alerts, autoscalers and objectives use by version."""
    found = shown(observer(), frozenset())
    assert {
        "gateway_requests_total": 1 + len(FAILURES), "gateway_request_duration_seconds": 10,
        "gateway_stage_duration_seconds": 8 + 3, "gateway_tokens_total": 1, "gateway_batch_rows": 2,
        "gateway_endpoint_ready": 1, "gateway_model_info": 1,
        "gateway_variable_enum_total": 3,
    } == found  # fmt: skip
    assert MOST >= found.total()


def test_a_canary_shows_the_failures_that_stable_answered_instead() -> None:
    """From the start (docs/metrics.md states both numbers)."""
    brief, full = (shown(observer(route="canary"), detail) for detail in (frozenset[tuple[str, str, str]](), None))
    assert {len(FAILURES)} == {found["gateway_canary_fallbacks_total"] for found in (brief, full)}
    assert [50, 230] == [found.total() for found in (brief, full)]


def test_a_latency_objective_adds_two_series() -> None:
    """Answers in time and late ones; endpoints without such an objective have none."""
    counted = observer()
    counted.promise({"": Objective(), "e": Objective(0.999, 0.3)})
    extra = shown(counted, frozenset()) - shown(observer(), frozenset())
    assert Counter(gateway_objective_answers_total=2, gateway_objective_ratio=2) == extra


def test_full_detail_is_everything_that_is_counted() -> None:
    found = shown(observer(), None)
    assert {"gateway_stage_duration_seconds": 92, "gateway_request_duration_seconds": 23} == {
        name: found[name] for name in ("gateway_stage_duration_seconds", "gateway_request_duration_seconds")
    }
    assert 200 < found.total()


def test_declared_variables_are_always_shown() -> None:
    """Built-in ones too, if they are declared."""
    counted = observer(MetricVariable("top_score", "scalar", ("0", "0.5", "1")), MetricVariable("mine", "value", ()))
    found = shown(counted, counted.watch.declared)
    assert 6 == found["gateway_variable_scalar"]
    assert 6 + 18 + 13 == shown(counted, None)["gateway_variable_scalar"]


def test_the_buckets_of_the_brief_level_add_up_to_those_of_the_full_one() -> None:
    """Buckets are cumulative, so leaving some out changes none of the others."""
    numbers = Accumulator()
    seconds = numbers.distribution(catalog.REQUEST_SECONDS, "e", "1", "stable")
    for value in (0.0004, 0.004, 0.03, 0.2, 0.7, 3, 60):
        seconds.observe((value,))

    def buckets(brief: Declared | None) -> dict[str, float]:
        text = respond("", Numbers(numbers.snapshot(), brief=brief))[0].decode()
        return {labels["le"]: value for name, labels, value in parse(text) if name.endswith("_bucket")}

    brief, full = buckets(frozenset()), buckets(None)
    assert 8 == len(brief)
    assert brief.items() <= full.items()
    assert all(low <= high for low, high in pairwise(brief.values()))


def test_what_the_brief_level_shows_is_some_of_what_is_counted() -> None:
    for metric in catalog.CATALOG:
        shown = metric.brief.values() if isinstance(metric.brief, Mapping) else [metric.brief or ()]
        assert all(set(buckets) <= set(metric.buckets) for buckets in shown), metric.name


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
@pytest.mark.parametrize("brief", [None, frozenset()])
def test_either_level_is_an_exposition(accept: str, brief: Declared | None) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
    from prometheus_client.parser import text_string_to_metric_families as plain

    text = respond(accept, Numbers(observer().snapshot(), brief=brief))[0].decode()
    families = list((openmetrics if accept else plain)(text))
    kinds = {family.name: family.type for family in families}
    assert ("summary" if brief is not None else "histogram") == kinds["gateway_batch_rows"]
    assert "histogram" == kinds["gateway_request_duration_seconds"]
