"""The counts of a rollout, from the gateways' own metrics."""

from __future__ import annotations

import pytest

from deploy.controller.counters import Reading, grown, parse
from deploy.controller.rollouts.counts import Counts, between


def text(name: str, label: str, counted: dict[str, float], **more: str) -> str:
    """Return the samples of a metric of e/2, by the values of a label."""
    rest = "".join(f',{key}="{value}"' for key, value in more.items())
    return "".join(f'{name}{{endpoint="e",version="2",{label}="{of}"{rest}}} {n}\n' for of, n in counted.items())


OUTCOMES = ("ok", "input_refused", "client_gone", "overloaded", "hook_failed", "deadline_exceeded")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(
            text("gateway_requests_total", "outcome", dict.fromkeys(OUTCOMES, 10), route="canary"), Counts(30, 20),
            id="only 5xx answers of the version are failures; client errors do not even count as requests",
        ),
        pytest.param(
            text("gateway_request_duration_seconds_bucket", "le", {"0.01": 70, "0.1": 98, "+Inf": 100}, route="canary"),
            Counts(timed=100, slower={0.01: 30, 0.1: 2}), id="Prometheus counts faster answers, the gate slower ones",
        ),
        pytest.param(
            text("gateway_variable_enum_total", "value", {"good": 30, 'a}, \\"b': 2}, variable="predicted_label")
            + text("gateway_variable_enum_total", "value", {"good": 9}, variable="other"),
            Counts(labels={"GOOD": 30, 'a}, "b': 2}), id="labels by what they mean; they may be any text",
        ),
        pytest.param(
            text("gateway_canary_fallbacks_total", "outcome", {"model_failed": 4, "overloaded": 50})
            + text("gateway_shadow_requests_total", "outcome", {"agreed": 3, "differed": 9, "failed": 1, "dropped": 7}),
            Counts(4, 4, pairs=(3, 10), mirror_failures=1),
            id="a canary for which stable answered, and mirrored requests; what it had no room for says nothing",
        ),
    ],
)  # fmt: skip
def test_what_gateways_count_of_a_canary(samples: str, expected: Counts) -> None:
    """Of another version or route, nothing."""
    others = samples.replace('version="2"', 'version="3"') + 'gateway_requests_total{endpoint="e",outcome="ok"} 1\n'
    counted = grown(Reading({"g": parse("")}), Reading({"g": parse(samples + others)}))
    assert expected == between(counted, ("e", "2"), "canary", {"good": "GOOD"})
