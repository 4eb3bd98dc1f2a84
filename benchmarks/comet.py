"""The ladder of Comet's article on serving BERT, on this machine: requests per second and latency of every rung.

FastAPI with a vanilla pipeline → one thread per worker → a distilled model → dynamic int8 → this system with the
bundle ``triton-gateway optimize`` makes of the distilled model. Every rung answers the same texts over HTTP, with the
client on the same cores. Finished rungs are kept: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import infinity, models, servers
from benchmarks.load import Load, percentile, render
from benchmarks.small import Small
from deploy.bundles.pack import manifest

RESULTS = Path(__file__).parent / "results" / "comet.json"
TOKENS = 64
CONNECTIONS = 8
ROOT = Path(__file__).resolve().parents[1]

Say = Callable[[str], None]


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
        load = Load(url, requests, connections=CONNECTIONS)
        try:
            outcome = load.closed_loop(duration)
        finally:
            load.close()
    if outcome.errors or not outcome.requests:
        raise servers.ServerFailed(f"{outcome.errors} requests failed: {outcome.first_error}")
    ordered = sorted(outcome.latencies)
    return {
        "rps": outcome.requests / outcome.seconds,
        **{f"p{q}_ms": percentile(ordered, q) * 1000 for q in (50, 95)},
    }


def climb(state: Path, seconds: float, candidate: str, say: Say) -> dict[str, Any]:
    """Measure every rung that was not measured yet."""
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
        port = servers.free_port()
        env = {
            **os.environ, "BENCH_FOLDER": str(folders[rung.model]), "BENCH_THREADS": str(rung.threads),
            "BENCH_INT8": "1" if rung.is_int8 else "", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        argv = [sys.executable, "-m", "uvicorn", "--factory", "benchmarks.peers.classifier:create_app", "--log-level",
                "warning", "--port", str(port), "--workers", str(rung.workers)]  # fmt: skip
        server = servers.Server(rung.name, argv, env=env, cores=range(cores), log=state / "logs" / "comet.log")
        try:
            url = f"http://{servers.LOOPBACK}:{port}/classify"
            server.wait_for(url, b'{"text": "warm up"}', timeout_s=120)
            time.sleep(2.0)  # the other workers load their model too
            keep(rung.name, measure(url, texts, seconds))
        finally:
            server.stop()
    ours = "DistilBERT, triton-gateway"
    if ours not in found["rungs"]:
        bundle = infinity.optimized(state, folders["distilbert"], say, candidate)
        small = Small(state / "stack-comet", tritons=1)
        try:
            setting = infinity.settings(cores)[0]
            infinity.serve(small, bundle, [setting], say)
            keep(ours, measure(f"{small.url}/serve/{setting.endpoint}", texts, seconds))
        finally:
            small.stop()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Climb and print the ladder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comet", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=Path(".triton-gateway/bench/infinity"))
    parser.add_argument("--candidate", default="openvino-int8", help="of `triton-gateway optimize` [openvino-int8]")
    parser.add_argument("--seconds", type=float, default=6.0, help="of every rung")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS}")
    options = parser.parse_args(argv)
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stderr.flush()

    state = options.state_dir.absolute()
    state.mkdir(parents=True, exist_ok=True)
    found = climb(state, options.seconds, options.candidate, say)
    if options.save:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    first = next(iter(found["rungs"].values()))["rps"]
    for name, result in found["rungs"].items():
        print(f"{name:40}  {result['rps']:7.1f}/s  p50 {result['p50_ms']:6.0f} ms  p95 {result['p95_ms']:6.0f} ms"
              f"  × {result['rps'] / first:.1f}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
