"""A figure in prose is one of a saved result: the file is named beside it, and says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.autoscale.sizing import gateway_micros
from benchmarks.questions import size_of_an_endpoint
from benchmarks.shared.results import RESULTS, saved

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])


def _median(line: str) -> float:
    """The figure of a line of docs/benchmarks.md, which is held against the saved run by tests/unit/benchmarks."""
    found = re.search(rf"{re.escape(line)}: ([\d.]+) \(", (DOCS / "benchmarks.md").read_text())
    assert found is not None, line
    return float(found[1])


CLAIMS: Final[dict[tuple[str, str], Callable[[], str]]] = {
    ("README.md", "clearml-serving with the leanest hook takes {} times ours"): lambda: (
        f"{_median('clearml-serving, leanest hook: CPU / gateway'):.1f}"
    ),
    ("README.md", "a KServe transformer {} times"): lambda: f"{_median('KServe transformer: CPU / gateway'):.1f}",
    ("README.md", "takes {} times ours with short texts"): lambda: (
        f"{1 / _median('gateway: CPU / floor, 64 connections, short texts'):.1f}"
    ),
    ("README.md", "and {} times with long ones"): lambda: (
        f"{1 / _median('gateway: CPU / floor, 64 connections, long texts'):.1f}"
    ),
    ("README.md", "answer {} times as many requests as the leanest Triton ensemble"): lambda: (
        f"{_median('GPU-like, 256 connections: throughput / ensemble (tokenizers)'):.1f}"
    ),
    ("docs/sizing.md", "has {} µs per request on one core"): lambda: f"{gateway_micros():.0f}",
    ("docs/sizing.md", "for weights of {} MB"): lambda: f"{saved('endpoint')['weights_mb']:.0f}",
}
"""Page and words around a figure → what the saved result says."""


@pytest.mark.parametrize(("page", "words"), CLAIMS, ids=lambda value: value[:40])
def test_figures_in_prose_are_those_of_the_saved_results(page: str, words: str) -> None:
    """Word for word, wherever lines break."""
    text = " ".join((ROOT / page).read_text().split())
    assert words.format(CLAIMS[page, words]()) in text


def test_table_of_sizing_shows_the_saved_run() -> None:
    """`python -m benchmarks size-of-an-endpoint --write-docs` writes it."""
    shown = (DOCS / "sizing.md").read_text()
    assert f"<!-- endpoint -->\n{size_of_an_endpoint.endpoint_table(saved('endpoint'))}\n<!-- /endpoint -->" in shown


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
