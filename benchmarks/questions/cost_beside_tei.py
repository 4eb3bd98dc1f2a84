"""What does an embedding cost through the gateway and Triton, and through Text Embeddings Inference's Rust server?

Both answer the same texts with the same ONNX file in ONNX Runtime, on one core: the gateway and Triton share it, Text
Embeddings Inference has it alone, and the load has the other core. ``static`` is nearly free (the mean of one vector
per token), so it shows the cost of everything around a model; ``minilm`` is the real all-MiniLM-L6-v2. ``c16`` are 16
connections that wait for their answers, ``110rps`` are 110 requests a second at random. CPU is that of all processes of
a system. Rounds are interleaved, and ratios are formed within rounds. Text Embeddings Inference runs without spans and
logs no requests; the gateway runs with everything on.

``--router`` is Text Embeddings Inference's program, ``text-embeddings-router``, built with its ONNX Runtime engine
(``ort``). If it loads ONNX Runtime's library at its start, set ``ORT_DYLIB_PATH``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers.plan import Scenario
from benchmarks.peers.run import bring_up, measure_cell, start
from benchmarks.peers.systems import SERVER_CORE, SYSTEMS, Bench, Running, System
from benchmarks.shared.backends import Backend
from benchmarks.shared.command import ROOT, STATE, Say, narrator, parser
from benchmarks.shared.results import facts_of, interval, put, rounds_of, save, table
from benchmarks.shared.statistics import ratio
from tests import processes

TAKES = "9 minutes"
SAVES = "results/tei.json, README.md"
PAGE: Final = ROOT / "README.md"
PEER: Final = "tei"
OURS: Final = {"gateway_serve": "/serve/{name}", "gateway_tei": "/tei/{name}/embed"}
"""System → its path. The second one is Text Embeddings Inference's own request, byte for byte."""
FIGURES: Final = {"rps": "throughput", "p50_ms": "p50", "p99_ms": "p99", "cpu_us": "CPU"}
_ALL: Final = (*OURS, PEER)
CELLS: Final = (
    Scenario("static", "short", 64, _ALL, 6, 2.5),
    Scenario("static", "long", 64, _ALL, 6, 2.5),
    *(Scenario("minilm", "short", callers, _ALL, 5, 4.0) for callers in (1, 16, 64)),
    Scenario("minilm", "short", 64, _ALL, 5, 10.0, 110.0),
)


class Disagreement(Exception):
    """Two systems answer a text differently, so their costs cannot be compared."""


def _inputs(text: str) -> bytes:
    return json.dumps({"inputs": text}).encode()


def _ours(bench: Bench, backend: Backend, *, path: str) -> Running:
    running = SYSTEMS["gateway"].start(bench, backend)
    running.url = running.url.partition("/serve/")[0] + path.format(name=backend.name)
    running.body = _inputs
    running.triton_cores = (SERVER_CORE,)
    return running


def _tei(bench: Bench, backend: Backend, *, router: Path) -> Running:
    port, metrics = processes.free_ports(2)
    argv = [
        str(router), "--model-id", str(bench.bundles[backend.name]), "--hostname", processes.LOOPBACK, "--port",
        str(port), "--prometheus-port", str(metrics), "--pooling", "mean", "--dtype", "float32", "--disable-spans",
    ]  # fmt: skip
    server = bench.start(PEER, argv, bench.environment(backend, LOG_LEVEL="warn"))
    return Running(f"http://{processes.LOOPBACK}:{port}/embed", _inputs, server, [])


def run(router: Path, cells: Sequence[Scenario], state: Path, say: Say) -> list[dict[str, Any]]:
    """Measure all cells; returns one row per cell. Raises ``Disagreement`` and ``ServerFailed``."""
    for name, path in OURS.items():
        SYSTEMS[name] = System(name, f"triton-gateway, {path}", partial(_ours, path=path))
    SYSTEMS[PEER] = System(PEER, "Text Embeddings Inference", partial(_tei, router=router), uses_triton=False)
    rows = []
    with contextlib.ExitStack() as stack:
        bench = bring_up(stack, cells, state, say)
        for backend in dict.fromkeys(cell.backend for cell in cells):
            with contextlib.ExitStack() as started:
                running = {system: start(bench, started, backend, system) for system in _ALL}
                _agree(running)
                for cell in (cell for cell in cells if cell.backend == backend):
                    rounds = []
                    for number in range(cell.rounds):
                        order = _ALL if number % 2 else _ALL[::-1]
                        rounds.append({s: measure_cell(bench, running[s], cell, s, number) for s in order})
                    rows.append(row(cell, rounds))
                    say(line(rows[-1]))
    return rows


def _agree(running: Mapping[str, Running]) -> None:
    """Raise ``Disagreement`` unless the peer and its protocol on the gateway give the same vector."""
    for text in ("a first text", "Another one, which is somewhat longer than the first; with 3 numbers: 1, 22, 333."):
        found = [np.array(json.loads(processes.ask(running[name].url, _inputs(text)))[0]) for name in _ALL[1:]]
        if found[0].shape != found[1].shape or float(found[0] @ found[1]) < 0.9999:
            raise Disagreement(f"{text!r}: {found[0][:4]} … and {found[1][:4]} …")


def row(cell: Scenario, rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return a cell's medians of each system, and ratios to the peer with their 95 % bootstrap intervals; pure."""
    each = [
        {name: {**one, "cpu_us": one["own_us"] + one["triton_us"]} for name, one in taken.items()} for taken in rounds
    ]
    return {
        "cell": cell.name, "rounds": len(each),
        "errors": sum(one["errors"] for taken in each for one in taken.values()),
        "systems": {
            name: {f: float(np.median([taken[name][f] for taken in each])) for f in (*FIGURES, "own_us")}
            for name in _ALL
        },
        "ratios": {
            name: {f: asdict(ratio([(taken[name][f], taken[PEER][f]) for taken in each])) for f in FIGURES}
            for name in OURS
        },
    }  # fmt: skip


def line(found: Mapping[str, Any]) -> str:
    """Return a cell as one line of text."""
    parts = [f"{found['cell']:<18}"]
    for name in OURS:
        told = (f"{title} × {found['ratios'][name][f]['median']:.2f}" for f, title in FIGURES.items())
        parts.append(f"{name}: {', '.join(told)} ({found['systems'][name]['cpu_us']:.0f} µs)")
    return "  ".join([*parts, f"tei {found['systems'][PEER]['cpu_us']:.0f} µs", f"errors {found['errors']}"])


def shown(found: Mapping[str, Any]) -> str:
    """Return the README's table of `/serve`: what the Rust server does better stands first."""
    rows = [["model, texts, load", *(f"{title}, over the Rust server" for title in FIGURES.values())]]
    ours = [(cell["cell"], cell["ratios"]["gateway_serve"]) for cell in found["cells"]]
    for name, ratios in sorted(ours, key=lambda each: each[1]["rps"]["median"]):
        rows.append([name, *(interval(ratios[figure]) for figure in FIGURES)])
    facts = found["facts"]
    legend = (
        "static: a nearly free model, the mean of one vector per token; c16: callers that wait for their answers; "
        "110rps: requests a second at random"
    )
    return f"{table(rows)}\n\n{legend}. {rounds_of(found['cells'])}; {facts['commit']} beside {facts['peer']}."


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument(
        "--router", type=Path, default=None, help="the program text-embeddings-router [the one on the PATH]"
    )
    arguments.add_argument("--state-dir", type=Path, default=STATE, help="folder for files kept between runs")
    arguments.add_argument("--cell", action="append", default=[], help="only cells whose name contains this")
    arguments.add_argument("--rounds", type=int, default=0, help="rounds of every cell")
    options = arguments.parse_args(argv)
    router = options.router or shutil.which("text-embeddings-router")
    if router is None or not Path(router).is_file():
        arguments.error("text-embeddings-router is not there: name the program with --router")
    say = narrator()
    cells = [c for c in CELLS if not options.cell or any(part in c.name for part in options.cell)]
    if options.rounds:
        cells = [replace(cell, rounds=options.rounds) for cell in cells]
    facts = facts_of(min(cell.rounds for cell in cells))
    try:
        rows = run(Path(router).resolve(), cells, options.state_dir.absolute(), say)
    except (Disagreement, processes.ServerFailed) as error:
        say(f"error: {error}")
        return 1
    sys.stdout.write("\n".join(map(line, rows)) + "\n")
    if options.save:
        asked = subprocess.run([str(router), "--version"], capture_output=True, text=True, check=True, timeout=30)
        found = {"facts": {**facts, "peer": asked.stdout.strip()}, "cells": rows}
        save("tei", found)
        put(PAGE, "tei", shown(found))
    return 0
