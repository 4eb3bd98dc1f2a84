"""The counts of a rollout, from the gateways' own metrics."""

from __future__ import annotations

from deploy.controller.counters import Reading, grown, parse
from deploy.controller.rollouts.counts import Counts, between


def _reading(text: str) -> Reading:
    return Reading({"g": parse(text)})


def test_callers_mistakes_and_full_gateways_are_nobodys_failure() -> None:
    """Only 5xx answers of the version count as failures; client errors do not even count as requests."""
    text = "".join(
        f'gateway_requests_total{{endpoint="e",outcome="{outcome}",route="canary",version="2"}} 10\n'
        for outcome in ("ok", "input_refused", "client_gone", "overloaded", "hook_failed", "deadline_exceeded")
    )
    found = between(grown(_reading(""), _reading(text)), ("e", "2"), "canary")
    assert (30, 20) == (found.requests, found.failures)


def test_latency_buckets_become_counts_of_slower_answers() -> None:
    """Prometheus counts faster answers, the gate needs slower ones."""
    labels = 'endpoint="e",route="stable",version="1"'
    text = "".join(
        f'gateway_request_duration_seconds_bucket{{{labels},le="{le}"}} {n}\n'
        for le, n in (("0.01", 70), ("0.1", 98), ("+Inf", 100))
    )
    found = between(grown(_reading(""), _reading(text)), ("e", "1"), "stable")
    assert Counts(0, 0, 100, {0.01: 30, 0.1: 2}) == found


def test_what_versions_answer_is_counted_by_value() -> None:
    """Only the label counts; values may be any text."""

    def text(good, odd):
        labels = 'endpoint="e",version="2",variable'
        return (
            f'gateway_variable_enum_total{{{labels}="predicted_label",value="good"}} {good}\n'
            f'gateway_variable_enum_total{{{labels}="predicted_label",value="a}}, \\"b"}} {odd}\n'
            f'gateway_variable_enum_total{{{labels}="other",value="good"}} {good}\n'
        )

    counted = grown(_reading(text(10.0, 1.0)), _reading(text(40.0, 3.0)))
    assert {"good": 30, 'a}, "b': 2} == between(counted, ("e", "2"), "canary").labels


def test_a_canary_for_which_stable_answered_and_its_mirrored_requests_are_its_own() -> None:
    """In the totals they are stable's requests. What it had no room for, or was dropped, says nothing."""
    counted = {
        "gateway_canary_fallbacks_total": {"model_failed": 4, "overloaded": 50},
        "gateway_shadow_requests_total": {"agreed": 30, "differed": 9, "failed": 1, "dropped": 5_000},
    }
    text = "".join(
        f'{name}{{endpoint="e",outcome="{outcome}",version="2"}} {n}\n'
        for name, outcomes in counted.items() for outcome, n in outcomes.items()
    )  # fmt: skip
    found = between(grown(_reading(""), _reading(text)), ("e", "2"), "canary")
    assert Counts(4, 4, pairs=(30, 10), mirror_failures=1) == found
