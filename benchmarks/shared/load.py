"""The load generators of all questions: the one of ``http_load``, and a steady one in a thread.

``python -m benchmarks.shared.load URL --bodies FILE`` runs one load in its own process and prints one line of JSON. The
generator's CPU is bound to a core that the server under test does not have.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared.command import tell
from benchmarks.shared.http_load import CLIENTS, Load, Outcome, arrivals, percentile, render

__all__ = ["Load", "Outcome", "Steady", "arrivals", "closed_loop", "main", "percentile", "render"]


def closed_loop(url: str, requests: Sequence[bytes], seconds: float, *, connections: int, start: int = 0) -> Outcome:
    """Keep ``connections`` new connections busy for ``seconds``."""
    load = Load(url, requests, connections=connections, start=start)
    try:
        return load.closed_loop(seconds)
    finally:
        load.close()


def open_loop(
    url: str, requests: Sequence[bytes], seconds: float, *, rate: float, connections: int, start: int = 0, seed: int = 1
) -> Outcome:
    """Send ``rate`` requests per second for ``seconds``, whether answers come or not."""
    load = Load(url, requests, connections=connections, start=start)
    try:
        return load.open_loop(rate, seconds, seed)
    finally:
        load.close()


class Steady:
    """An open loop on one endpoint in its own thread, without retries, until it is stopped; bodies in turn."""

    def __init__(self, url: str, *bodies: bytes, rate: float) -> None:
        self._url, self._requests, self._rate = url, render(url, bodies), rate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.total = Outcome()

    def _run(self) -> None:
        seed = sent = 0
        while not self._stopping.is_set():
            seed += 1
            one = open_loop(
                self._url, self._requests, 4.0, rate=self._rate, connections=64, start=sent, seed=seed
            )  # fmt: skip
            total, sent = self.total, sent + one.requests + one.errors
            total.requests += one.requests
            total.errors += one.errors
            total.latencies += one.latencies
            total.first_error = total.first_error or one.first_error
            for status, count in one.statuses.items():
                total.statuses[status] = total.statuses.get(status, 0) + count

    def summary(self) -> dict[str, Any]:
        """Return what it saw so far."""
        ordered = sorted(self.total.latencies)
        return {"requests": self.total.requests, "failed": self.total.errors, "statuses": self.total.statuses,
                "first_error": self.total.first_error,
                **{f"p{q}_ms": round(percentile(ordered, q) * 1e3, 1) for q in (50, 99)}}  # fmt: skip

    @contextlib.contextmanager
    def running(self) -> Iterator[Steady]:
        """Send while the context is open."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self._thread.join()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one load; the last line on stdout is its summary as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared.load", description=main.__doc__)
    parser.add_argument("url")
    parser.add_argument("--bodies", type=Path, required=True, help="a file with one JSON body per line")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second of an open loop; 0: closed loop")
    parser.add_argument("--start", type=int, default=0, help="the first body to send")
    parser.add_argument("--client", choices=CLIENTS, default=CLIENTS[0], help="whose heads the requests have")
    given = parser.parse_args(argv)
    requests = render(given.url, given.bodies.read_bytes().splitlines(), client=given.client)
    kept = {"connections": given.connections, "start": given.start}
    if given.rate:
        outcome = open_loop(given.url, requests, given.seconds, rate=given.rate, **kept)
    else:
        outcome = closed_loop(given.url, requests, given.seconds, **kept)
    tell(outcome.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
