"""``python -m benchmarks.scaling``: replicas of either tier come and go under steady load; no request may fail.

1 → 4 → 1 gateways behind a Service, 2 → 1 → 2 Tritons behind a name; real processes, callers that keep connections and
never try again. Prints one JSON line per trial; the exit code is 0 when nothing failed and every replica had its share.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fleet import Fleet, fleet, spread

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scaling.md"
SPREAD = 0.1
"""How far a replica's share may be from an equal one."""
AGE = {"TRITON_GATEWAY_CONNECTION_AGE": "1s", "TRITON_GATEWAY_DRAIN_DELAY": "1s"}
"""Minutes in production; seconds here, so that callers spread over new replicas while one waits."""


def gateways(made: Fleet, *, most: int = 4, hold: float = 10.0, rate: float = 100.0) -> dict[str, Any]:
    """1 → ``most`` → 1 gateways; the spread is measured over ``hold`` seconds with all of them."""
    while not made.gateways:
        made.start_gateway()
    with made.callers(rate=rate).calling() as seen:
        time.sleep(hold / 5)
        made.together(*[made.start_gateway] * (most - 1))
        time.sleep(3.0)  # connections of the lone gateway come of age
        before = [gateway.counted() for gateway in made.gateways]
        time.sleep(hold)
        shares = [gateway.counted() - count for gateway, count in zip(made.gateways, before, strict=True)]
        for gateway in made.gateways[1:]:
            made.end_gateway(gateway)
        time.sleep(hold / 5)
    return {
        "trial": f"gateways 1 → {most} → 1", **seen.summary(), "shares": [round(share) for share in shares],
        "spread": round(spread(shares), 3),
    }  # fmt: skip


def tritons(made: Fleet, *, hold: float = 10.0, rate: float = 100.0) -> dict[str, Any]:
    """2 → 1 → 2 Tritons; the spread is measured over ``hold`` seconds with both of them, before and after."""
    spreads: list[float] = []
    shares: list[list[int]] = []

    def measure() -> None:
        before = [triton.counted() for triton in made.tritons]
        time.sleep(hold)
        counts = [triton.counted() - count for triton, count in zip(made.tritons, before, strict=True)]
        spreads.append(round(spread(counts), 3))
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


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second of all callers [100]")
    parser.add_argument("--hold", type=float, default=15.0, help="seconds over which the spread is measured [15]")
    parser.add_argument("--out", type=Path, help="write the results there as JSON, too")
    parser.add_argument("--write-docs", action="store_true", help="write the table of docs/scaling.md")
    options = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {text}\n")

    with tempfile.TemporaryDirectory(prefix="scaling-") as temporary, fleet(Path(temporary), say=say, **AGE) as made:
        made.together(made.start_triton, made.start_triton)
        results = [gateways(made, rate=options.rate, hold=options.hold)]
        sys.stdout.write(json.dumps(results[-1], ensure_ascii=False) + "\n")
        results.append(tritons(made, rate=options.rate, hold=options.hold))
        sys.stdout.write(json.dumps(results[-1], ensure_ascii=False) + "\n")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if options.write_docs:
        _write(results)
    return 1 if any(result["failed"] or result["spread"] > SPREAD for result in results) else 0


def _write(results: list[dict[str, Any]]) -> None:
    lines = [
        "| trial | requests | failed | p50 | p99 | furthest from an equal share |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['trial']} | {r['requests']:,} | {r['failed']} | {r['p50_ms']:g} ms | {r['p99_ms']:g} ms | "
        f"{r['spread']:.1%} |"
        for r in results
    ]
    before, _, rest = PAGE.read_text().partition("<!-- real -->\n")
    after = rest.partition("<!-- /real -->")[2]
    PAGE.write_text(before + "<!-- real -->\n" + "\n".join(lines) + "\n<!-- /real -->" + after)


if __name__ == "__main__":
    sys.exit(main())
