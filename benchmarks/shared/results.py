"""Saved results, and the parts of pages that are generated from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared.command import ROOT

RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"


def save(name: str, found: Any) -> Path:
    """Save a result as ``results/NAME.json``."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return path


def saved(name: str) -> Any:
    """Return a saved result, None if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(rows: Sequence[Sequence[str]], *, align: Sequence[str] = ()) -> str:
    """Return rows as a Markdown table; the first is its header. ``align``: ``---`` or ``---:`` of each column."""
    rules = align or ["---"] * len(rows[0])
    return "\n".join(
        [f"| {' | '.join(rows[0])} |", f"|{'|'.join(rules)}|", *(f"| {' | '.join(row)} |" for row in rows[1:])]
    )


def interval(ratio: Mapping[str, float]) -> str:
    """Return a saved ratio with its interval."""
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def rounds_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many rounds the cells of a table had, fewest and most."""
    rounds = sorted({row["rounds"] for row in rows})
    return f"{' to '.join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))} rounds"


def put(page: Path, part: str, text: str) -> None:
    """Write the part of a page between ``<!-- part -->`` and ``<!-- /part -->``. Raises ``ValueError`` if there is
    none.
    """
    before, begin, rest = page.read_text().partition(f"<!-- {part} -->\n")
    _, end, after = rest.partition(f"<!-- /{part} -->")
    if not begin or not end:
        raise ValueError(f"{page} has no part {part}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}")
