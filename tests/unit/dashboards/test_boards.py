"""The boards: current, complete, importable, and each panel says what it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from dashboards import boards, rules
from dashboards.boards import ANNOTATIONS, BOARDS
from dashboards.panels import Board
from gateway.metrics.catalog import CATALOG, CONTROLLER_LEADS, JUDGED
from tests.kube_tools import EVERY_RULE, RECORDS

TRITON_METRICS = (
    "nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count", "nv_inference_exec_count",
    "nv_inference_request_duration_us", "nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us",
    "nv_inference_pending_request_count", "nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_cpu_utilization",
    "nv_cpu_memory_used_bytes",
)  # fmt: skip
"""Triton's own metrics that boards and rules name."""


def expressions() -> dict[str, str]:
    """Every expression of a board by where it stands."""
    found = {
        f"{board.title}: {panel.title} {i}": query.expr
        for board in BOARDS
        for panel in board.panels()
        for i, query in enumerate(panel.queries)
    }
    return found | {f"annotation {name}": expr for name, expr, _ in ANNOTATIONS}


def families(expr: str) -> set[str]:
    """Names of metrics in an expression, without what histograms add; recorded names stand for themselves."""
    known = {m.name for m in (*CATALOG, *JUDGED)}
    named = set(
        re.findall(
            r"\b(?:(?:gateway|controller)_[a-z0-9_]+|nv_[a-z_]+|process_[a-z_]+)\b(?!:)",
            re.sub(r"\b\w+:\w+:\w+", "", expr),
        )
    )
    return {re.sub(r"_(bucket|sum|count)$", "", n) if n.startswith("gateway_") and n not in known else n for n in named}


def test_committed_boards_are_what_is_generated() -> None:
    """`python -m dashboards` writes them."""
    assert boards.files() == {path.name: path.read_text() for path in (rules.FILES / "boards").iterdir()}


def test_boards_and_rules_name_metrics_of_the_catalogue_only() -> None:
    """And recorded ones, each recorded once, and Triton's that are listed."""
    known = (
        {m.name for m in (*CATALOG, *JUDGED, CONTROLLER_LEADS)} | set(TRITON_METRICS) | {"process_cpu_seconds_total"}
    )
    of_rules = {str(rule): rule["expr"] for rule in EVERY_RULE}
    for place, expr in (expressions() | of_rules).items():
        assert set() == families(expr) - known, place
        assert set() == set(re.findall(r"\b\w+:\w+:\w+", expr)) - {*RECORDS}, place
    assert len(RECORDS) == sum("record" in rule for rule in EVERY_RULE)


def test_every_metric_of_the_catalogue_is_on_a_board() -> None:
    """Directly, or as a recording rule computes it: what is worth counting is worth seeing."""
    left, seen = list(expressions().values()), set()
    shown: set[str] = set()
    while left:
        expr = left.pop()
        shown |= families(expr)
        named = {name for name in RECORDS if name in expr} - seen
        seen |= named
        left += [RECORDS[name] for name in named]
    assert [] == sorted({m.name for m in (*CATALOG, *JUDGED)} - shown)


@pytest.mark.parametrize("board", BOARDS, ids=lambda b: b.uid)
def test_each_panel_has_legends_of_labels_that_are_there(board: Board) -> None:
    """Those that the expression keeps. No two panels of a board have one title, and none overlap."""
    labels = {metric.name: {*metric.labels, "le"} for metric in (*CATALOG, *JUDGED)}
    titles = [panel.title for panel in board.panels()]
    assert len(titles) == len(set(titles))
    for panel in board.panels():
        assert panel.kind not in ("lines", "stacked") or all(query.legend for query in panel.queries), panel.title
        for query in panel.queries:
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"(?:by|on) \(([^)]*)\)", query.expr))))
            for recorded in re.findall(r"\b(\w+):\w+:\w+", query.expr):
                kept |= set(recorded.split("_"))
            if " by (" not in query.expr:
                kept |= {"instance", "gpu_uuid"}.union(*(labels.get(n, set()) for n in families(query.expr)))
            assert set(re.findall(r"{{(\w+)}}", query.legend)) <= kept, f"{panel.title}: {query.legend}"
    content: dict[str, Any] = json.loads(boards.files()[f"{board.uid.removeprefix('triton-gateway-')}.json"])
    cells = [
        (x, y)
        for p in content["panels"]
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    assert (len(cells), True) == (len(set(cells)), max(x for x, _ in cells) < 24)
    assert content["uid"] == board.uid


def asked(board: Board, title: str, query: int = 0) -> str:
    """An expression of a panel, as Grafana asks it with everything chosen."""
    (panel,) = [panel for panel in board.panels() if panel.title == title]
    expr = panel.queries[query].expr.replace("$__rate_interval", "5m")
    return re.sub(r"\$(endpoint|version|variable|model|pool)", ".*", expr)


def test_panels_are_right_where_a_plain_ratio_is_wrong(evaluate: Callable[..., None]) -> None:
    """Versions that never agree, endpoints with versions of one name, a gateway that idles: each has its own number."""
    of = 'job="triton-gateway",instance="i"'
    evaluate(
        {
            f'gateway_shadow_requests_total{{{of},endpoint="e",version="2",outcome="agreed"}}': "0x60",
            f'gateway_shadow_requests_total{{{of},endpoint="e",version="2",outcome="differed"}}': "0+60x60",
            **{
                f'gateway_variable_enum_total{{{of},endpoint="{name}",version="1",variable="predicted_label",'
                f'value="{value}"}}': f"0+{step}x60"
                for name, shares in (("e", {"GOOD": 30, "BAD": 10}), ("f", {"GOOD": 10, "BAD": 10}))
                for value, step in shares.items()
            },
            f"process_cpu_seconds_total{{{of}}}": "0+1x60",
            f'gateway_requests_total{{{of},endpoint="e",version="1",outcome="ok",route="direct"}}': "500x60",
        },
        promql_expr_test=[
            {"expr": asked(boards.CANARY, "Agreement"), "eval_time": "30m",
             "exp_samples": [{"labels": '{endpoint="e",version="2"}', "value": 0}]},
            {"expr": f'round(100 * ({asked(boards.CANARY, "Labels by version")}))', "eval_time": "30m", "exp_samples": [
                {"labels": f'{{endpoint="{name}",version="1",value="{value}"}}', "value": share}
                for name, value, share in (("e", "BAD", 25), ("e", "GOOD", 75), ("f", "BAD", 50), ("f", "GOOD", 50))
            ]},
            {"expr": asked(boards.CAPACITY, "CPU per request"), "eval_time": "30m", "exp_samples": []},
        ],
    )  # fmt: skip
