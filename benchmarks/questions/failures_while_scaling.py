"""Do requests fail, and is the load shared evenly, while replicas of either tier are added and removed?

1 → 4 → 1 gateways behind a Service, 2 → 1 → 2 Tritons behind a name; real processes, and callers that keep connections
and never retry. Prints one JSON line per trial; the exit code is 0 if nothing failed and every replica had its share.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared.command import narrator, parser, tell
from benchmarks.shared.fleet import AGE, Fleet, fleet, unevenness
from benchmarks.shared.results import DOCS, put, table

TAKES = "3 minutes"
SAVES = "docs/scaling.md (--write-docs)"
SPREAD = 0.1
"""Largest allowed distance of a replica's share from an equal one."""


def gateways(made: Fleet, *, most: int = 4, hold: float = 10.0, rate: float = 100.0) -> dict[str, Any]:
    """1 → ``most`` → 1 gateways; the spread is measured over ``hold`` seconds with all of them."""
    while not made.gateways:
        made.start_gateway()
    with made.callers(rate=rate).calling() as seen:
        time.sleep(hold / 5)
        made.together(*[made.start_gateway] * (most - 1))
        time.sleep(3.0)  # the connections of the only gateway reach their maximum age
        before = [gateway.counted() for gateway in made.gateways]
        time.sleep(hold)
        shares = [gateway.counted() - count for gateway, count in zip(made.gateways, before, strict=True)]
        for gateway in made.gateways[1:]:
            made.end_gateway(gateway)
        time.sleep(hold / 5)
    return {
        "trial": f"gateways 1 → {most} → 1", **seen.summary(), "shares": [round(share) for share in shares],
        "spread": round(unevenness(shares), 3),
    }  # fmt: skip


def tritons(made: Fleet, *, hold: float = 10.0, rate: float = 100.0) -> dict[str, Any]:
    """2 → 1 → 2 Tritons; the spread is measured over ``hold`` seconds with both of them, before and after."""
    spreads: list[float] = []
    shares: list[list[int]] = []

    def measure() -> None:
        before = [triton.counted() for triton in made.tritons]
        time.sleep(hold)
        counts = [triton.counted() - count for triton, count in zip(made.tritons, before, strict=True)]
        spreads.append(round(unevenness(counts), 3))
        shares.append([round(count) for count in counts])

    with made.callers(rate=rate).calling() as seen:
        time.sleep(hold / 5)
        measure()
        gone = made.tritons[0]
        made.end_triton(gone)
        time.sleep(hold / 5)
        made.start_triton(in_place_of="" if made.follows_a_name else gone.host)
        time.sleep(5.0)
        measure()
    return {
        "trial": "Tritons 2 → 1 → 2", "name": made.follows_a_name, **seen.summary(), "shares": shares,
        "spread": max(spreads),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--rate", type=float, default=100.0, help="requests per second of all callers [100]")
    arguments.add_argument("--hold", type=float, default=15.0, help="seconds over which the spread is measured [15]")
    arguments.add_argument("--write-docs", action="store_true", help="write the table of docs/scaling.md")
    options = arguments.parse_args(argv)
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="scaling-") as temporary,
        fleet(Path(temporary), say=narrator(), **AGE) as made,
    ):
        made.together(made.start_triton, made.start_triton)
        for trial in (gateways, tritons):
            results.append(trial(made, rate=options.rate, hold=options.hold))
            tell(results[-1])
    if options.write_docs:
        put(DOCS / "scaling.md", "real", shown(results))
    return 1 if any(result["failed"] or result["spread"] > SPREAD for result in results) else 0


def shown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page."""
    rows = [["trial", "requests", "failed", "p50", "p99", "furthest from an equal share"]]
    rows += [
        [r["trial"], f"{r['requests']:,}", str(r["failed"]), f"{r['p50_ms']:g} ms", f"{r['p99_ms']:g} ms",
         f"{r['spread']:.1%}"]
        for r in results
    ]  # fmt: skip
    return table(rows, align=["---", *["---:"] * 5])
