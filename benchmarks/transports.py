"""What one call to Triton costs over each way there is: ``python -m benchmarks.transports``.

The gateway's share and Triton's, in CPU µs per call, and the time of a lone call. The model answers at once, two calls
are under way at a time as the micro-batcher has them, the client has one core and Triton the other. Ways: the gateway's
own adapter with gRPC (``grpc.aio``) and with Triton's HTTP (binary tensors), ``grpc.aio`` with tensors in system shared
memory, and ``grpclib`` (another gRPC stack, pure Python) where it is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import measure, servers
from benchmarks.backends import BACKENDS, Triton
from benchmarks.systems import OTHER_CORE, ROOT, SERVER_CORE

WAYS = ("grpc", "grpc_shared_memory", "http_binary", "grpclib")
SHAPES = ((1, 24), (16, 24), (32, 200))
"""Rows and tokens of a call."""
_MODEL = "transport"


def main() -> None:
    """Measure and print a table; ``--json FILE`` saves it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transports", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of every cell")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the table shows medians")
    parser.add_argument("--json", type=Path, help="also write the table there")
    options = parser.parse_args()
    cells: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        triton = Triton(Path(scratch))
        triton.start()
        try:
            triton.serve(_MODEL, BACKENDS["instant"], Path(scratch))
            triton.pin([OTHER_CORE])
            for _ in range(options.rounds):
                for rows, tokens in SHAPES:
                    for way in WAYS:
                        found = _cell(triton, way, rows, tokens, options.seconds)
                        if found:
                            cells.setdefault((way, rows, tokens), []).append(found)
        finally:
            triton.stop()
    table = [
        {"way": way, "rows": rows, "tokens": tokens,
         **{key: statistics.median(cell[key] for cell in found) for key in found[0]}}
        for (way, rows, tokens), found in sorted(cells.items(), key=lambda item: item[0][1:])
    ]  # fmt: skip
    print("| call | way | client CPU µs | Triton CPU µs | lone call ms (p50) |\n|---|---|---|---|---|")
    for row in table:
        print(f"| {row['rows']} × {row['tokens']} | {row['way']} | {row['client_us']:.0f} | {row['triton_us']:.0f} "
              f"| {row['lone_ms']:.3f} |")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


def _cell(triton: Triton, way: str, rows: int, tokens: int, seconds: float) -> dict[str, float]:
    argv = [sys.executable, "-m", "benchmarks.transports_client", way, triton.grpc, triton.http, _MODEL,
            str(rows), str(tokens), str(seconds)]  # fmt: skip
    before = measure.cpu_seconds([triton.pid])
    done = subprocess.run(
        servers.on_cores(argv, [SERVER_CORE]), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    if done.returncode:
        print(f"{way} is not measured: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    calls = found.pop("calls")
    return {**found, "triton_us": (measure.cpu_seconds([triton.pid]) - before) / calls * 1e6}


if __name__ == "__main__":
    main()
