"""What an observer counts: correct histograms, every request once, the same sums with many workers."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import STATUS
from gateway.metrics import catalog
from gateway.metrics.observer import Observer
from gateway.metrics.views import Views
from gateway.trace import Trace
from tests import expositions


def trace(total_ns: int = 2_000_000, outcome: str = "ok") -> Trace:
    """A finished trace."""
    made = Trace("id")
    made.endpoint, made.version, made.route, made.outcome, made.total_ns, made.rows = (
        "e",
        "1",
        "direct",
        outcome,
        total_ns,
        1,
    )
    return made


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and sorted labels."""
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text.decode())
        for s in family.samples
    }


def test_names_follow_the_conventions() -> None:
    """Base units, `_total` on counters, no colons, help for each, unique."""
    assert len({m.name for m in catalog.CATALOG}) == len(catalog.CATALOG)
    for metric in catalog.CATALOG:
        assert metric.name.startswith("gateway_")
        assert ":" not in metric.name
        assert metric.help.endswith(".") or metric.help.endswith("waste.")
        assert metric.name.endswith("_total") == (metric.type == "counter")
        assert bool(metric.buckets) == (metric.type == "histogram")


def test_what_a_request_and_its_call_leave() -> None:
    """The times of its stages, rows, tokens and truncated texts; rows and tokens of the call.

    The statistics of the Open Inference Protocol say the same.
    """
    observer = Observer()
    for rows in (1, 3):
        made = trace()
        made.rows, made.tokens, made.truncated = rows, 10 * rows, rows - 1
        made.prepare_ns, made.queue_ns, made.infer_ns, made.finish_ns = 1_000_000, 2_000_000, 40_000_000, 8_000_000
        observer.started()
        observer.finished(made)
    observer.called("e", "1", 4, 64, 40)
    for is_hit in (True, False, True):
        observer.cached("e", "1", is_hit)
    found = {
        (name, *(value for label, value in labels if label not in ("endpoint", "version", "route"))): round(value, 9)
        for (name, labels), value in samples(expositions.render(observer.snapshot())).items()
    }
    stages = {"prepare": 0.002, "queue": 0.004, "infer": 0.08, "finish": 0.016}
    assert stages == {stage: found["gateway_stage_duration_seconds_sum", stage] for stage in stages}
    assert (2, 4) == tuple(found[f"gateway_request_rows_{of}",] for of in ("count", "sum"))
    assert (40, 2) == (found["gateway_tokens_total",], found["gateway_truncated_texts_total",])
    assert (1, 4) == tuple(found[f"gateway_batch_rows_{of}",] for of in ("count", "sum"))
    assert (64, 40) == (found["gateway_batch_padded_tokens_sum",], found["gateway_batch_tokens_total",])
    assert (2, 1) == tuple(found["gateway_cache_requests_total", result] for result in ("hit", "miss"))
    observer.finished(trace(outcome="model_failed"))
    (row,) = Views(()).statistics(observer.snapshot())
    assert ("e", "1", 4, 1) == tuple(row[n] for n in ("name", "version", "inference_count", "execution_count"))
    times = {
        "success": (2, 4_000_000), "fail": (1, 0), "queue": (2, 4_000_000), "compute_input": (2, 2_000_000),
        "compute_infer": (2, 80_000_000), "compute_output": (2, 16_000_000),
    }  # fmt: skip
    assert times == {
        name: (row["inference_stats"][name]["count"], row["inference_stats"][name]["ns"]) for name in times
    }


@pytest.mark.parametrize("outcome", ["ok", *sorted(STATUS)])
def test_every_outcome_is_counted_once(outcome: str) -> None:
    """Refusals, failures, disconnects: one request, a time only of answers, nothing left in flight."""
    observer = Observer()
    observer.started()
    observer.finished(trace(outcome=outcome))
    found = samples(expositions.render(observer.snapshot()))
    assert [1.0] == [v for (name, _), v in found.items() if name == "gateway_requests_total"]
    timed = [v for (name, _), v in found.items() if name == "gateway_request_duration_seconds_count"]
    assert [1.0] * (outcome == "ok") == timed
    assert 0.0 == found["gateway_requests_in_flight", ()]


def test_labels_are_bounded_whatever_clients_send() -> None:
    """A thousand invented paths and headers are one series; label values come from the configuration."""
    observer = Observer()
    for i in range(1000):
        made = Trace(f"request-{i}")
        made.body, made.outcome = {"text": f"{i}"}, "endpoint_not_found"
        made.url = ""
        observer.started()
        observer.finished(made)
    found = samples(expositions.render(observer.snapshot()))
    assert [1000.0] == [v for (name, _), v in found.items() if name == "gateway_requests_total"]
    assert len(found) < 60


def test_waiting_for_the_cpu_is_the_loops_lateness_times_the_requests_that_began() -> None:
    """Twice the lateness of a timer: half a round until this one ends, half for the place in the next."""
    observer = Observer()

    def value() -> float:
        return samples(expositions.render(observer.snapshot()))["gateway_cpu_wait_seconds_total", ()]

    observer.waited(0.5)
    assert 0 == value()
    for _ in range(10):
        observer.started()
    observer.waited(0.02)
    assert pytest.approx(0.4) == value()
    observer.waited(0.02)
    observer.waited(-0.001)
    assert pytest.approx(0.4) == value()


@pytest.mark.parametrize(("answers", "body_bytes", "kept"), [(15, 0, 15), (16, 0, 0), (1, 64 << 10, 0)])
def test_answers_are_counted_together_and_no_large_body_is_kept(answers: int, body_bytes: int, kept: int) -> None:
    """Counted one by one, each would cost more. A reader does not wait for that."""
    observer = Observer()
    for _ in range(answers):
        made = trace()
        made.body_bytes = body_bytes
        observer.finished(made)
    assert kept == len(observer._waiting)
    key = catalog.REQUESTS.name, (("endpoint", "e"), ("outcome", "ok"), ("route", "direct"), ("version", "1"))
    assert answers == samples(expositions.render(observer.snapshot()))[key]


def test_what_cannot_be_counted_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with the numbers of an answer: told once in a while, and the request goes on."""
    observer = Observer()

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(observer.watch, "answered", fail)
    for _ in range(40):
        observer.started()
        observer.finished(trace())
    assert observer._begun == observer._ended
    assert 1 == len(caplog.records)


def test_failure_series_exist_before_the_first_failure() -> None:
    """At 0, for every version and route that can be asked: Prometheus sees growth, not births."""
    observer = Observer(failures=("model_failed", "overloaded"))
    observer.expect([("e", "1", "direct"), ("e", "2", "canary")])
    observer.expect([("e", "1", "direct")])
    series = [(name, dict(at), value) for (name, at), value in samples(expositions.render(observer.snapshot())).items()]
    counted = {at["version"] + at["outcome"] for name, at, _ in series if name == catalog.REQUESTS.name}
    assert {f"{version}{outcome}" for version in "12" for outcome in ("model_failed", "overloaded")} == counted
    assert ["2", "2"] == [at["version"] for name, at, _ in series if name == catalog.FALLBACKS.name]
    assert {0.0} == {value for name, _, value in series if name in (catalog.REQUESTS.name, catalog.FALLBACKS.name)}


def test_a_triton_that_nothing_needs_any_more_has_no_number() -> None:
    """Neither up nor down: nobody is to be woken for it."""
    observer = Observer()
    observer.show(catalog.BACKEND_UP, {("t:8001", "default"): True, ("u:8001", "default"): False})
    observer.show(catalog.BACKEND_UP, {("t:8001", "default"): False})
    found = {
        dict(at)["backend"]: value
        for (name, at), value in samples(expositions.render(observer.snapshot())).items()
        if name == catalog.BACKEND_UP.name
    }
    assert 0 == found["t:8001"]
    assert math.isnan(found["u:8001"])
