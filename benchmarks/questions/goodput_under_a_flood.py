"""How many answers per second do callers get that send far more than fits, and retry a refusal at once?

One gateway process with default settings, in front of a server that takes 22 ms per call and 0.5 ms per row (1,185
rows/s in calls of 64); it stands in for a Triton with a GPU and needs no core. A separate process keeps many
connections busy: each sends its next request as soon as it has an answer, refusals included. With ``--new``, it opens a
new connection after each refusal. Another process opens a connection twenty times a second and sends one request (the
stranger). Every level is measured next to one that the gateway can bear, so ``share`` compares two neighbours in time.
Values that do not depend on other work of the machine are given too: the gateway's CPU per second, refusals per answer.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.run import commit
from benchmarks.shared import machine, processes
from benchmarks.shared.command import ROOT, Say, narrator, parser
from benchmarks.shared.one_gateway import BODY, ENDPOINTS, Under
from benchmarks.shared.results import DOCS, put, save, saved, table

TAKES = "5 minutes"
SAVES = "results/overload.json, docs/overload.md"
LEVELS: Final = (2048, 4096, 8192)
_BEARABLE: Final = 512
_SETTLE_S: Final = 3.0
_HEADS: Final = (
    "gateway", "connections", "answers/s", f"of {_BEARABLE} connections'", "share", "refusals/s", "CPU of the gateway",
    "stranger refused, p99 ms", "max ms", "answered", "unanswered",
)  # fmt: skip


def bear(under: Under, connections: int, seconds: float, *, opens_new: bool) -> dict[str, Any]:
    """Return what ``connections`` callers and the stranger see, and the gateway's CPU time."""
    with contextlib.ExitStack() as stack:
        flood, stranger = (
            stack.enter_context(_callers(under.port, count, opens_new=opens_new)) for count in (connections, 0)
        )
        flood.hear()
        stranger.hear()
        time.sleep(_SETTLE_S)
        pid = [under.pid]
        spent, began = machine.cpu_seconds(pid), time.monotonic()
        for callers in (flood, stranger):
            callers.say(seconds)
        found, seen = flood.hear(), stranger.hear()
        spent, took = machine.cpu_seconds(pid) - spent, time.monotonic() - began
    return {
        **found, "rps": found["answers"] / seconds, "refused_per_s": found["refusals"] / seconds,
        "cpu": round(spent / took, 3), "rss_mb": round(machine.rss_mb(pid)), "stranger": seen,
    }  # fmt: skip


@contextlib.contextmanager
def _callers(port: int, connections: int, *, opens_new: bool) -> Iterator[processes.Child]:
    argv = [sys.executable, "-m", "benchmarks.shared.flood", str(port), f"/serve/{ENDPOINTS[0]}", BODY.decode()]
    child = processes.Child([*argv, str(connections), *(["--new"] if opens_new else [])])
    try:
        yield child
    finally:
        child.stop()


def run(
    under: Mapping[str, Under], levels: Sequence[int], rounds: int, seconds: float, *, opens_new: bool, say: Say
) -> list[dict[str, Any]]:
    """Measure every level next to a bearable one, for each gateway in turn."""
    rows = []
    for connections in levels:
        for round_ in range(rounds):
            for name in sorted(under, reverse=bool(round_ % 2)):
                easy = bear(under[name], _BEARABLE, seconds, opens_new=opens_new)
                hard = bear(under[name], connections, seconds, opens_new=opens_new)
                rows.append({"gateway": name, "connections": connections, "new": opens_new, "easy": easy, "hard": hard,
                             "load_average": os.getloadavg()[0]})  # fmt: skip
                say(" | ".join(row_of(rows[-1])))
    return rows


def row_of(row: Mapping[str, Any]) -> list[str]:
    """Return one measurement as a line of text."""
    easy, hard, stranger = row["easy"], row["hard"], row["hard"]["stranger"]
    return [
        row["gateway"], f"{row['connections']:,}{' (new ones)' if row['new'] else ''}", f"{hard['rps']:,.0f}",
        f"{easy['rps']:,.0f}", f"{hard['rps'] / max(easy['rps'], 1):.2f}", f"{hard['refused_per_s']:,.0f}",
        f"{hard['cpu']:.2f}", f"{stranger['refused_p99_ms']:.0f}", f"{stranger['refused_p100_ms']:.0f}",
        str(stranger["answered"]), str(stranger["unanswered"]),
    ]  # fmt: skip


def shown(found: Mapping[str, Any]) -> str:
    """Return the table of the page for a saved result."""
    rows = [["connections", "answers/s", "answers/s of 512 connections", "share", "refusals/s",
             "CPU of the gateway (cores)", "slowest refusal of a new client, ms"]]  # fmt: skip
    for row in (*found["flood"]["rows"], *found["flood-new"]["rows"]):
        if row["gateway"] == "now":
            _, _, *figures, _, most, _, _ = row_of(row)
            rows.append([f"{row['connections']:,}{', reconnecting' if row['new'] else ''}", *figures, most])
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument(
        "--connections", action="append", type=int, default=[], help="only this number; may be repeated"
    )
    arguments.add_argument("--seconds", type=float, default=6.0, help="seconds of every level [6]")
    arguments.add_argument("--rounds", type=int, default=1, help="rounds of every level [1]")
    arguments.add_argument("--new", action="store_true", help="open a new connection after each refusal")
    arguments.add_argument("--instant", action="store_true", help="the server takes no time: the gateway is the limit")
    arguments.add_argument("--before", type=Path, help="folder with another checkout, measured in the same rounds")
    options = arguments.parse_args(argv)
    say = narrator()
    checkouts = {"now": ROOT, **({"before": options.before.resolve()} if options.before else {})}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        under = {
            name: stack.enter_context(contextlib.closing(Under(checkout, folder / name, is_instant=options.instant)))
            for name, checkout in checkouts.items()
        }
        rows = run(
            under, options.connections or LEVELS, options.rounds, options.seconds, opens_new=options.new, say=say
        )
    print(table([_HEADS, *map(row_of, rows)]))
    if options.save:
        facts = {"commit": commit(), "cpu": machine.cpu_model(), "cores": os.cpu_count(),
                 "began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}  # fmt: skip
        kept = saved("overload") or {}
        name = f"flood{'-new' if options.new else ''}{'-instant' if options.instant else ''}"
        kept = {**kept, name: {"facts": facts, "rows": rows}}
        save("overload", kept)
        if {"flood", "flood-new"} <= kept.keys():
            put(DOCS / "overload.md", "flood", shown(kept))
    return 0
