"""Reports a run: a table and the checklist on stdout, JSON in ``results/``, plots and ``docs/benchmarks.md``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.analysis import ARTICLE_GAIN, Row, checklist, cores_needed, rows, scaling
from benchmarks.peers.systems import SYSTEMS
from benchmarks.shared import environments
from benchmarks.shared.command import ROOT
from benchmarks.shared.results import DOCS, IMAGES, RESULTS
from benchmarks.shared.statistics import Spread

PLOTS = {
    "cpu": "CPU time per request, in front of Triton and inside it",
    "throughput": "Requests per second over connections",
    "latency": "Latency over connections",
    "open-loop": "Latency over the offered rate (open loop)",
    "scaling": "Throughput over the AutoTokenizer ensemble, by gateway cores",
}
_BACKENDS = {
    "instant": "a model that answers at once, so the figures are the cost of everything around it",
    "vectors": "the same with an embedding of 384 numbers, for comparing protocols (OpenAI's has only embeddings)",
    "gpu": "a model that behaves as on a GPU: 4 ms per call + 0.05 ms per row, at most 64 rows, one call at a time",
    "minilm": "the real all-MiniLM-L6-v2 (ONNX Runtime, CPU, one core)",
}


def report(run: Mapping[str, Any], *, name: str, state: Path, write_docs: bool, say: Callable[[str], None]) -> None:
    """Print the run; save it under ``results/`` and, on request, in the documentation."""
    found = rows(run["cells"])
    text = "\n".join([*_plain(found), "", *(check.line() for check in checklist(run)), *_scaling_lines(run)])
    sys.stdout.write(text + "\n")
    for what, why in run["missing"].items():
        sys.stdout.write(f"not measured: {what}: {why.splitlines()[0][:200]}\n")
    saved = {**run, "missing": {k: _without_paths(v, state) for k, v in run["missing"].items()}}
    saved["facts"] = {**run["facts"], "command": _without_paths(run["facts"]["command"], state)}
    folder = RESULTS if write_docs else state / "results"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(_compact(saved))
    say(f"saved as {path}")
    if not write_docs:
        return
    images = _draw(path, state, say)
    (DOCS / "benchmarks.md").write_text(markdown(json.loads(path.read_text()), name=name, images=images))
    say("wrote docs/benchmarks.md")


def markdown(run: Mapping[str, Any], *, name: str, images: Sequence[str]) -> str:
    """Return the documentation's page of a run."""
    facts = run["facts"]
    lines = [
        "# Benchmarks", "",
        "This page compares triton-gateway with other ways to serve the same model: CPU time per request, throughput "
        "and latency. `python -m benchmarks` wrote it; every figure and verdict is computed from one run, saved in "
        f"`benchmarks/results/{name}.json`. To run it yourself:", "",
        "```sh", facts["command"], "```", "",
        "| | |", "|---|---|",
        f"| machine | {facts['cpu']}, {facts['cores']} cores |",
        f"| GPU | {facts['gpu']} |",
        f"| date, commit | {facts['began']}, {facts['commit']} |",
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
        "## Results and targets", "",
        "Each line has the median, the range over rounds and the target; most are ratios of two systems. `ok`: target "
        "met. `MISS`: not met. `??`: not measured in this run. *Floor*: a bare ASGI server with orjson and tokenizers, "
        "without a model.", "",
        "```text", *(check.line() for check in checklist(run)), *_scaling_lines(run), "```", "",
        *(f"![{PLOTS[image]}](images/benchmark-{image}.png)\n" for image in images),
        "## All figures", "",
        "One table per model, length of the texts and load. *Triton CPU*: CPU time of Triton per request. *batch*: "
        "mean rows per call of the model. *RSS*: memory of the server (of an ensemble: of Triton).", "",
        *_tables(rows(run["cells"])),
    ]  # fmt: skip
    if run["direct"]:
        lines += ["## Calls to Triton without a server between", ""]
        lines += [
            f"- `{d['backend']}`, round {d['round'] + 1}: p50 {d['call_p50_ms']:.2f} ms, p99 {d['call_p99_ms']:.2f} ms "
            f"for the call; tokenization p50 {d['tokenize_p50_ms']:.3f} ms."
            for d in run["direct"]
        ] + [""]
    if run["missing"]:
        lines += ["## Not measured", ""]
        lines += [f"- `{what}`: {why.splitlines()[0][:200]}" for what, why in run["missing"].items()] + [""]
    lines += ["## Versions", ""]
    for side, packages in facts["packages"].items():
        lines.append(f"- {side}: " + ", ".join(f"{package} {version}" for package, version in packages.items()))
    return "\n".join(lines) + "\n"


def _titles(row: Row) -> str:
    return SYSTEMS[row.system].title if row.system in SYSTEMS else row.system


def _spread(value: Spread, digits: int = 0) -> str:
    return f"{value.median:.{digits}f} ({value.low:.{digits}f}–{value.high:.{digits}f})"


def _groups(found: Sequence[Row]) -> Iterator[tuple[tuple[str, str, int, float], list[Row]]]:
    groups: dict[tuple[str, str, int, float], list[Row]] = {}
    order = list(SYSTEMS)
    for row in found:
        groups.setdefault((row.backend, row.texts, row.connections, row.rate), []).append(row)
    ranks = {name: i for i, name in enumerate(_BACKENDS)}
    for place in sorted(groups, key=lambda p: (p[3], ranks.get(p[0], 9), p[1] != "short", p[1], p[2])):
        yield place, sorted(groups[place], key=lambda row: order.index(row.system))


def _where(place: tuple[str, str, int, float]) -> str:
    backend, texts, connections, rate = place
    load = f"{rate:g} requests/s offered" if rate else f"{connections} connection{'s' * (connections > 1)}"
    return f"{backend}, {texts} texts, {load}"


def _tables(found: Sequence[Row]) -> Iterator[str]:
    for place, group in _groups(found):
        yield f"### {_where(place)}"
        yield ""
        yield "| system | CPU µs | Triton CPU µs | requests/s | p50 ms | p90 ms | p99 ms | batch | RSS MB | errors |"
        yield "|---|---|---|---|---|---|---|---|---|---|"
        for row in group:
            f = row.figures
            own = _spread(f["own_us"]) if f["own_us"].median else "–"
            triton = _spread(f["triton_us"]) if f["triton_us"].median else "–"
            batch = f"{f['batch'].median:.1f}" if f["batch"].median else "–"
            yield (
                f"| {_titles(row)} | {own} | {triton} | {_spread(f['rps'])} | {_spread(f['p50_ms'], 2)} | "
                f"{f['p90_ms'].median:.2f} | {_spread(f['p99_ms'], 2)} | {batch} | {f['rss_mb'].median:.0f} | "
                f"{row.errors} |"
            )
        yield ""


def _plain(found: Sequence[Row]) -> Iterator[str]:
    for place, group in _groups(found):
        yield ""
        yield _where(place)
        yield (
            f"  {'system':<16}{'CPU µs':>20}{'Triton CPU µs':>18}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}"
            f"{'batch':>7}{'errors':>8}"
        )
        for row in group:
            f = row.figures
            yield (
                f"  {row.system:<16}{_spread(f['own_us']):>20}{_spread(f['triton_us']):>18}{f['rps'].median:12.0f}"
                f"{f['p50_ms'].median:9.2f}{f['p99_ms'].median:9.2f}{f['batch'].median:7.1f}{row.errors:8}"
            )


def _scaling_lines(run: Mapping[str, Any]) -> Iterator[str]:
    points = scaling(run)
    if points:
        cores = cores_needed(points)
        passed = f"reached with {cores} gateway core{'s' * (cores > 1)}" if cores else "not reached"
        yield (
            "computed from measured costs: throughput / AutoTokenizer ensemble, by gateway cores: "
            + ", ".join(f"{n}: {r:.2f}" for n, r in points) + f"; {ARTICLE_GAIN} (ClearML's article): {passed}"
        )  # fmt: skip


def _compact(run: Mapping[str, Any]) -> str:
    """Return JSON with one cell per line: small enough to commit, readable in a diff."""

    def rounded(value: Any) -> Any:
        return float(f"{value:.6g}") if isinstance(value, float) else value

    cells = ",\n".join("  " + json.dumps({k: rounded(v) for k, v in cell.items()}) for cell in run["cells"])
    head = json.dumps({k: v for k, v in run.items() if k != "cells"}, indent=1)
    return f'{head[:-2]},\n "cells": [\n{cells}\n ]\n}}\n'


def _draw(path: Path, state: Path, say: Callable[[str], None]) -> list[str]:
    try:
        python = environments.python(state / "environments", "plot", say)
    except environments.CannotInstall as error:
        say(f"no plots: {error}")
        return []
    IMAGES.mkdir(parents=True, exist_ok=True)
    program = Path(__file__).with_name("plots.py")
    plan = {"titles": {name: system.title for name, system in SYSTEMS.items()}, "plots": PLOTS, "gain": ARTICLE_GAIN,
            "scaling": scaling(json.loads(path.read_text()))}  # fmt: skip
    done = subprocess.run(
        [str(python), "-I", str(program), str(path), str(IMAGES)], input=json.dumps(plan), capture_output=True,
        text=True, timeout=180, check=False,
    )  # fmt: skip
    if done.returncode:
        say(f"no plots: {done.stderr.strip().splitlines()[-1:]}")
        return []
    return done.stdout.split()


def _without_paths(text: str, state: Path) -> str:
    for path, shown in ((state, "STATE"), (ROOT, "."), (Path.home(), "~")):
        text = text.replace(str(path), shown)
    return text
