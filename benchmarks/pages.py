"""``python -m benchmarks pages``: writes the documentation's parts that show saved results."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.peers.report import markdown
from benchmarks.questions import signals_of_autoscaling
from benchmarks.shared.results import DOCS, published, put, saved

PEERS = DOCS / "benchmarks.md"


def peers() -> str:
    """Return the part of the page that shows the run which it names."""
    name, run = published()
    return markdown(run, name=name)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages."""
    del argv
    put(PEERS, "peers", peers())
    signals_of_autoscaling.write(saved("autoscale"))
    sys.stdout.write(f"{PEERS}\n")
    return 0
