"""How many answers arrive in time if callers come at random, up to ten times as many as can be answered?

An open loop (``benchmarks.shared.crowd``): callers come at Poisson times, whatever happened to earlier ones. They wait
for at most two seconds and repeat nothing. Times count from when a request was due. Every system is in front of the
same real Triton, with a model that takes 20 ms per call and 1.5 ms per row.

First its capacity is measured, with 96 connections that wait for answers. Then loads are multiples of that capacity; a
twentieth of the capacity always comes as ``x-priority: critical``, on separate connections. After each load, four
fifths of the capacity come for some seconds: the system has recovered when 19 of 20 callers are answered within 1.5
times the p99 that it has at four fifths.

The server under test has one core; the sender, Triton and everything else share the other. Two gateways and an ensemble
have both. A load that could not be sent, or was sent late, is marked.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.plan import Scenario
from benchmarks.peers.run import bring_up, measure_cell, prepare_bodies, start
from benchmarks.peers.systems import OTHER_CORE, SYSTEMS, Bench, NotAvailable, Running
from benchmarks.shared import machine
from benchmarks.shared.command import ROOT, STATE, narrator, parser
from benchmarks.shared.results import DOCS, facts_of, put, save, table
from tests import processes

TAKES = "45 minutes; --seconds 35: 30; --seconds 5: 12"
SAVES = "results/overload.json, docs/benchmarks.md"
_TITLES: Final = {
    "gateway": "gateway", "gateway_w2": "two gateways",
    "ensemble_lean": "Triton ensemble", "clearml_lean": "clearml-serving", "kserve": "KServe transformer",
}  # fmt: skip
_TIMES: Final = (0.8, 1.0, 2.0, 5.0, 10.0)
_CONNECTIONS: Final = 96
"""More than one and a half calls need, and fewer than a limit of work refuses."""
_CAPACITY_S: Final = 6.0
_AFTERWARDS_S: Final = 6.0
_CRITICAL: Final = 0.05
_LATE_MS: Final = 20.0
_HEADS: Final = (
    "in front of Triton", "load", "answers/s", "share of peak", "answered p50, ms", "p99, ms", "critical answered",
    "no reply in time", "memory growth, MB", "recovered after, s",
)  # fmt: skip


def bear(bench: Bench, running: Running, bodies: Path, capacity: float, times: float, seconds: float,
         within: float) -> dict[str, Any]:  # fmt: skip
    """Send ``times`` the capacity in callers, and return what happened to them and during the recovery."""
    roots = running.pids or [bench.triton.pid]
    seen, is_over = [machine.rss_mb(roots)], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.5):
            seen.append(machine.rss_mb(roots))

    argv = [
        sys.executable, "-m", "benchmarks.shared.crowd", running.url, "--bodies", str(bodies),
        "--critical", str(_CRITICAL * capacity), "--within", str(within),
        "--phase", f"{times * capacity}:{seconds}", "--phase", f"{_TIMES[0] * capacity}:{_AFTERWARDS_S}",
    ]  # fmt: skip
    watching = threading.Thread(target=watch)
    watching.start()
    spent = machine.cpu_seconds(roots)
    try:
        done = subprocess.run(
            processes.on_cores(argv, [OTHER_CORE]), capture_output=True, text=True, cwd=ROOT, env=dict(os.environ),
            timeout=seconds + _AFTERWARDS_S + 120, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise processes.ServerFailed(f"the load on {running.url} did not end") from None
    finally:
        is_over.set()
        watching.join()
    if done.returncode:
        raise processes.ServerFailed(f"the load failed: {done.stderr.strip().splitlines()[-1:]}")
    load, afterwards = json.loads(done.stdout.splitlines()[-1])["phases"]
    return {
        "times": times, "capacity": round(capacity, 1), "load": load, "afterwards": afterwards,
        "cpu": round((machine.cpu_seconds(roots) - spent) / (seconds + _AFTERWARDS_S), 3),
        "before_mb": round(seen[0], 1), "more_mb": round(max(seen) - seen[0], 1),
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def rows_of(system: str, found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the table rows of one system."""
    peak = max(found[0]["capacity"], *(one["load"]["answers"] / one["load"]["seconds"] for one in found))
    rows = []
    for one in found:
        load, critical = one["load"], one["load"]["critical"]
        is_short = load["sent"] < 0.99 * load["offered"] or load["late"]["p99_ms"] > _LATE_MS
        rows.append([
            _TITLES[system], f"{one['times']:g} ×{' (not all sent)' if is_short else ''}",
            f"{load['answers'] / load['seconds']:,.0f}",
            f"{load['answers'] / load['seconds'] / peak:.2f}",
            *(f"{load['answered'][p]:,.0f}" if load["answers"] else "–" for p in ("p50_ms", "p99_ms")),
            f"{critical['answered'] / max(critical['due'], 1):.1%}",
            f"{(load['gave_up'] + load['lost']) / max(load['offered'], 1):.1%}",
            f"{one['more_mb']:.0f}",
            _recovered(one),
        ])  # fmt: skip
    return rows


def _recovered(one: Mapping[str, Any]) -> str:
    seconds = one["afterwards"]["recovered_s"]
    if seconds is None:
        return "–"
    return f"{seconds:.1f}" if seconds < _AFTERWARDS_S else f"not in {_AFTERWARDS_S:.0f}"


def shown(found: Mapping[str, Any]) -> str:
    """Return the table of the page for a saved result."""
    if "open" not in found:
        return "No run is saved yet."
    systems = found["open"]["systems"]
    return table([_HEADS, *(row for name in _TITLES if name in systems for row in rows_of(name, systems[name]))])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--state-dir", type=Path, default=STATE, help="folder for files kept between runs")
    arguments.add_argument("--system", action="append", default=[], choices=_TITLES, help="only this; may be repeated")
    arguments.add_argument(
        "--times", action="append", type=float, default=[], help="only 0.8 and this; may be repeated"
    )
    arguments.add_argument("--seconds", type=float, default=60.0, help="seconds of every load [60]")
    options = arguments.parse_args(argv)
    missing: dict[str, str] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    facts = {**facts_of(1), "seconds": options.seconds, "missing": missing}

    say = narrator()
    systems = tuple(name for name in _TITLES if not options.system or name in options.system)
    closed = Scenario("large", "short", _CONNECTIONS, systems, 1, _CAPACITY_S)
    times = [one for one in _TIMES if not options.times or one == _TIMES[0] or one in options.times]
    with contextlib.ExitStack() as stack:
        bench = bring_up(stack, [closed], options.state_dir.absolute(), say)
        for name in systems:
            cells: list[dict[str, Any]] = []
            try:
                with contextlib.ExitStack() as started:
                    running = start(bench, started, closed.backend, name)
                    capacity = measure_cell(bench, running, closed, name, 0)["rps"]
                    say(f"{name}: {capacity:.0f} answers/s to {_CONNECTIONS} connections")
                    bodies = prepare_bodies(bench, running, closed, name)
                    for one in times:
                        within = 1.5 * cells[0]["load"]["answered"]["p99_ms"] / 1e3 if cells else 0.0
                        cells.append(bear(bench, running, bodies, capacity, one, options.seconds, within))
                        say(" | ".join(rows_of(name, cells)[-1]))
            except (NotAvailable, processes.ServerFailed, OSError) as error:
                missing[name] = str(error)
                say(f"{SYSTEMS[name].title} is not measured further: {error}")
            if cells:
                found[name] = cells
    result = {"open": {"facts": facts, "systems": found}}
    sys.stdout.write(shown(result) + "\n")
    if options.save:
        save("overload", result)
        put(DOCS / "benchmarks.md", "open", shown(result))
    return 0
