"""How many gateway pods and GPUs does a load need, and what does it cost?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.autoscale import sizing
from benchmarks.autoscale.sizing import gateway_micros, measured
from benchmarks.shared.command import parser
from benchmarks.shared.results import DOCS, put
from tests.cluster.world import Capacity

TAKES = "a second"
SAVES = "docs/autoscaling.md (--write-docs)"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the size of one load, or the guide's table."""
    size = parser(__name__, __doc__)
    size.add_argument("--rate", type=float, help="requests per second; left out: the guide's table")
    size.add_argument("--call-ms", type=float, help="milliseconds of your model's call to Triton, without rows")
    size.add_argument("--row-ms", type=float, help="milliseconds that each row of a call adds")
    size.add_argument("--cpu-us", type=float, help="microseconds of CPU per request in the gateway")
    size.add_argument("--gpu", default="inference", help="which GPU of the price table [inference]")
    size.add_argument("--prices", type=Path, default=sizing.PRICES, help="the price table (TOML)")
    size.add_argument("--write-docs", action="store_true", help="write the table of docs/autoscaling.md")
    options = size.parse_args(argv)
    capacity = measured()
    if options.call_ms is not None:
        capacity = replace(capacity, call_s=options.call_ms / 1000)
    if options.row_ms is not None:
        capacity = replace(capacity, row_s=options.row_ms / 1000)
    if options.cpu_us is not None:
        capacity = replace(capacity, gateway_rps=round(1e6 / options.cpu_us * 0.9))
    given = sizing.prices(options.prices)
    if options.gpu not in given["gpu"]:
        sys.stderr.write(f"error: {options.prices} has no GPU {options.gpu}; it has {', '.join(given['gpu'])}\n")
        return 2
    if options.rate:
        found = sizing.size(options.rate, capacity, given, gpu=options.gpu)
        sys.stdout.write(
            f"{found.rate:,.0f} requests/s: {found.gateways} gateway pods of one core, {found.gpus} GPUs "
            f"({options.gpu}), {found.cost:.3g} {given['currency']} per million requests ({found.gpu_share:.0%} GPUs)\n"
        )
        return 0
    text = sizing.table(capacity, given, gpu=options.gpu)
    sys.stdout.write(text + "\n")
    if options.write_docs:
        put(DOCS / "autoscaling.md", "sizing", f"{_basis(capacity)}\n\n{text}")
    return 0


def _basis(capacity: Capacity) -> str:
    return (
        f"Short texts: {gateway_micros():.0f} µs of CPU per request, measured ([benchmarks](benchmarks.md)); a cloud's "
        "virtual core is\ntaken as half of that core with a tenth kept free, so "
        f"{capacity.gateway_rps:,} requests/s per core, filled to {sizing.CPU_SHARE:.0%}. GPU: a call takes "
        f"{capacity.call_s * 1000:g} ms + {capacity.row_s * 1000:g} ms\nper row, so {capacity.triton_rps:,.0f} rows/s "
        f"in full calls of {capacity.max_rows}, filled to {sizing.GPU_SHARE:.0%}: the benchmark's GPU-like model, "
        "not a GPU that was measured."
    )
