"""Reports a run: tables on stdout, JSON in ``results/``, and the page ``docs/benchmarks.md``.

The table has what every other system costs over the gateway: a ratio is formed within each round, between cells
measured seconds apart, so what disturbs a round disturbs both sides of it. Where the gateway does worst is first.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.systems import NOW, SYSTEMS
from benchmarks.shared.command import ROOT
from benchmarks.shared.results import DOCS, RESULTS, put, table

_BACKENDS = {
    "instant": "a model that answers at once, so the figures are the cost of everything around it",
    "vectors": "the same with an embedding of 384 numbers, for comparing protocols (OpenAI's has only embeddings)",
    "gpu": "a model that behaves as on a GPU: 4 ms per call + 0.05 ms per row, at most 64 rows, one call at a time",
    "minilm": "the real all-MiniLM-L6-v2 (ONNX Runtime, CPU, one core)",
}
_PEERS = {"ensemble_lean": "Triton ensemble", "clearml_lean": "clearml-serving", "kserve": "KServe transformer"}

Cell = Mapping[str, Any]
Place = tuple[str, str, int, float]


def report(run: Mapping[str, Any], *, name: str, state: Path, write_docs: bool, say: Callable[[str], None]) -> None:
    """Print the run; save it under ``results/`` and, on request, in the documentation."""
    sys.stdout.write("\n".join(tables(run["cells"])) + "\n")
    for what, why in run["missing"].items():
        sys.stdout.write(f"not measured: {what}: {why.splitlines()[0][:200]}\n")
    saved = {**run, "missing": {k: _without_paths(v, state) for k, v in run["missing"].items()}}
    saved["facts"] = {**run["facts"], "command": _without_paths(run["facts"]["command"], state)}
    folder = RESULTS if write_docs else state / "results"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(_compact(saved))
    say(f"saved as {path}")
    if write_docs:
        put(DOCS / "benchmarks.md", "peers", markdown(json.loads(path.read_text()), name=name))
        say("wrote docs/benchmarks.md")


def markdown(run: Mapping[str, Any], *, name: str) -> str:
    """Return what docs/benchmarks.md shows of a run."""
    facts = run["facts"]
    rounds = sorted(len(each) for systems in _groups(run["cells"]).values() for each in systems.values())
    lines = [
        f"Other ways to serve the same model: `{facts['command']}`, saved in `benchmarks/results/{name}.json`, "
        f"{facts['began']}, commit {facts['commit']}, {facts['cpu']}, {facts['cores']} cores, GPU: {facts['gpu']}, "
        f"{' to '.join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))} rounds, Python {facts['python']}, Triton "
        f"{facts['triton']}.", "",
        *tables(run["cells"]),
        "- **CPU time** is that of the whole process trees of the server and of Triton, per answered request.",
        "- **Cores:** the server has core 0; Triton, the load generator and the control plane share core 1. An "
        "ensemble runs inside Triton, which then gets both.",
        "- **Rounds** of all systems are interleaved. Shown are the median and, in brackets, the range.",
        "- **Same conditions:** texts, tokenizer files, model and Triton. Texts are sentences of Zipf-distributed "
        "words, not repeated, 2 % of the words never seen before; mean tokens: "
        + ", ".join(f"{k} {v:.0f}" for k, v in facts["tokens"].items()) + ".",
        "- **The gateway** follows the serving Task in the embedded control plane, with metrics, stage times and "
        "limits on, on a canary route. clearml-serving runs its leanest hook, with statistics off.", "",
        "| model | what it is |", "|---|---|",
        *(f"| `{k}` | {v} |" for k, v in _BACKENDS.items() if k in facts["backends"]), "",
    ]  # fmt: skip
    if run["missing"]:
        lines += ["## Not measured", ""]
        lines += [f"- `{what}`: {why.splitlines()[0][:200]}" for what, why in run["missing"].items()] + [""]
    return "\n".join(lines) + "\n"


def _groups(cells: Sequence[Cell]) -> dict[Place, dict[str, list[Cell]]]:
    """Return the rounds of every system, by place."""
    found: dict[Place, dict[str, list[Cell]]] = {}
    for cell in cells:
        place = cell["backend"], cell["texts"], cell["connections"], cell["rate"]
        found.setdefault(place, {}).setdefault(cell["system"], []).append(cell)
    ranks = {name: rank for rank, name in enumerate(_BACKENDS)}
    return dict(sorted(found.items(), key=lambda one: (
        one[0][3], ranks.get(one[0][0], 9), one[0][1] != "short", one[0][1], one[0][2],
    )))  # fmt: skip


def tables(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the lines of both tables: beside peers, and the gateway beside itself with other options and forms."""
    beside: list[tuple[float, list[str]]] = []
    variants = [["triton-gateway", "load", "CPU, over the usual"]]
    for (backend, texts, connections, rate), systems in _groups(cells).items():
        offered = f"{rate:g} requests/s" if rate else f"{connections} connection{'s' * (connections > 1)}"
        load = f"{backend}, {texts}, {offered}"
        ours = {cell["round"]: cell for cell in systems.get(NOW, ())}
        ratios = {name: _ratios(rounds, ours) for name, rounds in systems.items() if name != NOW and ours}
        variants += [[SYSTEMS[name].title.partition(", ")[2], load, _shown(found[0])]
                     for name, found in ratios.items() if name not in _PEERS]  # fmt: skip
        if peers := {name: found for name, found in ratios.items() if name in _PEERS}:
            worst = min(statistics.median(ratio) for found in peers.values() for ratio in found)
            cost, slow = [_cpu(one) for one in ours.values()], [float(one["p99_ms"]) for one in ours.values()]
            told = [_of_peer(systems[name], *peers[name]) if name in peers else "–" for name in _PEERS]
            beside.append((worst, [load, _shown(cost, 0), _shown(slow, 1), *told]))
    heads = ["model, texts, load", "gateway and Triton, CPU µs", "p99 ms",
             *(f"{title}: CPU, p99 over the gateway's" for title in _PEERS.values())]  # fmt: skip
    yield from (table([heads, *(row for _, row in sorted(beside))], align=["---", *["---:"] * (len(heads) - 1)]), "")
    yield from (table(variants), "")


def _ratios(rounds: Sequence[Cell], ours: Mapping[int, Cell]) -> tuple[list[float], list[float]]:
    """Return a system's CPU time and p99 over the gateway's, in each round."""
    pairs = [(cell, ours[cell["round"]]) for cell in rounds if cell["round"] in ours]
    return [_cpu(a) / _cpu(b) for a, b in pairs], [float(a["p99_ms"]) / float(b["p99_ms"]) for a, b in pairs]


def _of_peer(cells: Sequence[Cell], cpu: Sequence[float], p99: Sequence[float]) -> str:
    errors = sum(cell["errors"] for cell in cells)
    return f"{_shown(cpu)}, {statistics.median(p99):.2f}{f', {errors:,} errors' if errors else ''}"


def _shown(values: Sequence[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def _cpu(cell: Cell) -> float:
    """Return the CPU time per request in front of Triton and inside it."""
    return float(cell["own_us"]) + float(cell["triton_us"])


def _compact(run: Mapping[str, Any]) -> str:
    """Return JSON with one cell per line: small enough to commit, readable in a diff."""

    def rounded(value: Any) -> Any:
        return float(f"{value:.6g}") if isinstance(value, float) else value

    cells = ",\n".join("  " + json.dumps({k: rounded(v) for k, v in cell.items()}) for cell in run["cells"])
    head = json.dumps({k: v for k, v in run.items() if k != "cells"}, indent=1)
    return f'{head[:-2]},\n "cells": [\n{cells}\n ]\n}}\n'


def _without_paths(text: str, state: Path) -> str:
    for path, shown in ((state, "STATE"), (ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(path), shown)
    return text
