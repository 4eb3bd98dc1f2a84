"""Which settings suit an ONNX Runtime session on a CPU: memory arena, execution mode, spinning threads?

DistilBERT (random weights) runs over texts of mixed length. Each setting runs in a fresh process; settings take turns,
and the best round counts. It reports milliseconds per call and the process's peak memory. The first setting is that of
Triton's model program (``deploy/modelsync/runtime/onnx_model.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared import models, optimized
from benchmarks.shared.command import ROOT, again, narrator, parser, tell
from benchmarks.shared.results import save
from deploy.bundles.pack import manifest

TAKES = "2 minutes"
SAVES = "results/sessions.json"
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
    tell({"ms": took, "mib": peak})


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every setting and print a table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--state-dir", type=Path, default=optimized.FOLDER)
    arguments.add_argument("--seconds", type=float, default=3.0, help="seconds per setting and round")
    arguments.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.child:
        path, setting, threads = options.child
        child(Path(path), setting, int(threads), options.seconds)
        return 0
    say, state = narrator(), options.state_dir.absolute()
    folder = models.make("distilbert", state / "distilbert")
    optimized.bundle(state, folder, say, "openvino-int8")
    path = next(iter((state / "optimized" / ".work").glob("distilbert-*/fp32.onnx")))
    found: dict[str, dict[str, list[float]]] = {}
    for threads in sorted({1, os.cpu_count() or 1}):
        best: dict[str, list[float]] = {}
        for round_ in range(_ROUNDS):
            for setting in SETTINGS:
                say(f"{threads} threads, round {round_ + 1}: {setting}")
                again_ = again(__name__, "--seconds", str(options.seconds), "--child", str(path), setting, str(threads))
                done = subprocess.run(again_, stdout=subprocess.PIPE, text=True, check=True, timeout=300, cwd=ROOT)
                one = json.loads(done.stdout)
                before = best.get(setting, [one["ms"], one["mib"]])
                best[setting] = [min(one["ms"], before[0]), max(one["mib"], before[1])]
        found[str(threads)] = best
    if options.save:
        save("sessions", {"machine": manifest.machine(), "threads": found})
    for threads_, best in found.items():
        served = best["as served"][0]
        for setting, (ms, peak) in best.items():
            print(f"{threads_} threads  {setting:20} {ms:7.2f} ms  {ms / served:5.2f}  {peak:6.0f} MiB")
    return 0
