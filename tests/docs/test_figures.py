"""A figure in prose is one of a saved result: the file is named beside it, and says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.autoscale.sizing import gateway_micros
from benchmarks.questions import (
    alarms_beside_peers,
    alarms_of_drift,
    alarms_of_texts,
    cost_beside_another_commit,
    cost_beside_tei,
    cost_of_callers,
    cost_of_counting,
    cost_of_each_protocol,
    cost_of_observing,
    decisions_of_the_gate,
    failures_while_rolling,
    failures_while_scaling,
    goodput_over_offered_load,
    goodput_under_a_flood,
    load_of_hundreds_of_endpoints,
    neighbours_of_retrains,
    rollouts_on_real_servers,
    size_of_an_endpoint,
    throughput_by_price,
    waits_beside_batch_work,
    waits_on_real_gateways,
)
from benchmarks.shared.results import RESULTS, saved
from benchmarks.shared.statistics import ratio

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])


def _median(line: str) -> float:
    """The figure of a line of docs/benchmarks.md, which is held against the saved run by tests/unit/benchmarks."""
    found = re.search(rf"{re.escape(line)}: ([\d.]+) \(", (DOCS / "benchmarks.md").read_text())
    assert found is not None, line
    return float(found[1])


def _share_of_serve(*forms: str, digits: int) -> str:
    """From the cheapest to the dearest of these, over `/serve`, as `cost-of-each-protocol` prints them."""
    found = [
        ratio(list(zip(costs[form], costs[cost_of_each_protocol.BASE], strict=True))).median
        for costs in saved("protocols").values() for form in forms if form in costs
    ]  # fmt: skip
    return f"{min(found):.{digits}f} to {max(found):.{digits}f}"


CLAIMS: Final[dict[tuple[str, str], Callable[[], str]]] = {
    ("README.md", "clearml-serving with its leanest hook takes {} times as much"): lambda: (
        f"{_median('clearml-serving, leanest hook: CPU / gateway'):.1f}"
    ),
    ("README.md", "a KServe transformer {} times as much"): lambda: (
        f"{_median('KServe transformer: CPU / gateway'):.1f}"
    ),
    ("README.md", "the floor takes {} times as much CPU time as the gateway with short texts"): lambda: (
        f"{1 / _median('gateway: CPU / floor, 64 connections, short texts'):.1f}"
    ),
    ("README.md", "and {} times with long texts"): lambda: (
        f"{1 / _median('gateway: CPU / floor, 64 connections, long texts'):.1f}"
    ),
    ("README.md", "answer {} times as many requests as the leanest Triton ensemble"): lambda: (
        f"{_median('GPU-like, 256 connections: throughput / ensemble (tokenizers)'):.1f}"
    ),
    ("docs/sizing.md", "has {} µs per request on one core"): lambda: f"{gateway_micros():.0f}",
    ("docs/sizing.md", "for weights of {} MB"): lambda: f"{saved('endpoint')['weights_mb']:.0f}",
    ("docs/http-api.md", "Hugging Face and KServe v1 is {} times that of"): lambda: _share_of_serve(
        "openai", "huggingface", "kserve_v1", digits=2
    ),
    ("docs/http-api.md", "Open Inference Protocol over REST {} times"): lambda: _share_of_serve("oip", digits=2),
    ("docs/http-api.md", "Text Embeddings Inference {} times"): lambda: _share_of_serve(
        "tei_embed", "tei_predict", digits=2
    ),
    ("docs/drift.md", "a look of five seconds has {} texts"): lambda: (
        f"{max(one.get('texts_a_look', 0) for one in saved('drift'))}"
    ),
    ("docs/scaling.md", "Short texts: {} µs of CPU per request"): lambda: f"{gateway_micros():.0f}",
}
"""Page and words around a figure → what the saved result says."""


@pytest.mark.parametrize(("page", "words"), CLAIMS, ids=lambda value: value[:40])
def test_figures_in_prose_are_those_of_the_saved_results(page: str, words: str) -> None:
    """Word for word, wherever lines break."""
    text = " ".join((ROOT / page).read_text().split())
    assert words.format(CLAIMS[page, words]()) in text


def _if_saved(name: str, shown: Callable[[Any], str]) -> str:
    """A page shows nothing of a run that was not saved."""
    found = saved(name)
    return "" if found is None else shown(found)


TABLES: Final[dict[tuple[str, str], Callable[[], str]]] = {
    ("sizing.md", "endpoint"): lambda: size_of_an_endpoint.endpoint_table(saved("endpoint")),
    ("access.md", "callers"): lambda: cost_of_callers.shown(saved("callers")),
    ("overload.md", "batch"): lambda: waits_beside_batch_work.shown(saved("overload")),
    ("overload.md", "flood"): lambda: goodput_under_a_flood.shown(saved("overload")),
    ("overload.md", "open"): lambda: goodput_over_offered_load.shown(saved("overload")),
    ("overload.md", "real"): lambda: waits_on_real_gateways.shown(saved("overload")),
    ("drift.md", "alarms"): lambda: alarms_of_drift.shown(saved("drift")),
    ("drift.md", "texts"): lambda: alarms_of_texts.shown(saved("texts")),
    ("drift.md", "observing"): lambda: cost_of_observing.shown(saved("observing")),
    ("metrics.md", "counting"): lambda: cost_of_counting.shown(saved("counting")),
    ("tracing.md", "spans"): lambda: cost_of_observing.shown_spans(saved("observing")),
    ("drift.md", "peers"): lambda: alarms_beside_peers.shown(saved("drift-peers")),
    ("canary.md", "gate"): lambda: decisions_of_the_gate.shown(saved("gate")),
    ("canary.md", "neighbours"): lambda: neighbours_of_retrains.shown(saved("neighbours")),
    ("canary.md", "rollouts"): lambda: rollouts_on_real_servers.shown(
        saved("rollouts")["rollouts"], saved("rollouts-replayed")
    ),
    ("pools.md", "endpoints"): lambda: load_of_hundreds_of_endpoints.shown(saved("endpoints")),
    ("scaling.md", "real"): lambda: failures_while_scaling.shown(saved("scaling")),
    ("rolling.md", "rolling"): lambda: failures_while_rolling.shown(saved("rolling")),
    ("decisions/0025-one-request-path.md", "compare"): lambda: _if_saved("compare", cost_beside_another_commit.shown),
    ("decisions/0025-one-request-path.md", "tei"): lambda: _if_saved("tei", cost_beside_tei.shown),
    ("decisions/0028-one-batcher-learned-prices.md", "throughput"): lambda: _if_saved(
        "throughput", throughput_by_price.shown
    ),
}
"""Page and part → what the question that was asked writes there, with ``--save`` or ``--write-docs``."""


@pytest.mark.parametrize(("page", "part"), TABLES, ids=str)
def test_tables_of_pages_show_the_saved_runs(page: str, part: str) -> None:
    """Cell by cell."""
    found = re.search(rf"<!-- {part} -->\n(.*?)\n<!-- /{part} -->", (DOCS / page).read_text(), re.S)
    assert found is not None
    assert TABLES[page, part]().strip() == found[1].strip()


BROKEN: Final = {
    "one worker killed": "worker", "both workers killed": "workers", "the gateway's parent killed": "parent",
    "Triton killed": "triton", "Triton's launcher killed": "launcher",
    "both workers stopped (SIGSTOP)": "stopped-workers",
    "the gateway's parent stopped": "stopped-parent", "Triton stopped": "stopped-triton",
    "full disk, the gateway's parent killed": "full-parent",
}  # fmt: skip
"""Rows of operations.md and the trials that they show."""


@pytest.mark.parametrize("shown", BROKEN)
def test_what_is_broken_costs_what_the_saved_runs_say(shown: str) -> None:
    """Failed requests and the longest time without an answer, in every column that has them."""
    found = re.search(rf"^\| {re.escape(shown)} \| (.*) \|$", (DOCS / "operations.md").read_text(), re.M)
    assert found is not None
    compared = 0
    for cell, run in zip(found[1].split(" | "), ("after", "quiet"), strict=True):
        if figures := re.match(r"(\d+), (\d+(?:\.(\d))?) s", cell):
            (trial,) = (one for one in saved("recovery")[run] if one["trial"] == BROKEN[shown])
            gap = round(trial["longest_gap_s"], len(figures[3] or ""))
            assert (trial["failed"], gap) == (int(figures[1]), float(figures[2])), run
            compared += 1
    assert compared


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_results_that_pages_name_are_saved(page: Path) -> None:
    """A file that is named is there, and can be read."""
    for name in re.findall(r"`(?:benchmarks/)?results/([\w.-]+\.jsonl?)`", page.read_text()):
        found: list[Any] = (
            [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]
            if name.endswith("l")
            else [json.loads((RESULTS / name).read_text())]
        )
        assert found, name
