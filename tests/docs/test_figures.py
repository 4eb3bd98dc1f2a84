"""A figure in prose is one of a saved result: the file is named beside it, and says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from benchmarks import pages
from benchmarks.questions import (
    cost_beside_tei,
    cost_of_observing,
    goodput_over_offered_load,
    signals_of_autoscaling,
    size_of_an_endpoint,
)
from benchmarks.shared.results import RESULTS, saved

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])


TABLES: Final[dict[tuple[str, str], Callable[[], str]]] = {
    ("kubernetes.md", "endpoint"): lambda: size_of_an_endpoint.endpoint_table(saved("endpoint")),
    ("benchmarks.md", "open"): lambda: goodput_over_offered_load.shown(saved("overload")),
    ("drift.md", "observing"): lambda: cost_of_observing.shown(saved("observing")),
    ("benchmarks.md", "spans"): lambda: cost_of_observing.shown_spans(saved("observing")),
    ("../README.md", "tei"): lambda: cost_beside_tei.shown(saved("tei")),
    ("benchmarks.md", "peers"): pages.peers,
    ("benchmarks.md", "signals"): lambda: signals_of_autoscaling.signals_table(saved("autoscale")["runs"]),
}
"""Page and part → what the question that was asked writes there, with ``--save`` or ``--write-docs``."""


@pytest.mark.parametrize(("page", "part"), TABLES, ids=str)
def test_tables_of_pages_show_the_saved_runs(page: str, part: str) -> None:
    """Cell by cell."""
    found = re.search(rf"<!-- {part} -->\n(.*?)\n<!-- /{part} -->", (DOCS / page).read_text(), re.S)
    assert found is not None
    assert TABLES[page, part]().strip() == found[1].strip()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_saved_results_say_when_where_of_what_and_how_often(path: Path) -> None:
    """Date, commit, machine and rounds."""
    found = json.loads(path.read_text())
    facts = found.get("open", found)["facts"]
    assert {"began", "commit", "rounds"} <= {*facts}
    assert {"cpu", "device"} & {*facts}
