"""On what should gateways and Tritons scale: how many requests are late or fail, and how many pods does it take?

The published algorithms of the HorizontalPodAutoscaler and of KEDA run over a model of both tiers
(``benchmarks/autoscale``), reading the manifests and the capacities of the newest saved run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.autoscale.simulate import SIGNALS, Run, Scenario, kserve, measured, run, scenarios
from benchmarks.shared.command import narrator, parser, tell
from benchmarks.shared.results import DOCS, IMAGES, put, save, table

TAKES = "10 seconds"
SAVES = "results/autoscale.json, docs/scaling.md (--write-docs)"
PAGE = DOCS / "scaling.md"
NAMES = {"cpu": "CPU only", "rps": "requests/s", "in_flight": "in flight", "ours": "ours"}


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the signals over every scenario."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--scenario", action="append", default=[], help="only this one; may be repeated")
    arguments.add_argument("--write-docs", action="store_true", help="keep the result, tables and plots")
    options = arguments.parse_args(argv)
    capacity, say = measured(), narrator()
    every = scenarios(capacity)
    if unknown := [name for name in options.scenario if name not in every]:
        sys.stderr.write(f"error: no scenario {unknown[0]!r}; there are {', '.join(every)}\n")
        return 2
    runs: list[Run] = []
    for name, scenario in every.items():
        if options.scenario and name not in options.scenario:
            continue
        say(f"{name}: {scenario.about}")
        runs += [run(scenario, signal, capacity) for signal in SIGNALS]
        if name == "lost target":
            runs.append(run(scenario, "ours", capacity, ignores_null=True))
            runs[-1].signal = "ours, ignoreNullValues true"
    result: dict[str, Any] = {
        "capacity": {name: getattr(capacity, name) for name in capacity.__dataclass_fields__},
        "kserve_step": kserve(), "runs": [one.summary() for one in runs],
    }  # fmt: skip
    tell(result)
    if options.write_docs and not options.scenario:
        _draw(every, runs)
        save("autoscale", result)
        write(result)
    return 0


def write(result: Mapping[str, Any]) -> None:
    """Write the page's tables of a saved run."""
    put(PAGE, "signals", signals_table(result["runs"]))
    put(PAGE, "kserve", kserve_table(result["kserve_step"]))


def _draw(every: Mapping[str, Scenario], runs: Sequence[Run]) -> None:
    from benchmarks.autoscale.plots import draw

    for name in ("step", "stall", "day", "lost target"):
        path = IMAGES / f"scaling-{name.replace(' ', '-')}.png"
        draw(every[name], [one for one in runs if one.scenario == name], path)


def signals_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page; ``runs`` as they are saved."""
    rows = [["scenario", "gateways scale on", "answered in time", "failed or late", "gateway pods", "Tritons",
             "changes of direction in 5 min"]]  # fmt: skip
    for one in runs:
        pods, gpus = (f"{one[tier][0]}–{one[tier][1]}" for tier in ("gateways", "tritons"))
        rows.append([
            one["scenario"], NAMES.get(one["signal"], one["signal"]), f"{one['success']:.2%}",
            f"{one['failed_or_late'] / one['requests']:.2%}", pods, gpus,
            str(max(one["direction_changes_in_5min"].values())),
        ])  # fmt: skip
    return table(rows, align=["---", "---", *["---:"] * 5])


def kserve_table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the other one."""
    rows = [["scales on", "published: mean, p99", "simulated: mean, p99", "replicas after the minute"]]
    said = {"cpu": ("CPU 80 %", "8.0 s, 20.3 s (6.3 % failed)"), "concurrency": ("concurrency 8", "0.4 s, 3.7 s")}
    for name, (label, published) in said.items():
        one = found[name]
        rows.append([label, published, f"{one['mean_s']:g} s, {one['p99_s']:g} s", str(one["replicas"])])
    return table(rows, align=["---", "---", "---", "---:"])
