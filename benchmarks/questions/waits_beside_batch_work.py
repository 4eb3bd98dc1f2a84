"""How much longer do interactive requests take beside work of class batch, and how much of that work is done?

One gateway process with default settings, in front of a server that takes 22 ms per call and 0.5 ms per row (1,185
rows/s in calls of 64); it stands in for a Triton with a GPU and needs no core. Interactive requests arrive at random,
at several shares of that rate, whether answers come or not. At the same time, connections send work with ``x-priority:
batch``, each its next request when the last one is answered. Each level is measured without and with that work, taking
turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.run import commit
from benchmarks.shared import machine, processes
from benchmarks.shared.command import ROOT, narrator, parser, tell
from benchmarks.shared.load import Outcome, closed_loop, open_loop, render
from benchmarks.shared.one_gateway import BODY, CAPACITY, ENDPOINTS, Under
from benchmarks.shared.results import DOCS, put, save, saved, table

TAKES = "4 minutes"
SAVES = "results/overload.json, docs/overload.md"
LOADS: Final = (0.1, 0.3, 0.6)
_SETTLE_S: Final = 3.0
_HEADS: Final = (
    "gateway", "interactive, of capacity", "p50 alone, ms", "p50 beside", "times", "p99 alone, ms", "p99 beside",
    "times", "batch answers/s", "of capacity", "failed",
)  # fmt: skip


def _url(port: int) -> str:
    return f"http://{processes.LOOPBACK}:{port}/serve/{ENDPOINTS[0]}"


def _send_batch(port: int, connections: int) -> None:
    """Keep connections of class batch busy until a line arrives on stdin; then print what they saw."""
    url = _url(port)
    raw = [request.replace(b"\r\n", b"\r\nx-priority: batch\r\n", 1) for request in render(url, [BODY])]
    total, is_over = Outcome(), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), is_over.set()), daemon=True).start()
    tell({"is": "busy"})
    while not is_over.is_set():
        one = closed_loop(url, raw, 1.0, connections=connections)
        total.requests, total.errors = total.requests + one.requests, total.errors + one.errors
        total.seconds += one.seconds
    tell({"answers": total.requests, "failed": total.errors, "rps": total.requests / max(total.seconds, 1e-9)})


def measure(under: Under, load: float, seconds: float, connections: int) -> dict[str, Any]:
    """Return what interactive requests see without batch work, and with it."""
    url, rate = _url(under.port), load * CAPACITY
    raw = render(url, [BODY])

    def interactive() -> dict[str, Any]:
        open_loop(url, raw, _SETTLE_S, rate=rate, connections=256)
        return dict(open_loop(url, raw, seconds, rate=rate, connections=256, seed=2).summary())

    alone = interactive()
    argv = [sys.executable, str(Path(__file__).resolve()), "--batch", str(under.port), "--connections"]
    child = processes.Child([*argv, str(connections)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        child.hear()
        beside = interactive()
        batch = child.ask("enough")
    finally:
        child.stop()
    return {"load": load, "alone": alone, "beside": beside, "batch": batch, "load_average": os.getloadavg()[0]}


def row_of(name: str, row: dict[str, Any]) -> list[str]:
    """Return one measurement as a line of text."""
    alone, beside, batch = row["alone"], row["beside"], row["batch"]
    times = [(alone[p], beside[p], beside[p] / max(alone[p], 1e-9)) for p in ("p50_ms", "p99_ms")]
    shown = [text for one in times for text in (f"{one[0]:.1f}", f"{one[1]:.1f}", f"{one[2]:.2f}")]
    return [
        name, f"{row['load']:.0%}", *shown, f"{batch['rps']:,.0f}", f"{batch['rps'] / CAPACITY:.0%}",
        str(alone["errors"] + beside["errors"] + batch["failed"]),
    ]  # fmt: skip


def shown(found: Mapping[str, Any]) -> str:
    """Return the table of the page for a saved result."""
    if "batch" not in found:
        return "No run is saved yet."
    rows = [row_of("", row)[1:] for row in found["batch"]["rows"] if row["gateway"] == "now"]
    return table([_HEADS[1:], *rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--load", action="append", type=float, default=[], help="only this share; may be repeated")
    arguments.add_argument("--seconds", type=float, default=20.0, help="seconds of every level [20]")
    arguments.add_argument("--connections", type=int, default=128, help="connections of class batch [128]")
    arguments.add_argument("--before", type=Path, help="folder with another checkout, measured in the same rounds")
    arguments.add_argument("--batch", type=int, default=0, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.batch:
        _send_batch(options.batch, options.connections)
        return 0
    say = narrator()
    checkouts = {"now": ROOT, **({"before": options.before.resolve()} if options.before else {})}
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        under = {
            name: stack.enter_context(contextlib.closing(Under(checkout, folder / name)))
            for name, checkout in checkouts.items()
        }
        for load in options.load or LOADS:
            for name, one in under.items():
                found = measure(one, load, options.seconds, options.connections)
                rows.append({"gateway": name, **found})
                say(" | ".join(row_of(name, found)))
    print(table([_HEADS, *(row_of(row["gateway"], row) for row in rows)]))
    if options.save:
        facts = {"commit": commit(), "cpu": machine.cpu_model(), "cores": os.cpu_count(),
                 "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}  # fmt: skip
        kept = {**(saved("overload") or {}), "batch": {"facts": facts, "rows": rows}}
        save("overload", kept)
        put(DOCS / "overload.md", "batch", shown(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
