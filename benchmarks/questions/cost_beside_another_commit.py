"""Does this checkout cost more CPU, or is it slower, than another one, cell by cell?

Both follow the same serving Task and have the same core, Triton, texts and load. Within a round they are measured
seconds apart, in changing order, and ratios are formed within rounds, so a disturbance affects both. Every round
restarts both: the memory layout of a process makes it some per cent slower or faster for its whole life. For every
cell: this checkout's CPU per request, throughput and latency over the other's, as the median of the rounds with its 95
% bootstrap interval. A cell counts as worse if the upper end of the interval of its CPU per request is above
``--worse`` (1.05), or the lower end of that of its throughput below its inverse. ``CHECKOUT`` is a folder with another
commit (``git worktree add``); its ``.venv`` is used if it has one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers.plan import Scenario
from benchmarks.peers.run import bring_up, measure_cell, start
from benchmarks.peers.systems import BEFORE, NOW, SYSTEMS, Bench, another_checkout
from benchmarks.shared.command import STATE, Say, narrator, parser
from benchmarks.shared.statistics import Ratio, ratio
from tests.processes import ServerFailed

TAKES = "25 minutes"
PAIRS: Final = {NOW: BEFORE, "gateway_nocache": "gateway_nocache_before"}
FIGURES: Final = {
    "own_us": "CPU per request", "rps": "throughput", "p50_ms": "p50", "p99_ms": "p99", "batch": "rows a call",
}  # fmt: skip

CELLS: Final = (
    Scenario("instant", "short", 64, (NOW,), 12, 2.0),
    Scenario("instant", "long", 64, (NOW,), 10, 2.0),
    Scenario("instant", "short", 64, (NOW,), 8, 2.0, client="proxy"),
    Scenario("instant", "short", 64, (NOW,), 8, 2.0, client="traceparent"),
    Scenario("instant", "short", 64, ("gateway_nocache",), 8, 2.0),
    Scenario("instant", "long", 64, ("gateway_nocache",), 8, 2.0),
    Scenario("instant", "short", 1, (NOW,), 8, 2.0),
    Scenario("instant", "mixed", 16, (NOW,), 8, 2.0),
    Scenario("instant", "short", 256, (NOW,), 8, 2.0),
    Scenario("gpu", "short", 4, (NOW,), 6, 2.5),
    Scenario("gpu", "short", 16, (NOW,), 6, 2.5),
    Scenario("gpu", "mixed", 256, (NOW,), 6, 2.5),
    Scenario("minilm", "short", 16, (NOW,), 6, 3.0),
)


def is_worse(ratios: Mapping[str, Ratio], bound: float) -> bool:
    """Return True if a cell is worse by more than ``bound``, by the unfavourable end of its intervals."""
    return ratios["own_us"].high > bound or ratios["rps"].low < 1 / bound


def run(before: Path, cells: Sequence[Scenario], state: Path, say: Say) -> list[dict[str, Any]]:
    """Measure all cells; returns one row per cell."""
    nocache = PAIRS["gateway_nocache"]
    SYSTEMS[BEFORE] = another_checkout(before)
    SYSTEMS[nocache] = another_checkout(before, nocache, has_word_cache=False)
    rows = []
    with contextlib.ExitStack() as stack:
        bench = bring_up(stack, cells, state, say)
        for backend, name in dict.fromkeys((cell.backend, cell.systems[0]) for cell in cells):
            group = [cell for cell in cells if (cell.backend, cell.systems[0]) == (backend, name)]
            for cell, rounds in _measured(bench, group, (name, PAIRS[name])).items():
                rows.append(_row(cell, (name, PAIRS[name]), rounds))
                say(line(rows[-1]))
    return rows


def _measured(
    bench: Bench, cells: Sequence[Scenario], both: tuple[str, str]
) -> dict[Scenario, list[dict[str, dict[str, Any]]]]:
    """Measure both systems in every cell; return the rounds of each cell, with one result per system."""
    found: dict[Scenario, list[dict[str, dict[str, Any]]]] = {cell: [] for cell in cells}
    for round_ in range(max(cell.rounds for cell in cells)):
        order = both if round_ % 2 else both[::-1]
        with contextlib.ExitStack() as started:
            running = {system: start(bench, started, cells[0].backend, system) for system in order}
            for cell in cells:
                if round_ < cell.rounds:
                    found[cell].append(
                        {system: measure_cell(bench, running[system], cell, system, round_) for system in order}
                    )
    return found


def _row(cell: Scenario, both: tuple[str, str], rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    now, before = both
    pairs = {figure: [(one[now][figure], one[before][figure]) for one in rounds] for figure in FIGURES}
    return {
        "cell": f"{cell.name}{'-nocache' if 'nocache' in now else ''}", "rounds": cell.rounds,
        "errors": sum(one[system]["errors"] for one in rounds for system in both),
        "now": {f: float(np.median([a for a, _ in taken])) for f, taken in pairs.items()},
        "before": {f: float(np.median([b for _, b in taken])) for f, taken in pairs.items()},
        "ratios": {figure: asdict(ratio(taken)) for figure, taken in pairs.items()},
    }  # fmt: skip


def line(row: Mapping[str, Any]) -> str:
    """Return a cell as one line of text."""
    parts = [f"{row['cell']:<24}"]
    for figure, title in FIGURES.items():
        one = row["ratios"][figure]
        parts.append(f"{title} × {one['median']:.2f} ({one['low']:.2f}–{one['high']:.2f})")
    return "  ".join(
        [*parts, f"now {row['now']['own_us']:.1f} µs", f"before {row['before']['own_us']:.1f} µs",
         f"errors {row['errors']}"]
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a cell is worse than ``--worse``."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--before", type=Path, required=True, help="folder with the other checkout")
    arguments.add_argument("--state-dir", type=Path, default=STATE, help="folder for files kept between runs")
    arguments.add_argument("--cell", action="append", default=[], help="only cells whose name contains this")
    arguments.add_argument("--rounds", type=int, default=0, help="rounds of every cell")
    arguments.add_argument("--worse", type=float, default=1.05, help="ratio above which a cell is worse [1.05]")
    options = arguments.parse_args(argv)
    say = narrator()
    cells = [c for c in CELLS if not options.cell or any(part in c.name for part in options.cell)]
    if options.rounds:
        cells = [replace(cell, rounds=options.rounds) for cell in cells]
    try:
        rows = run(options.before.resolve(), cells, options.state_dir.absolute(), say)
    except ValueError as error:
        arguments.error(str(error))
    except ServerFailed as error:
        say(f"error: {error}")
        return 1
    worse = [
        row["cell"] for row in rows if is_worse({f: Ratio(**one) for f, one in row["ratios"].items()}, options.worse)
    ]
    sys.stdout.write("\n".join(line(row) for row in rows) + "\n")
    sys.stdout.write(f"worse than {options.worse:g}: {', '.join(worse) or 'none'}\n")
    return 1 if worse else 0
