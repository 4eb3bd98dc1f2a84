"""``python -m benchmarks.autoscale``: simulate the autoscalers, size a deployment, draw, and write what docs show."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.autoscale import sizing
from benchmarks.autoscale.simulate import SIGNALS, Run, gateway_micros, kserve, measured, run, scenarios
from benchmarks.autoscale.world import Capacity

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "scaling.md"
IMAGES = ROOT / "docs" / "images"
SAVED = ROOT / "benchmarks" / "results" / "autoscale.json"
NAMES = {"cpu": "CPU only", "rps": "requests/s", "in_flight": "in flight", "ours": "ours"}


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run a command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    simulate = commands.add_parser("simulate", help="compare signals over every scenario")
    simulate.add_argument("--scenario", action="append", default=[], help="only this one; may be repeated")
    simulate.add_argument("--out", type=Path, help="write every number there as JSON")
    simulate.add_argument("--write-docs", action="store_true", help="write the tables and plots of docs/scaling.md")
    size = commands.add_parser("size", help="pods, GPUs and cost of a load")
    size.add_argument("--rate", type=float, help="requests per second; left out: the guide's table")
    size.add_argument("--call-ms", type=float, help="of your model: milliseconds of one call to Triton, without rows")
    size.add_argument("--row-ms", type=float, help="milliseconds that each row of a call adds")
    size.add_argument("--cpu-us", type=float, help="microseconds of CPU per request in the gateway")
    size.add_argument("--gpu", default="inference", help="which GPU of the price table [inference]")
    size.add_argument("--prices", type=Path, default=sizing.PRICES, help="the price table (TOML)")
    size.add_argument("--write-docs", action="store_true", help="write the table of docs/scaling.md")
    options = parser.parse_args(argv)
    if options.command == "size":
        return _size(options)
    return _simulate(options)


def _size(options: argparse.Namespace) -> int:
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
        _put("sizing", f"{_basis(capacity)}\n\n{text}")
    return 0


def _basis(capacity: Capacity) -> str:
    return (
        f"Short texts: {gateway_micros():.0f} µs of CPU per request, measured ([benchmarks](benchmarks.md)); a cloud's "
        "virtual core is\ntaken as half of that core with a tenth kept free, so "
        f"{capacity.gateway_rps:,} requests/s per core, filled to {sizing.CPU_SHARE:.0%}. GPU: a call takes "
        f"{capacity.call_s * 1000:g} ms + {capacity.row_s * 1000:g} ms\nper row, so {capacity.triton_rps:,.0f} rows/s "
        f"in full calls of {capacity.most_rows}, filled to {sizing.GPU_SHARE:.0%}: the benchmark's GPU-like model, "
        "not a GPU that was measured."
    )


def _simulate(options: argparse.Namespace) -> int:
    capacity = measured()
    every = scenarios(capacity)
    unknown = [name for name in options.scenario if name not in every]
    if unknown:
        sys.stderr.write(f"error: no scenario {unknown[0]!r}; there are {', '.join(every)}\n")
        return 2
    runs: list[Run] = []
    for name, scenario in every.items():
        if options.scenario and name not in options.scenario:
            continue
        sys.stderr.write(f"{name}: {scenario.about}\n")
        for signal in SIGNALS:
            runs.append(run(scenario, signal, capacity))
            sys.stderr.write(f"  {json.dumps(runs[-1].summary())}\n")
        if name == "lost target":
            naive = run(scenario, "ours", capacity, ignores_null=True)
            naive.signal = "ours, ignoreNullValues true"
            runs.append(naive)
            sys.stderr.write(f"  {json.dumps(naive.summary())}\n")
    published = kserve()
    result: dict[str, Any] = {
        "capacity": {name: getattr(capacity, name) for name in capacity.__dataclass_fields__},
        "kserve_step": published, "runs": [one.summary() for one in runs],
    }  # fmt: skip
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.write_docs:
        from benchmarks.autoscale.plots import draw

        for name in ("step", "stall", "day", "lost target"):
            draw(every[name], [one for one in runs if one.scenario == name],
                 IMAGES / f"scaling-{name.replace(' ', '-')}.png")  # fmt: skip
        _put("signals", signals_table(result["runs"]))
        _put("kserve", kserve_table(published))
        SAVED.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def signals_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page; ``runs`` as they are saved."""
    lines = [
        "| scenario | gateways scale on | answered in time | failed or late | gateway pods | Tritons | "
        "changes of direction in 5 min |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for one in runs:
        pods, gpus = (f"{one[tier][0]}–{one[tier][1]}" for tier in ("gateways", "tritons"))
        turns = max(one["direction_changes_in_5min"].values())
        lines.append(
            f"| {one['scenario']} | {NAMES.get(one['signal'], one['signal'])} | {one['success']:.2%} | "
            f"{one['failed_or_late'] / one['requests']:.2%} | {pods} | {gpus} | {turns} |"
        )
    return "\n".join(lines)


def kserve_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the other one."""
    lines = [
        "| scales on | published: mean, p99 | simulated: mean, p99 | replicas after the minute |",
        "|---|---|---|---:|",
    ]
    said = {"cpu": ("CPU 80 %", "8.0 s, 20.3 s (6.3 % failed)"), "concurrency": ("concurrency 8", "0.4 s, 3.7 s")}
    for name, (label, published) in said.items():
        one = found[name]
        lines.append(f"| {label} | {published} | {one['mean_s']:g} s, {one['p99_s']:g} s | {one['replicas']} |")
    return "\n".join(lines)


def _put(part: str, text: str) -> None:
    """Write a generated part of the page."""
    page = PAGE.read_text()
    pattern = rf"(<!-- {part} -->\n).*?(<!-- /{part} -->)"
    if not re.search(pattern, page, re.S):
        raise ValueError(f"{PAGE} has no part {part}")
    PAGE.write_text(re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page, flags=re.S))


if __name__ == "__main__":
    sys.exit(main())
