"""The number of series per version: what docs/metrics.md says."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.http.problems import FAILURES
from gateway.metrics import catalog
from gateway.metrics.observer import Observer
from gateway.metrics.watch import Served
from gateway.objectives import Objective
from gateway.trace import Trace
from tests import expositions

ALWAYS = {
    "gateway_requests_total": 1 + len(FAILURES), "gateway_request_duration_seconds": 23,
    "gateway_stage_duration_seconds": 4 * 13, "gateway_tokens_total": 1, "gateway_truncated_texts_total": 1,
    "gateway_request_rows": 2, "gateway_batch_rows": 11, "gateway_batch_padded_tokens": 2,
    "gateway_batch_tokens_total": 1, "gateway_variable_scalar": 18, "gateway_variable_enum_total": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("route", "objectives", "more"),
    [
        ("stable", {}, {}),
        ("canary", {}, {"gateway_canary_fallbacks_total": len(FAILURES)}),
        ("stable", {"": Objective(), "e": Objective(0.999, 0.3)},
         {"gateway_objective_answers_total": 2, "gateway_objective_ratio": 2}),
    ],
)  # fmt: skip
def test_a_version_that_answers_has_so_many_series(
    route: str, objectives: dict[str, Objective], more: dict[str, int]
) -> None:
    """A canary those of the failures that stable answered instead, from the start; a promised time adds two."""
    observer = Observer(failures=FAILURES)
    observer.watch.configure({"e/1": Served("e", "1", is_text=True, labels=("GOOD", "BAD"))}, {}, 1.0)
    observer.expect([("e", "1", route)])
    observer.promise(objectives)
    for ms in (7, 700):
        trace = Trace("r")
        trace.endpoint, trace.version, trace.route, trace.outcome, trace.url = "e", "1", route, "ok", "e/1"
        trace.total_ns, trace.rows, trace.answer = ms * 1_000_000, 1, {"label": "GOOD", "score": 0.9}
        observer.finished(trace)
    observer.called("e", "1", 2, 32, 20)
    found = Counter[str]()
    for name, labels, value in expositions.parse(expositions.render(observer.snapshot()).decode()):
        if labels.get("endpoint") == "e":
            found[next(m.name for m in catalog.CATALOG if name == m.name or name.rsplit("_", 1)[0] == m.name)] += 1
            assert "objective_answers" not in name or value == 1, "one is in time, one is late"
    assert {**ALWAYS, **more} == found
