"""``python -m benchmarks pages``: writes the documentation's parts that show saved results."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from benchmarks.peers.report import PLOTS, markdown
from benchmarks.questions import signals_of_autoscaling
from benchmarks.shared.results import DOCS, IMAGES, saved

PEERS = DOCS / "benchmarks.md"


def peers() -> str:
    """Return the page of the run that it names. Raises ``ValueError`` if that run is not saved."""
    named = re.search(r"`benchmarks/results/(.+)\.json`", PEERS.read_text())
    if named is None or (run := saved(named[1])) is None:
        raise ValueError(f"{PEERS} names no saved run")
    images = [name for name in PLOTS if (IMAGES / f"benchmark-{name}.png").exists()]
    return markdown(run, name=named[1], images=images)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages."""
    del argv
    PEERS.write_text(peers())
    if (found := saved("autoscale")) is not None:
        signals_of_autoscaling.write(found)
    sys.stdout.write(f"{PEERS}\n{signals_of_autoscaling.PAGE}\n")
    return 0
