"""HF Infinity's published lengths for DistilBERT, on this system, beside a ``transformers`` pipeline.

``python -m benchmarks.infinity`` makes the model, lets ``triton-gateway optimize`` make the bundle (bf16, without
``--accept``), registers that, and serves it through a real gateway and a real Triton. For each length the gateway and
the pipeline take turns within a round: the gateway with 1, 8 and 32 texts per request and several clients, the pipeline
with one text a call and with lists of 8 and 32. What is compared is what stood beside each other in a round, so that
other programs fall on both. Finished lengths are kept: an interrupted run goes on. The client runs on the same cores.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, models, servers
from benchmarks.load import Load, percentile, render
from benchmarks.small import Small
from deploy.bundles.pack import manifest
from deploy.bundles.serving import Tuned, add_arguments
from deploy.modelsync import execution
from deploy.tools.stock_cli import Tensor

LENGTHS = (8, 16, 32, 64, 128, 256, 384, 512)
BATCHES = (1, 8, 32)
"""Texts per request, and per call of the pipeline."""
ROUNDS = 3
PUBLISHED = {8: 248, 16: 212, 32: 150, 64: 97, 128: 55, 256: 27, 384: 17, 512: 12}
"""Requests per second of HF Infinity with DistilBERT on two Ice Lake cores, batch 1, by tokens."""
CLIENTS = 16
RESULTS = Path(__file__).parent / "results" / "infinity.json"

_INPUTS = [Tensor(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask")]
_OUTPUTS = [Tensor("logits", "float32", (-1, 2))]
_TEXTS = 64
_MOST_TOKENS = 8192
"""Of one request."""
_MOST_AT_ONCE = 20_000
"""Tokens of all clients' requests at a time."""

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
    """Return how all cores of this machine are used: as instances, as threads of one."""
    return [Setting(cores, cores, 1), Setting(cores, 1, cores)] if cores > 1 else [Setting(1, 1, 1)]


def optimized(state: Path, folder: Path, say: Say, candidate: str = "") -> Path:
    """Return the bundle of ``folder``, made by the command a user would type: bf16 where the CPU has it, else fp32,
    and nothing but what the gate passes with its own tolerance.

    With a ``candidate`` that one, accepted whatever the gate says of random weights: for what compares engines.
    """
    note = state / f"bundle-{candidate or 'default'}.json"
    if note.exists() and Path(json.loads(note.read_text())["bundle"]).exists():
        return Path(json.loads(note.read_text())["bundle"])
    argv = ["optimize", str(folder), "--output", str(state / "optimized"), "--quick", "--json"]
    if candidate:
        argv += ["--candidate", candidate, "--accept", "random weights: only speed is measured", "--latency"]
    else:
        argv += ["--precision", "bf16" if execution.this_cpu().intersection(execution.BF16) else "fp32"]
    say(f"triton-gateway {' '.join(argv)}")
    argv = [sys.executable, "-m", "deploy.admin.cli", *argv]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
    note.write_text(done.stdout)
    return Path(json.loads(done.stdout)["bundle"])


class Vanilla:
    """A ``transformers`` pipeline in a process of its own, on all cores, asked in turn with the gateway."""

    def __init__(self, folder: Path) -> None:
        argv = [sys.executable, "-m", "benchmarks.infinity", "--vanilla", str(folder)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rate(["warm up"], 1, 0.1)

    def rate(self, texts: Sequence[str], batch: int, seconds: float) -> float:
        """Return texts per second, ``batch`` of them a call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"texts": list(texts), "batch": batch, "seconds": seconds}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline())["rate"])

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def vanilla(folder: Path) -> None:
    """Answer questions on stdin about the pipeline's speed."""
    import torch
    from transformers import pipeline

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    for line in sys.stdin:
        question = json.loads(line)
        texts, batch = question["texts"], question["batch"]
        groups = [texts[i : i + batch] for i in range(0, max(1, len(texts) - batch + 1), batch)]
        done, began = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - began < question["seconds"]:
            group = groups[done % len(groups)]
            classify(group[0] if batch == 1 else group, batch_size=batch)
            done += 1
        sys.stdout.write(json.dumps({"rate": done * batch / (time.perf_counter() - began)}) + "\n")
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


def run(state: Path, *, lengths: Sequence[int], seconds: float, most_minutes: float, say: Say) -> dict[str, Any]:
    """Measure what is missing within ``most_minutes`` and return everything measured so far."""
    folder = models.make("distilbert", state / "distilbert")
    bundle = optimized(state, folder, say)
    made = json.loads((bundle / manifest.FILE).read_text())
    note = state / "infinity.json"
    found: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {"lengths": {}}
    found |= {"machine": manifest.machine(), "versions": manifest.versions(), "chosen": made["chosen"],
              "judged": {p["candidate"]: [*p["faults"], *p["excesses"]] for p in made["parity"]},
              "accepted": made["accepted"], "clients": CLIENTS}  # fmt: skip
    todo = [length for length in lengths if str(length) not in found["lengths"]]
    if not todo:
        return found
    chosen = settings(len(os.sched_getaffinity(0)))
    shutil.rmtree(state / "stack", ignore_errors=True)
    plain = Vanilla(folder)
    small = Small(state / "stack", tritons=1)
    try:
        serve(small, bundle, chosen, say)
        until = time.monotonic() + most_minutes * 60
        for length in todo:
            if time.monotonic() > until:
                say(f"the time is over before {length} tokens; run it again to go on")
                break
            texts = models.texts(folder, length, _TEXTS)
            batches = [batch for batch in BATCHES if batch * length <= _MOST_TOKENS]
            rounds = [turn(small.url, plain, texts, chosen, batches, seconds) for _ in range(ROUNDS)]
            found["lengths"][str(length)] = {"rounds": rounds}
            note.write_text(json.dumps(found, indent=1) + "\n")
            row = summary(found)[-1]
            say("  ".join(row))
    finally:
        small.stop()
        plain.stop()
    return found


def turn(url: str, plain: Vanilla, texts: Sequence[str], chosen: Sequence[Setting], batches: Sequence[int],
         seconds: float) -> dict[str, Any]:  # fmt: skip
    """Measure one round: for each batch the pipeline, then the gateway in each setting; texts per second."""
    took: dict[str, Any] = {"load": os.getloadavg()[0], "pipeline": {}, "gateway": {}}
    for batch in batches:
        took["pipeline"][str(batch)] = plain.rate(texts, batch, seconds)
        # more at once than a few seconds' work would only wait
        clients = max(1, min(CLIENTS, _MOST_AT_ONCE // (batch * len(texts[0].split()))))
        for setting in chosen:
            found = cell(f"{url}/serve/{setting.endpoint}", texts, batch, clients, seconds)
            name = f"{setting.instances}x{setting.threads}"
            took["gateway"].setdefault(name, {})[str(batch)] = found["texts_per_second"]
    return took


def summary(found: dict[str, Any]) -> list[list[str]]:
    """Return the table: texts per second, and ratios within a round (median, least and most)."""
    rows = [["tokens", "gateway, 1 text per request", "pipeline, 1 text a call", "gateway ÷ pipeline",
             "pipeline, best list", "gateway ÷ best list", "HF Infinity, published"]]  # fmt: skip
    for length, measured in sorted(found["lengths"].items(), key=lambda item: int(item[0])):
        rounds = measured["rounds"]
        name = best_setting(rounds)
        ours = [r["gateway"][name]["1"] for r in rounds]
        ones = [r["pipeline"]["1"] for r in rounds]
        lists = [max(rate for batch, rate in r["pipeline"].items() if batch != "1") for r in rounds]
        rows.append([length, rate(ours), rate(ones), ratio(ours, ones), rate(lists), ratio(ours, lists),
                     str(PUBLISHED[int(length)])])  # fmt: skip
    return rows


def best_setting(rounds: Sequence[Mapping[str, Any]], batch: str = "1") -> str:
    """Return the setting with the most texts per second at ``batch`` texts per request."""
    return max(rounds[0]["gateway"], key=lambda name: statistics.median(r["gateway"][name][batch] for r in rounds))


def rate(values: Sequence[float]) -> str:
    """Return the median as text."""
    middle = statistics.median(values)
    return f"{middle:.0f}" if middle >= 100 else f"{middle:.1f}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median of the rounds' ratios, with the least and the most."""
    found = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(found):.1f} ({min(found):.1f}–{max(found):.1f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.infinity", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=Path(".triton-gateway/bench/infinity"))
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
        optimized(state, models.make("distilbert", state / "distilbert"), say)
        return 0
    found = run(state, lengths=LENGTHS, seconds=options.seconds, most_minutes=options.minutes, say=say)
    if options.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    rows = summary(found)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))
    print(f"measured on {measure.cpu_model()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
