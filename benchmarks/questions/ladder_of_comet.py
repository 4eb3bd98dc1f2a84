"""How many requests per second does each rung of Comet's ladder of serving BERT answer on this machine, and ours?

The rungs: FastAPI with a plain pipeline, one thread per worker, a distilled model, dynamic int8, and this system with
the bundle that ``triton-gateway optimize`` makes of the distilled model. Every rung answers the same texts over HTTP,
with the client on the same cores. Finished rungs are kept, so an interrupted run continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared import models, optimized, processes
from benchmarks.shared.command import ROOT, Say, narrator, parser
from benchmarks.shared.load import closed_loop, render
from benchmarks.shared.optimized import measured_on
from benchmarks.shared.results import save, table
from benchmarks.shared.stack import Small
from benchmarks.shared.statistics import percentiles_ms
from deploy.bundles.pack import manifest

TAKES = "5 minutes, can be interrupted"
SAVES = "results/comet.json, docs/benchmarks-models.md"
TOKENS = 64
CONNECTIONS = 8


@dataclass(frozen=True)
class Rung:
    """One step of the ladder that is a FastAPI server."""

    name: str
    model: str
    workers: int
    threads: int
    is_int8: bool = False


def rungs(cores: int) -> list[Rung]:
    """Return the FastAPI rungs for ``cores`` cores."""
    return [
        Rung("BERT, FastAPI + vanilla pipeline", "bert", 1, 0),
        Rung("BERT, one thread per worker", "bert", cores, 1),
        Rung("DistilBERT, one thread per worker", "distilbert", cores, 1),
        Rung("DistilBERT, PyTorch dynamic int8", "distilbert", cores, 1, is_int8=True),
    ]


def measure(url: str, texts: Sequence[str], seconds: float) -> dict[str, float]:
    """Return rate and latencies of one address under ``CONNECTIONS`` clients."""
    requests = render(url, [json.dumps({"text": text}).encode() for text in texts])
    for duration in (seconds / 3, seconds):
        outcome = closed_loop(url, requests, duration, connections=CONNECTIONS)
    if outcome.errors or not outcome.requests:
        raise processes.ServerFailed(f"{outcome.errors} requests failed: {outcome.first_error}")
    return {"rps": outcome.requests / outcome.seconds, **percentiles_ms(outcome.latencies, 50, 95)}


def climb(state: Path, seconds: float, candidate: str, say: Say) -> dict[str, Any]:
    """Measure every rung that has not been measured yet."""
    note = state / "comet.json"
    found: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {"rungs": {}}
    found |= {"machine": manifest.machine(), "versions": manifest.versions(), "tokens": TOKENS,
              "connections": CONNECTIONS, "candidate": candidate}  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    folders = {name: models.make(name, state / name) for name in ("bert", "distilbert")}
    texts = models.texts(folders["bert"], TOKENS, 64)

    def keep(name: str, result: dict[str, float]) -> None:
        found["rungs"][name] = result
        note.write_text(json.dumps(found, indent=1) + "\n")
        say(f"{name}: {result['rps']:.1f} requests/s, p50 {result['p50_ms']:.0f} ms, p95 {result['p95_ms']:.0f} ms")

    for rung in rungs(cores):
        if rung.name in found["rungs"]:
            continue
        port = processes.free_port()
        env = {
            **os.environ, "BENCH_FOLDER": str(folders[rung.model]), "BENCH_THREADS": str(rung.threads),
            "BENCH_INT8": "1" if rung.is_int8 else "", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        argv = [sys.executable, "-m", "uvicorn", "--factory", "benchmarks.peers.programs.classifier:create_app",
                "--log-level", "warning", "--port", str(port), "--workers", str(rung.workers)]  # fmt: skip
        server = processes.Server(rung.name, argv, env=env, cores=range(cores), log=state / "logs" / "comet.log")
        try:
            url = f"http://{processes.LOOPBACK}:{port}/classify"
            server.wait_for(url, b'{"text": "warm up"}', timeout_s=120)
            time.sleep(2.0)  # the other workers load their model too
            keep(rung.name, measure(url, texts, seconds))
        finally:
            server.stop()
    ours = "DistilBERT, triton-gateway"
    if ours not in found["rungs"]:
        bundle = optimized.bundle(state, folders["distilbert"], say, candidate)
        small = Small(state / "stack-comet", tritons=1)
        try:
            setting = optimized.settings(cores)[0]
            optimized.serve(small, bundle, [setting], say)
            keep(ours, measure(f"{small.url}/serve/{setting.endpoint}", texts, seconds))
        finally:
            small.stop()
    return found


def ladder(found: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the rungs."""
    first = next(iter(found["rungs"].values()))["rps"]
    rows = [["rung", "requests/s", "p50", "p95", "× first"]]
    rows += [
        [name, f"{r['rps']:.1f}", f"{r['p50_ms']:.0f} ms", f"{r['p95_ms']:.0f} ms", f"{r['rps'] / first:.1f}"]
        for name, r in found["rungs"].items()
    ]
    return rows


def section(found: Mapping[str, Any]) -> str:
    """Return the section of the page about Comet's ladder."""
    load = f"{found['tokens']} tokens, {found['connections']} clients; other programs shared the machine."
    about = f"{measured_on(found)} {load} The last rung serves `{found['candidate']}`" + (
        " with `--accept`, because the gate of `optimize` refuses it for these random weights. The answers of the rung "
        "before it, PyTorch's dynamic int8, were not checked."
        if "int8" in found["candidate"]
        else ", which passes the gate."
    )
    return "\n\n".join(["## Comet's ladder: BERT behind HTTP", about, table(ladder(found))])


def main(argv: Sequence[str] | None = None) -> int:
    """Climb and print the ladder."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--state-dir", type=Path, default=optimized.FOLDER)
    arguments.add_argument("--candidate", default="openvino-int8", help="candidate of `triton-gateway optimize`")
    arguments.add_argument("--seconds", type=float, default=6.0, help="seconds per rung")
    options = arguments.parse_args(argv)
    state = options.state_dir.absolute()
    state.mkdir(parents=True, exist_ok=True)
    found = climb(state, options.seconds, options.candidate, narrator())
    if options.save:
        save("comet", found)
    print(table(ladder(found)))
    return 0
