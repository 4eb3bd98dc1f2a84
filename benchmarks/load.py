"""``python -m benchmarks.load``: one load on this machine, one JSON line; generator: ``deploy.admin.http_load``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.admin.http_load import Load, Outcome, arrivals, percentile, render

__all__ = ["Load", "Outcome", "arrivals", "main", "percentile", "render"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one load; the last line on stdout is its summary as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=main.__doc__)
    parser.add_argument("url")
    parser.add_argument("--bodies", type=Path, required=True, help="a file with one JSON body per line")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second of an open loop; 0: closed loop")
    parser.add_argument("--start", type=int, default=0, help="the first body to send")
    given = parser.parse_args(argv)
    requests = render(given.url, given.bodies.read_bytes().splitlines())
    load = Load(given.url, requests, connections=given.connections, start=given.start)
    try:
        outcome = load.open_loop(given.rate, given.seconds) if given.rate else load.closed_loop(given.seconds)
    finally:
        load.close()
    sys.stdout.write(json.dumps(outcome.summary()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
