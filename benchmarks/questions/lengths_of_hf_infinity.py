"""How many texts per second at HF Infinity's published lengths, compared with a ``transformers`` pipeline?

It makes DistilBERT, lets ``triton-gateway optimize`` make the bundle (bf16, without ``--accept``), registers it and
serves it through a real gateway and a real Triton. For each length, the gateway and the pipeline take turns within a
round: the gateway with 1, 8 and 32 texts per request and several clients, the pipeline with one text per call and with
lists of 8 and 32. Ratios are formed within rounds, so other programs disturb both. Finished lengths are kept, so an
interrupted run continues. The client runs on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared import models, optimized, processes
from benchmarks.shared.command import Say, again, narrator, parser
from benchmarks.shared.load import closed_loop, render
from benchmarks.shared.machine import cpu_model
from benchmarks.shared.optimized import Setting, measured_on
from benchmarks.shared.results import save, table
from benchmarks.shared.stack import Small
from benchmarks.shared.statistics import percentiles_ms
from deploy.bundles.pack import manifest

TAKES = "40 minutes, can be interrupted"
SAVES = "results/infinity.json, docs/benchmarks-models.md"
LENGTHS = (8, 16, 32, 64, 128, 256, 384, 512)
BATCHES = (1, 8, 32)
"""Texts per request, and per call of the pipeline."""
ROUNDS = 3
PUBLISHED = {8: 248, 16: 212, 32: 150, 64: 97, 128: 55, 256: 27, 384: 17, 512: 12}
"""Requests per second of HF Infinity with DistilBERT on two Ice Lake cores, batch 1, by tokens."""
CLIENTS = 16
_TEXTS = 64
_MAX_TOKENS = 8192
"""Most tokens of one request."""
_MAX_AT_ONCE = 20_000
"""Most tokens in all clients' requests at one time."""


class Vanilla:
    """A ``transformers`` pipeline in its own process, on all cores, which takes turns with the gateway."""

    def __init__(self, folder: Path) -> None:
        self._child = processes.Child(again(__name__, "--vanilla", str(folder)))
        self.rate(["warm up"], 1, 0.1)
        self.stop = self._child.stop

    def rate(self, texts: Sequence[str], batch: int, seconds: float) -> float:
        """Return texts per second with ``batch`` texts per call."""
        return float(self._child.ask({"texts": list(texts), "batch": batch, "seconds": seconds})["rate"])


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
    requests = render(url, bodies(texts, batch))
    closed_loop(url, requests, min(0.5, seconds / 4), connections=connections)
    outcome = closed_loop(url, requests, seconds, connections=connections)
    is_slow = not outcome.requests and not outcome.errors
    if (is_slow or "not answered" in outcome.first_error) and seconds < 20:
        return cell(url, texts, batch, connections, seconds * 4)  # one call with all clients' texts took longer
    if outcome.errors or not outcome.requests:
        raise processes.ServerFailed(f"{outcome.errors} requests failed: {outcome.first_error}")
    rate = outcome.requests / outcome.seconds
    return {
        "connections": connections, "rps": rate, "texts_per_second": rate * batch, "requests": outcome.requests,
        "min_ms": min(outcome.latencies) * 1000, "avg_ms": statistics.fmean(outcome.latencies) * 1000,
        "max_ms": max(outcome.latencies) * 1000, **percentiles_ms(outcome.latencies, 50, 90, 95, 99),
    }  # fmt: skip


def run(state: Path, *, lengths: Sequence[int], seconds: float, max_minutes: float, say: Say) -> dict[str, Any]:
    """Measure what is missing within ``max_minutes``; return everything measured so far."""
    folder = models.make("distilbert", state / "distilbert")
    bundle = optimized.bundle(state, folder, say)
    made = json.loads((bundle / manifest.FILE).read_text())
    note = state / "infinity.json"
    found: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {"lengths": {}}
    found |= {"machine": manifest.machine(), "versions": manifest.versions(), "chosen": made["chosen"],
              "judged": {p["candidate"]: [*p["faults"], *p["excesses"]] for p in made["parity"]},
              "accepted": made["accepted"], "clients": CLIENTS}  # fmt: skip
    todo = [length for length in lengths if str(length) not in found["lengths"]]
    if not todo:
        return found
    chosen = optimized.settings(len(os.sched_getaffinity(0)))
    shutil.rmtree(state / "stack", ignore_errors=True)
    plain = Vanilla(folder)
    small = Small(state / "stack", tritons=1)
    try:
        optimized.serve(small, bundle, chosen, say)
        until = time.monotonic() + max_minutes * 60
        for length in todo:
            if time.monotonic() > until:
                say(f"the time is over before {length} tokens; run it again to go on")
                break
            texts = models.texts(folder, length, _TEXTS)
            batches = [batch for batch in BATCHES if batch * length <= _MAX_TOKENS]
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
        # more at once than a few seconds of work would only wait
        clients = max(1, min(CLIENTS, _MAX_AT_ONCE // (batch * len(texts[0].split()))))
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


def section(found: Mapping[str, Any]) -> str:
    """Return the section about HF Infinity's lengths."""
    chosen, parity = found["chosen"], found["chosen"]["parity"]
    rounds = [r for measured in found["lengths"].values() for r in measured["rounds"]]
    loads = [r["load"] for r in rounds]
    seen = sorted({best_setting(m["rounds"]) for m in found["lengths"].values()})
    settings = " or ".join("{} x {}".format(*name.split("x")) for name in seen)
    count = min(len(m["rounds"]) for m in found["lengths"].values())
    cores = found["machine"]["cores"]
    parts = [
        "## HF Infinity's lengths: DistilBERT, sequence classification",
        f"{measured_on(found)} End to end: HTTP, tokenization, Triton. The model is DistilBERT, made with "
        f"`triton-gateway optimize --precision {chosen['precision']}`: `{chosen['candidate']}`, which passes the gate "
        f"without `--accept` (cosine of logits to PyTorch: mean {parity['mean_cosine']:.5f}, minimum "
        f"{parity['min_cosine']:.5f}).",
        f"The table shows texts per second, medians of {count} rounds. In each round the pipeline and the gateway "
        "take turns. Ratios are formed within a round: median (minimum–maximum).",
        table(summary(dict(found))),
        f"**The gateway** gets requests from {found['clients']} clients at once (fewer if that would be more than "
        "20,000 tokens) and batches them itself. Two instances with one thread each and one instance with two threads "
        f"were tried; the table shows the faster (instances x threads, here {settings}).",
        "**The pipeline** is `transformers` with PyTorch fp32 on both cores, without a server. It gets one text per "
        "call, or lists with `batch_size`; the table shows the best list of each round.",
        f"**The machine ran other work** (load average {min(loads):.1f} to {max(loads):.1f} on {cores} cores, these "
        "programs included). Texts per second are therefore lower than on an idle machine, for both. The ratios are "
        "valid.",
        "**HF Infinity's published figures** are requests per second on two Ice Lake cores without other work. They "
        "are shown for orientation only, since the CPU differs.",
    ]
    lists = [["tokens", "texts per request and call", "gateway", "pipeline", "gateway ÷ pipeline"]]
    for length, measured in sorted(found["lengths"].items(), key=lambda item: int(item[0])):
        taken = measured["rounds"]
        for batch in (b for b in taken[0]["pipeline"] if b != "1"):
            name = best_setting(taken, batch)
            ours = [r["gateway"][name][batch] for r in taken]
            theirs = [r["pipeline"][batch] for r in taken]
            lists.append([length, batch, rate(ours), rate(theirs), ratio(ours, theirs)])
    parts += ["The same for requests with lists, in texts per second:", table(lists)]
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print the table."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--state-dir", type=Path, default=optimized.FOLDER)
    arguments.add_argument("--seconds", type=float, default=2.5, help="seconds per measurement")
    arguments.add_argument("--minutes", type=float, default=1e9, help="stop after this time; a later run continues")
    arguments.add_argument("--prepare", action="store_true", help="only make the model and the bundle")
    arguments.add_argument("--vanilla", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.vanilla:
        vanilla(options.vanilla)
        return 0
    say, state = narrator(), options.state_dir.absolute()
    state.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        optimized.bundle(state, models.make("distilbert", state / "distilbert"), say)
        return 0
    found = run(state, lengths=LENGTHS, seconds=options.seconds, max_minutes=options.minutes, say=say)
    if options.save:
        save("infinity", found)
    print(table(summary(found)))
    print(f"measured on {cpu_model()}")
    return 0
