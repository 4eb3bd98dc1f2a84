"""Reports a run: tables on stdout, JSON in ``results/``, and the page ``docs/benchmarks.md``.

Every table has the systems by their CPU time per request, the cheapest first, and that over the gateway's: a ratio is
formed within each round, between cells measured seconds apart, so what disturbs a round disturbs both sides of it.
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
_HEADS = ("system", "CPU µs", "Triton CPU µs", "both, over the gateway's", "requests/s", "p50 ms", "p99 ms",
          "rows a call", "RSS MB", "errors")  # fmt: skip

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
        f"Other ways to serve the same model, from one run, saved in `benchmarks/results/{name}.json`. "
        "To run it yourself:", "",
        "```sh", facts["command"], "```", "",
        "| | |", "|---|---|",
        f"| machine | {facts['cpu']}, {facts['cores']} cores |",
        f"| GPU | {facts['gpu']} |",
        f"| date, commit | {facts['began']}, {facts['commit']} |",
        f"| rounds | {' to '.join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))} |",
        f"| software | Python {facts['python']}, Triton {facts['triton']} ([packages](#versions)) |",
        f"| load average at the start | {facts['load_average'][0]:.1f} (an idle machine has 0 to 0.3) |", "",
        "## How it is measured", "",
        "- **Cores:** the server under test has core 0. Triton, the load generator and the control plane share core 1. "
        "Ensembles run inside Triton, which then gets both cores.",
        "- **CPU time** is that of the server's whole process tree, read from the operating system before and after "
        "each load, per answered request.",
        "- **Rounds** of all systems are interleaved. Tables show the median and, in brackets, the range over rounds. "
        "Ratios are computed within rounds.",
        "- **Texts** are sentences of Zipf-distributed words, not repeated, with 2 % of the words never seen before. "
        "Mean tokens: " + ", ".join(f"{k} {v:.0f}" for k, v in facts["tokens"].items()) + ".",
        "- **Same conditions:** every system gets the same texts, uses the same tokenizer files and calls the same "
        "model in the same Triton.",
        "- **The gateway** runs as users run it: it follows the serving Task in the embedded control plane, with "
        "metrics, stage times and limits on, on a canary route. Stock clearml-serving runs with statistics off.",
        "- **Models** (backends):", "",
        "| model | what it is |", "|---|---|",
        *(f"| `{k}` | {v} |" for k, v in _BACKENDS.items() if k in facts["backends"]), "",
        "## Figures", "",
        "One table per model, length of the texts and load; the cheapest system is first. *Triton CPU*: CPU time of "
        "Triton per request. *RSS*: memory of the server (of an ensemble: of Triton).", "",
        *tables(run["cells"]),
    ]  # fmt: skip
    if run["missing"]:
        lines += ["## Not measured", ""]
        lines += [f"- `{what}`: {why.splitlines()[0][:200]}" for what, why in run["missing"].items()] + [""]
    lines += ["## Versions", ""]
    for side, packages in facts["packages"].items():
        lines.append(f"- {side}: " + ", ".join(f"{package} {version}" for package, version in packages.items()))
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
    """Yield the lines of every place's table."""
    for (backend, texts, connections, rate), systems in _groups(cells).items():
        load = f"{rate:g} requests/s offered" if rate else f"{connections} connection{'s' * (connections > 1)}"
        yield from (f"### {backend}, {texts} texts, {load}", "")
        ours = {cell["round"]: _cpu(cell) for cell in systems.get(NOW, ())}
        ordered = sorted(systems.items(), key=lambda one: statistics.median(map(_cpu, one[1])))
        rows = [_row(system, rounds, ours) for system, rounds in ordered]
        yield from (table([_HEADS, *rows], align=["---", *["---:"] * (len(_HEADS) - 1)]), "")


def _row(system: str, rounds: Sequence[Cell], ours: Mapping[int, float]) -> list[str]:
    def shown(values: Sequence[float], digits: int = 0) -> str:
        if not any(values):
            return "–"
        range_ = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
        return f"{statistics.median(values):.{digits}f}{range_}"

    def figure(name: str, digits: int = 0) -> str:
        return shown([float(cell[name]) for cell in rounds], digits)

    beside = [_cpu(cell) / ours[cell["round"]] for cell in rounds if ours.get(cell["round"])]
    return [
        SYSTEMS[system].title, figure("own_us"), figure("triton_us"), "1" if system == NOW else shown(beside, 2),
        figure("rps"), figure("p50_ms", 2), figure("p99_ms", 2), figure("batch", 1),
        f"{statistics.median(cell['rss_mb'] for cell in rounds):.0f}", str(sum(cell["errors"] for cell in rounds)),
    ]  # fmt: skip


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
