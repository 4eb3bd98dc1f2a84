"""What an observer counts: correct histograms, every request once; and how many series there are."""

from __future__ import annotations

import pytest

from gateway.errors import STATUS
from gateway.http.problems import FAILURES
from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.feedback import MAX_LABELS, MAX_VERSIONS, FeedbackCounts
from gateway.metrics.observer import Observer
from gateway.metrics.views import Views
from gateway.metrics.watch import Served
from gateway.objectives import Objective
from gateway.trace import Trace
from tests import expositions
from tests.expositions import counted


def trace(total_ns: int = 2_000_000, outcome: str = "ok") -> Trace:
    """A finished trace."""
    made = Trace("id")
    made.endpoint, made.version, made.route = "e", "1", "direct"
    made.outcome, made.total_ns, made.rows = outcome, total_ns, 1
    return made


def samples(observer: Observer) -> dict[tuple[str, ...], float]:
    """Every sample by name and labels other than endpoint, version and route."""
    return {
        (name, *(labels[key] for key in sorted(labels.keys() - {"endpoint", "version", "route"}))): round(value, 9)
        for name, labels, value in expositions.parse(expositions.render(observer.snapshot()).decode())
    }


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
    found = samples(observer)
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
    found = samples(observer)
    assert [1.0] == [v for (name, *_), v in found.items() if name == "gateway_requests_total"]
    assert (outcome == "ok") == (found.get(("gateway_request_duration_seconds_count",)) == 1)
    assert 0.0 == found["gateway_requests_in_flight",]


def test_waiting_for_the_cpu_is_the_loops_lateness_times_the_requests_that_began() -> None:
    """Twice the lateness of a timer: half a round until this one ends, half for the place in the next."""
    observer = Observer()

    def value() -> float:
        return samples(observer)["gateway_cpu_wait_seconds_total",]

    observer.waited(0.5)
    assert 0 == value()
    for _ in range(10):
        observer.started()
    observer.waited(0.02)
    assert pytest.approx(0.4) == value()
    observer.waited(0.02)
    observer.waited(-0.001)
    assert pytest.approx(0.4) == value()


def test_what_cannot_be_counted_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with the numbers of an answer: the request goes on."""
    observer = Observer()
    monkeypatch.setattr(observer.watch, "answered", lambda *_: 1 / 0)
    for _ in range(40):
        observer.started()
        observer.finished(trace())
    assert 0 == samples(observer)["gateway_requests_in_flight",]


def test_labels_and_versions_beyond_the_first_are_counted_together() -> None:
    """Right and wrong ones are still distinguished; versions that have series keep them, other endpoints their own."""
    numbers = Accumulator()
    counts = FeedbackCounts(numbers)
    for n in range(100):
        for label in (f"l{n}", "a", f"l{n + 1}"):
            counts.add("e", "1", f"l{n}", label, known=("a", "b"))
    pairs = counted(numbers.snapshot(), catalog.FEEDBACK)
    assert len({value for _, _, *pair in pairs for value in pair}) <= MAX_LABELS + 2
    right = sum(n for (_, _, predicted, label), n in pairs.items() if predicted == label)
    assert (100, 300) == (right, sum(pairs.values()))
    for endpoint in ("f", "g"):
        for version in (*range(3 * MAX_VERSIONS), 3):
            counts.add(endpoint, str(version), "a", "a")
    found = {of: n for of, n in counted(numbers.snapshot(), catalog.FEEDBACK).items() if of[0] == "f"}
    assert MAX_VERSIONS + 1 == len(found)
    assert (2, 2 * MAX_VERSIONS) == (found["f", "3", "a", "a"], found["f", "other", "a", "a"])


def test_failures_of_a_canary_and_promised_times_are_counted_from_the_start() -> None:
    """At 0; then, of two answers, one is in time and one is late."""
    observer = Observer(failures=FAILURES)
    observer.watch.configure({"e/1": Served("e", "1")}, {}, 1.0)
    observer.expect([("e", "1", "canary")])
    observer.promise({"": Objective(), "e": Objective(0.999, 0.3)})
    assert len(FAILURES) == sum(name == "gateway_canary_fallbacks_total" for name, *_ in samples(observer))
    for times in ((), (7, 700)):
        for ms in times:
            observer.finished(trace(total_ns=ms * 1_000_000))
        answers = [value for (name, *_), value in samples(observer).items() if "objective_answers" in name]
        assert [len(times) / 2] * 2 == answers
