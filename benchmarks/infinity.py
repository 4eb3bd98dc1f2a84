"""HF Infinity's published grid for DistilBERT, on this system: lengths × batches × cores, end to end over HTTP.

``python -m benchmarks.infinity`` makes the model, optimises it, registers it, serves it through a real gateway and a
real Triton, and measures every cell with one client (latency) and with several (requests per second); a vanilla
``transformers`` pipeline is measured in the same run, between the cells. Finished cells are kept: an interrupted run
goes on. The client runs on the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, models, servers
from benchmarks.load import Load, percentile, render
from benchmarks.small import Small
from deploy.optimize import manifest
from deploy.optimize.serving import Tuned, add_arguments
from deploy.stock_cli import Tensor

LENGTHS = (8, 16, 32, 64, 128, 256, 384, 512)
BATCHES = (1, 2, 4, 8, 16, 32)
PUBLISHED = {8: 248, 16: 212, 32: 150, 64: 97, 128: 55, 256: 27, 384: 17, 512: 12}
"""Requests per second of HF Infinity with DistilBERT on two Ice Lake cores, batch 1, by tokens."""
VANILLA_PUBLISHED = {8: 49, 16: 50, 32: 40, 64: 28, 128: 18, 256: 9, 384: 5, 512: 4}
FACTOR = 1.2
CONNECTIONS = (1, 4, 16)
RESULTS = Path(__file__).parent / "results" / "infinity.json"

_INPUTS = [Tensor(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask")]
_OUTPUTS = [Tensor("logits", "float32", (-1, 2))]
_TEXTS = 64
_MOST_TOKENS = 20_000
"""Of all clients' requests at a time."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """How Triton runs the model."""

    cores: int
    instances: int
    threads: int

    @property
    def endpoint(self) -> str:
        """Its url."""
        return f"distilbert-{self.instances}x{self.threads}"


def settings(cores: int) -> list[Setting]:
    """Return what is measured on this machine: one core, all cores as instances, all cores as threads."""
    found = [Setting(1, 1, 1)]
    return [*found, Setting(cores, cores, 1), Setting(cores, 1, cores)] if cores > 1 else found


def optimized(state: Path, folder: Path, candidate: str, say: Say) -> Path:
    """Return the bundle of ``folder`` as ``candidate``, made by the command a user would type."""
    note = state / f"bundle-{candidate}.json"
    if note.exists() and Path(json.loads(note.read_text())["bundle"]).exists():
        return Path(json.loads(note.read_text())["bundle"])
    say(f"triton-gateway optimize --candidate {candidate}")
    argv = [
        sys.executable,
        "-m",
        "deploy.cli",
        "optimize",
        str(folder),
        "--output",
        str(state / "optimized"),
        "--quick",
    ]
    argv += ["--candidate", candidate, "--accept", "random weights: only speed is measured", "--latency", "--json"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=1200)
    note.write_text(done.stdout)
    return Path(json.loads(done.stdout)["bundle"])


class Vanilla:
    """A ``transformers`` pipeline in a process of its own, on all cores, asked between the cells."""

    def __init__(self, folder: Path) -> None:
        argv = [sys.executable, "-m", "benchmarks.infinity", "--vanilla", str(folder)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask({"texts": ["warm up"], "seconds": 0.1})

    def rate(self, texts: Sequence[str], seconds: float) -> float:
        """Return texts per second, one call each."""
        return float(self._ask({"texts": list(texts), "seconds": seconds})["rate"])

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def vanilla(folder: Path) -> None:
    """Answer questions on stdin about the pipeline's speed."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    for line in sys.stdin:
        question = json.loads(line)
        texts, done, began = question["texts"], 0, time.perf_counter()
        while done == 0 or time.perf_counter() - began < question["seconds"]:
            classify(texts[done % len(texts)])
            done += 1
        sys.stdout.write(json.dumps({"rate": done / (time.perf_counter() - began)}) + "\n")
        sys.stdout.flush()


def bodies(texts: Sequence[str], batch: int) -> list[bytes]:
    """Return request bodies of ``batch`` texts each."""
    groups = [texts[i : i + batch] for i in range(0, len(texts) - batch + 1, batch)]
    return [json.dumps({"text": g[0] if batch == 1 else list(g)}).encode() for g in groups]


def cell(url: str, texts: Sequence[str], batch: int, connections: int, seconds: float) -> dict[str, Any]:
    """Measure one cell: rate of requests and of texts, latencies in ms."""
    load = Load(url, render(url, bodies(texts, batch)), connections=connections)
    try:
        load.closed_loop(min(0.5, seconds / 4))
    finally:
        load.close()
    load = Load(url, render(url, bodies(texts, batch)), connections=connections)
    try:
        outcome = load.closed_loop(seconds)
    finally:
        load.close()
    is_slow = not outcome.requests and not outcome.errors
    if (is_slow or "not answered" in outcome.first_error) and seconds < 20:
        return cell(url, texts, batch, connections, seconds * 4)  # one call of all clients' texts took longer
    if outcome.errors or not outcome.requests:
        raise servers.ServerFailed(f"{outcome.errors} requests failed: {outcome.first_error}")
    ordered = sorted(outcome.latencies)
    rate = outcome.requests / outcome.seconds
    return {
        "connections": connections, "rps": rate, "texts_per_second": rate * batch, "requests": outcome.requests,
        "min_ms": ordered[0] * 1000, "avg_ms": statistics.fmean(ordered) * 1000, "max_ms": ordered[-1] * 1000,
        **{f"p{q}_ms": percentile(ordered, q) * 1000 for q in (50, 90, 95, 99)},
    }  # fmt: skip


def serve(small: Small, bundle: Path, chosen: Sequence[Setting], say: Say) -> None:
    """Upload the bundle and add one endpoint per setting, with the stock CLI; wait until all are served."""
    say("clearml-serving model upload, model add …")
    model = asyncio.run(small.cli.upload_model(small.task, bundle, name=bundle.name, project="benchmarks"))
    for setting in chosen:
        tuned = Tuned(setting.instances, setting.threads, 32)
        small.run(*add_arguments(setting.endpoint, model, _INPUTS, _OUTPUTS, tuned))
    wanted = {setting.endpoint for setting in chosen}
    small.until(
        lambda status: wanted <= {e.get("url") for e in status.get("endpoints", ())},
        "serving every setting",
        within=300,
    )


def run(state: Path, *, candidate: str, lengths: Sequence[int], batches: Sequence[int], seconds: float,
        is_all_cores: bool, is_again: bool, most_minutes: float, say: Say) -> dict[str, Any]:  # fmt: skip
    """Measure what is missing within ``most_minutes`` and return everything measured so far."""
    folder = models.make("distilbert", state / "distilbert")
    bundle = optimized(state, folder, candidate, say)
    note = state / f"infinity-{candidate}.json"
    found: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {"cells": {}, "vanilla": {}}
    found |= {"machine": manifest.machine(), "versions": manifest.versions(), "candidate": candidate}
    found["parity"] = json.loads((bundle / "manifest.json").read_text())["chosen"]["parity"]
    cores = len(os.sched_getaffinity(0))
    chosen = [setting for setting in settings(cores) if not is_all_cores or setting.cores == cores]
    todo = [
        (length, batch, setting)
        for length in lengths
        for batch in batches
        for setting in chosen
        if is_again or f"{setting.endpoint}/{batch}x{length}" not in found["cells"]
    ]
    if not todo:
        return found
    until = time.monotonic() + most_minutes * 60
    shutil.rmtree(state / "stack", ignore_errors=True)
    plain = Vanilla(folder)
    small = Small(state / "stack", tritons=1)
    try:
        serve(small, bundle, chosen, say)
        for number, (length, batch, setting) in enumerate(todo, 1):
            if time.monotonic() > until:
                say(f"the time is over with {len(todo) - number + 1} cells to go; run it again to go on")
                break
            texts = models.texts(folder, length, max(_TEXTS, batch * 4))
            if batch == 1 and setting == chosen[0] and (is_again or str(length) not in found["vanilla"]):
                rate = plain.rate(texts, seconds)
                found["vanilla"][str(length)] = max(rate, found["vanilla"].get(str(length), 0.0))
            url = f"{small.url}/serve/{setting.endpoint}"
            # more at once than a few seconds' work would only wait
            loads = [c for c in CONNECTIONS if c == 1 or c * batch * length <= _MOST_TOKENS]
            tries = [cell(url, texts, batch, c, seconds) for c in loads]
            best = max(tries, key=lambda t: t["rps"])
            key = f"{setting.endpoint}/{batch}x{length}"
            if known := found["cells"].get(key):  # whatever else ran could only slow it down, here and for the pipeline
                best = max(best, known["best"], key=lambda t: t["rps"])
                tries[0] = min(tries[0], known["one_client"], key=lambda t: t["p50_ms"])
            found["cells"][key] = {
                "length": length, "batch": batch, "cores": setting.cores, "instances": setting.instances,
                "threads": setting.threads, "one_client": tries[0], "best": best,
            }  # fmt: skip
            note.write_text(json.dumps(found, indent=1) + "\n")
            say(f"{number}/{len(todo)}  {length} tokens × {batch}, {setting.endpoint}: {best['rps']:.1f} requests/s "
                f"with {best['connections']} clients, alone {tries[0]['p50_ms']:.1f} ms")  # fmt: skip
    finally:
        small.stop()
        plain.stop()
    return found


def summary(found: dict[str, Any]) -> list[list[str]]:
    """Return the batch 1 table: best setting, against the published numbers and the pipeline of the same run."""
    rows = [["tokens", "requests/s", "clients, instances × threads", "p50 alone", "HF Infinity, published",
             "× Infinity", "pipeline, same runs", "× pipeline"]]  # fmt: skip
    for length in LENGTHS:
        ones = [c for c in found["cells"].values() if c["length"] == length and c["batch"] == 1]
        if not ones or str(length) not in found["vanilla"]:
            continue
        best = max(ones, key=lambda c: c["best"]["rps"])
        rate, plain = best["best"]["rps"], found["vanilla"][str(length)]
        alone = min(c["one_client"]["p50_ms"] for c in ones)
        rows.append([str(length), f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}",
                     f"{best['best']['connections']}, {best['instances']} × {best['threads']}", f"{alone:.1f} ms",
                     str(PUBLISHED[length]), f"{rate / PUBLISHED[length]:.2f}", f"{plain:.1f}",
                     f"{rate / plain:.1f}"])  # fmt: skip
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the table, say whether every column holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.infinity", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=Path(".triton-gateway/bench/infinity"))
    parser.add_argument("--candidate", default="openvino-int8", help="of `triton-gateway optimize` [openvino-int8]")
    parser.add_argument("--quick", action="store_true", help="batch 1 only")
    parser.add_argument("--all-cores", action="store_true", help="leave out the settings of one core")
    parser.add_argument("--again", action="store_true", help="measure all once more; the better of both is kept")
    parser.add_argument("--seconds", type=float, default=2.5, help="of every measurement")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many; a later run goes on")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS}")
    parser.add_argument("--prepare", action="store_true", help="only make the model and the bundle")
    parser.add_argument("--vanilla", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.vanilla:
        vanilla(options.vanilla)
        return 0
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stderr.flush()

    state = options.state_dir.absolute()
    state.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        optimized(state, models.make("distilbert", state / "distilbert"), options.candidate, say)
        return 0
    found = run(state, candidate=options.candidate, lengths=LENGTHS, batches=(1,) if options.quick else BATCHES,
                seconds=options.seconds, is_all_cores=options.all_cores, is_again=options.again,
                most_minutes=options.minutes, say=say)  # fmt: skip
    if options.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    rows = summary(found)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))
    holds = all(float(row[5]) >= FACTOR and float(row[7]) >= 4 for row in rows[1:])
    print(f"at least {FACTOR} × HF Infinity and 4 × the pipeline in every column: {'yes' if holds else 'NO'}")
    print(f"measured on {measure.cpu_model()}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
