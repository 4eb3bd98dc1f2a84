"""Which signal should gateways scale on: how many requests are late or fail, and how soon are replicas added?

Releases of the chart run on a real Kubernetes (``tests/cluster``) with a real Prometheus and KEDA.
Its pods are simulated: an exporter publishes the metrics that a load would cause (``benchmarks/autoscale``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.autoscale.sizing import measured
from benchmarks.shared.command import narrator, parser, tell
from benchmarks.shared.results import DOCS, facts_of, put, save, table
from tests.cluster.played import Trial
from tests.cluster.trials import SIGNALS, Stage, outage, scenarios, stage

TAKES = "half an hour; the first time as long again to build Kubernetes"
SAVES = "results/autoscale.json, docs/benchmarks.md (--write-docs)"
PAGE = DOCS / "benchmarks.md"
NAMES = {"cpu": "CPU only", "ours": "ours"}
AWAY = (180.0, 360.0)
"""Seconds of the last scenario during which Prometheus is away."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run every scenario, with each signal in its own namespace, at the same time."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--scenario", action="append", default=[], help="only this one; may be repeated")
    arguments.add_argument("--write-docs", action="store_true", help="save the result, and write its table")
    options = arguments.parse_args(argv)
    capacity, say = measured(), narrator()
    last = outage(capacity)
    every = {**scenarios(capacity), last.name: last}
    if options.write_docs and options.scenario:
        arguments.error("--write-docs needs all scenarios")
    if unknown := [name for name in options.scenario if name not in every]:
        sys.stderr.write(f"error: no scenario {unknown[0]!r}; there are {', '.join(every)}\n")
        return 2
    wanted = [one for name, one in every.items() if not options.scenario or name in options.scenario]
    trials = []
    with stage(say) as on:
        say(f"a cluster runs: KUBECONFIG={on.cluster.kubeconfig}, Prometheus {on.prometheus}")
        together = [one for one in wanted if one is not last]
        trials += [on.install(one, signal, capacity) for one in together for signal in SIGNALS]
        on.run(trials, _progress(trials, say))
        if last in wanted:
            late = [on.install(last, signal, capacity) for signal in SIGNALS]
            on.run(late, _without_prometheus(on, late, _progress(late, say)))
            trials += late
    result: dict[str, Any] = {
        "facts": facts_of(1),
        "capacity": {name: getattr(capacity, name) for name in capacity.__dataclass_fields__},
        "runs": [one.summary() for one in trials],
    }  # fmt: skip
    tell(result)
    if options.write_docs:
        save("autoscale", result)
        write(result)
    return 0


def _progress(trials: Sequence[Trial], say: Any) -> Any:
    """Return what says, once in a minute, how it goes."""
    said = [-60.0]

    def tell_it() -> None:
        now = trials[0].times[-1] if trials and trials[0].times else 0.0
        if now - said[0] >= 60:
            said[0] = now
            for one in trials:
                if one.times:
                    say(f"{one.namespace} {now:.0f} s: {one.gateways[-1]} gateways, {one.tritons[-1]} Tritons, "
                        f"{one.bad[-1]:.0f}/s failed or late")  # fmt: skip

    return tell_it


def _without_prometheus(on: Stage, trials: Sequence[Trial], then: Any) -> Any:
    """Return what takes Prometheus away and brings it back, by the clock of a trial."""
    state = {"away": False, "over": False}

    def look() -> None:
        then()
        now = trials[0].times[-1] if trials[0].times else 0.0
        if not state["away"] and not state["over"] and now >= AWAY[0]:
            on.cluster.end("prometheus")
            state["away"] = True
        if state["away"] and now >= AWAY[1]:
            on.restart_prometheus()
            state.update(away=False, over=True)

    return look


def write(result: Mapping[str, Any]) -> None:
    """Write the page's table of a saved run."""
    put(PAGE, "signals", signals_table(result["runs"]))


def signals_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the page for saved runs."""
    rows = [["scenario", "gateways scale on", "answered in time", "gateways asked for",
             "Tritons asked for", "first more gateways", "first more Tritons"]]  # fmt: skip
    for one in runs:
        pods, gpus = (f"{one[tier][0]}–{one[tier][1]}" for tier in ("gateways", "tritons"))
        first = [
            "–" if one[f"first_{tier}_s"] is None else f"{one[f'first_{tier}_s']:.0f} s"
            for tier in ("gateway", "triton")
        ]
        rows.append([
            one["scenario"], NAMES.get(one["signal"], one["signal"]), f"{one['success']:.2%}", pods, gpus, *first,
        ])  # fmt: skip
    return table(rows, align=["---", "---", *["---:"] * 5])
