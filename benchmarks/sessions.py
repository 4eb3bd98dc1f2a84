"""How an ONNX Runtime session on a CPU is best set up: memory arena, execution mode, spinning threads.

``python -m benchmarks.sessions`` runs DistilBERT (random weights) over texts of mixed length, each setting in a fresh
process, in turns, best of the rounds: milliseconds per call, and the memory the process held at its largest. The first
setting is what Triton's model program uses (``deploy/modelsync/runtime/onnx_model.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import infinity, models
from deploy.bundles.pack import manifest

RESULTS = Path(__file__).parent / "results" / "sessions.json"
SETTINGS = ("as served", "no arena", "arena that shrinks", "parallel mode", "spinning")
_LENGTHS = (8, 24, 16, 128, 64, 32, 384, 96, 16, 512, 48, 256)
_ROUNDS = 3


def child(path: Path, setting: str, threads: int, seconds: float) -> None:
    """Measure one setting in this process; prints ms per call and MiB."""
    import resource
    import time

    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if setting == "spinning" else "0")
    options.enable_cpu_mem_arena = setting != "no arena"
    if setting == "parallel mode":
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 2
    run = onnxruntime.RunOptions()
    if setting == "arena that shrinks":
        run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    texts = [rng.integers(1000, 20000, (1, length)) for length in _LENGTHS]
    feeds = [{"input_ids": ids, "attention_mask": np.ones_like(ids)} for ids in texts]
    for feed in feeds:
        session.run(None, feed, run)
    began, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - began < seconds:
        for feed in feeds:
            session.run(None, feed, run)
        calls += len(feeds)
    took = (time.perf_counter() - began) / calls * 1000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps([took, peak]))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every setting and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sessions", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=Path(".triton-gateway/bench/infinity"))
    parser.add_argument("--seconds", type=float, default=3.0, help="of every setting and round")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS}")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        path, setting, threads = options.child
        child(Path(path), setting, int(threads), options.seconds)
        return 0
    state = options.state_dir.absolute()
    folder = models.make("distilbert", state / "distilbert")
    infinity.optimized(state, folder, lambda text: sys.stderr.write(f"{text}\n"), "openvino-int8")
    path = next(iter((state / "optimized" / ".work").glob("distilbert-*/fp32.onnx")))
    found: dict[str, dict[str, list[float]]] = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        best: dict[str, list[float]] = {}
        for round_ in range(_ROUNDS):
            for setting in SETTINGS:
                sys.stderr.write(f"{threads} threads, round {round_ + 1}: {setting}\n")
                argv_ = [sys.executable, "-m", "benchmarks.sessions", "--seconds", str(options.seconds),
                         "--child", str(path), setting, str(threads)]  # fmt: skip
                done = subprocess.run(argv_, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
                ms, peak = json.loads(done.stdout)
                before = best.get(setting, [ms, peak])
                best[setting] = [min(ms, before[0]), max(peak, before[1])]
        found[str(threads)] = best
    if options.save:
        RESULTS.write_text(json.dumps({"machine": manifest.machine(), "threads": found}, indent=1) + "\n")
    for threads_, best in found.items():
        served = best["as served"][0]
        for setting, (ms, peak) in best.items():
            print(f"{threads_} threads  {setting:20} {ms:7.2f} ms  {ms / served:5.2f}  {peak:6.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
