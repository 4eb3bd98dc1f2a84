"""What does a request cost in front of Triton, here and with clearml-serving, KServe and Triton's ensembles?

The same work is sent to the gateway and to its peers, in one run on one machine. ``--quick`` shows the main ratios.
Every cell is saved as soon as it is measured: the same command with ``--name NAME`` continues an interrupted run.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import plan
from benchmarks.peers.report import report
from benchmarks.peers.run import run
from benchmarks.peers.systems import NotAvailable
from benchmarks.shared.command import STATE, narrator, parser
from tests.processes import ServerFailed

TAKES = "45 minutes; --quick: 10"
SAVES = "results/NAME.json, docs/benchmarks.md (--write-docs)"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--state-dir", type=Path, default=STATE, help="folder for files kept between runs")
    arguments.add_argument("--quick", action="store_true", help="the main ratios in a few minutes")
    arguments.add_argument("--name", default="", help="name of the run; an unfinished one is continued")
    for part in ("backend", "system", "texts"):
        arguments.add_argument(f"--{part}", action="append", default=[], help="only this one; may be repeated")
    arguments.add_argument(
        "--connections", action="append", type=int, default=[], help="only this number; may be repeated"
    )
    arguments.add_argument("--rounds", type=int, default=0, help="rounds of every cell")
    arguments.add_argument("--seconds", type=float, default=0.0, help="seconds of every cell")
    arguments.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md")
    options = arguments.parse_args(given)
    state, say = options.state_dir.absolute(), narrator()
    scenarios = [
        replace(s, rounds=options.rounds or s.rounds, seconds=options.seconds or s.seconds)
        for s in plan.narrowed(
            plan.quick() if options.quick else plan.full(), backends=options.backend, systems=options.system,
            texts=options.texts, connections=options.connections,
        )
    ]  # fmt: skip
    if not scenarios:
        sys.stderr.write("no scenario is left: see benchmarks/peers/plan.py\n")
        return 2
    name = options.name or time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    command = f"python -m benchmarks {shlex.join(given)}".strip()
    try:
        found = run(scenarios, state=state, name=name, command=command, say=say)
    except (ServerFailed, NotAvailable) as error:
        say(f"error: {error}")
        return 1
    report(found, name=name, state=state, write_docs=options.write_docs, say=say)
    return 0
