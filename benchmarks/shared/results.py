"""Saved results, and the parts of pages that are generated from them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared import machine
from benchmarks.shared.command import ROOT

RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"


def facts_of(rounds: int) -> dict[str, Any]:
    """Return what every saved result says of itself: date, commit, machine, and how often each figure was measured."""
    return {
        "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": _commit(), "cpu": machine.cpu_model(),
        "cores": os.cpu_count(), "load_average": os.getloadavg(), "rounds": rounds,
    }  # fmt: skip


def _commit() -> str:
    """Return this checkout's short hash, marked if its measured packages have uncommitted changes."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "gateway", "preprocessing", "deploy")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with uncommitted changes" if changed else "")


def save(name: str, found: Any) -> Path:
    """Save a result as ``results/NAME.json``; its ``facts`` are those of ``facts_of``."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return path


def saved(name: str) -> Any:
    """Return a saved result, None if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def published() -> tuple[str, Any]:
    """Return the run that ``docs/benchmarks.md`` shows, with its name. Raises ``ValueError`` if it is not saved."""
    named = re.search(r"`benchmarks/results/(.+)\.json`", (DOCS / "benchmarks.md").read_text())
    if named is None or (run := saved(named[1])) is None:
        raise ValueError("docs/benchmarks.md names no saved run: python -m benchmarks --write-docs")
    return named[1], run


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
