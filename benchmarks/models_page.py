"""Writes docs/benchmarks-models.md from the saved results of infinity, comet and hundred."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import comet, hundred, infinity

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks-models.md"

_HEAD = """# Benchmarks: three published tables, measured here

Written by `python -m benchmarks.models_page` from the results that these commands saved; do not edit.

```console
$ python -m benchmarks.infinity --save      # resumable: run it again to go on
$ python -m benchmarks.comet --save
$ python -m benchmarks.hundred --save
$ python -m benchmarks.models_page
```

Weights are random, of the real size: they cost what trained ones cost and say nothing about accuracy; for that there
is the gate of [`triton-gateway optimize`](optimize.md). Texts are made of words of one token each, another text per
request. The client runs on the same cores as everything else.
"""


_NO_INFINITY = """## HF Infinity's lengths: DistilBERT, sequence classification

No run is saved. An earlier page compared an int8 model, taken with `--accept` although the gate of `optimize` refuses
it, with a pipeline that was asked one text a call. `python -m benchmarks.infinity --save` measures what the gate passes
with its own tolerance, in turn with a pipeline that gets single texts and lists."""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first is its header."""
    return "\n".join(
        [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}", *(f"| {' | '.join(r)} |" for r in rows[1:])]
    )


def machine(found: Mapping[str, Any]) -> str:
    """Return one line about the machine and the versions."""
    versions = ", ".join(f"{n} {found['versions'][n]}" for n in ("torch", "transformers", "onnxruntime", "openvino")
                         if n in found["versions"])  # fmt: skip
    features = ", ".join(found["machine"]["features"])
    return f"Measured on {found['machine']['cpu']}, {found['machine']['cores']} cores ({features}); {versions}."


def render_infinity(found: Mapping[str, Any]) -> str:
    """Return the section about HF Infinity's lengths."""
    chosen, parity = found["chosen"], found["chosen"]["parity"]
    rounds = [r for measured in found["lengths"].values() for r in measured["rounds"]]
    loads = [r["load"] for r in rounds]
    seen = sorted({infinity.best_setting(m["rounds"]) for m in found["lengths"].values()})
    settings = " or ".join("{} x {}".format(*name.split("x")) for name in seen)
    count = min(len(m["rounds"]) for m in found["lengths"].values())
    cores = found["machine"]["cores"]
    parts = [
        "## HF Infinity's lengths: DistilBERT, sequence classification",
        f"{machine(found)} End to end: HTTP, tokenization, Triton. The model is what `triton-gateway optimize "
        f"--precision {chosen['precision']}` makes of DistilBERT: `{chosen['candidate']}`, within the gate's own "
        f"tolerance, without `--accept` (mean cosine of logits to PyTorch {parity['mean_cosine']:.5f}, least "
        f"{parity['min_cosine']:.5f}).",
        f"Texts per second, medians of {count} rounds. Within a round the pipeline and the gateway take turns; the "
        "ratios are of one round each: median (least–most).",
        table(infinity.summary(dict(found))),
        f"The gateway is asked by {found['clients']} clients at once (fewer where that would be more than 20,000 "
        "tokens) and puts their requests together itself; of two instances with one thread each and one with two, the "
        f"faster (instances x threads, here {settings}). The pipeline is `transformers` with PyTorch fp32 on both "
        "cores, without any server: one text a call, and lists with `batch_size`, of which the table shows the best of "
        "each round.",
        f"**The machine ran other work** (load average {min(loads):.1f} to {max(loads):.1f} on {cores} cores, these "
        "programs included), so texts per second are lower than they would be alone, for both; the ratios are what was "
        "measured. HF Infinity's published numbers are requests per second on two Ice Lake cores, another CPU without "
        "other work: shown for orientation, and not compared.",
    ]
    lists = [["tokens", "texts per request and call", "gateway", "pipeline", "gateway ÷ pipeline"]]
    for length, measured in sorted(found["lengths"].items(), key=lambda item: int(item[0])):
        taken = measured["rounds"]
        for batch in (b for b in taken[0]["pipeline"] if b != "1"):
            name = infinity.best_setting(taken, batch)
            ours = [r["gateway"][name][batch] for r in taken]
            theirs = [r["pipeline"][batch] for r in taken]
            lists.append([length, batch, infinity.rate(ours), infinity.rate(theirs), infinity.ratio(ours, theirs)])
    parts += ["The same for requests that are lists, texts per second:", table(lists)]
    return "\n\n".join(parts)


def render_comet(found: Mapping[str, Any]) -> str:
    """Return the section about Comet's ladder."""
    first = next(iter(found["rungs"].values()))["rps"]
    rows = [["rung", "requests/s", "p50", "p95", "× first"]]
    rows += [
        [name, f"{r['rps']:.1f}", f"{r['p50_ms']:.0f} ms", f"{r['p95_ms']:.0f} ms", f"{r['rps'] / first:.1f}"]
        for name, r in found["rungs"].items()
    ]
    load = f"{found['tokens']} tokens, {found['connections']} clients; other programs shared the machine."
    about = f"{machine(found)} {load} The last rung serves `{found['candidate']}`" + (
        ", taken with `--accept`: the gate of `optimize` refuses it for these random weights. The rung before it, "
        "PyTorch's dynamic int8, was compared with nothing."
        if "int8" in found["candidate"]
        else ", what the gate passes."
    )
    return "\n\n".join(["## Comet's ladder: BERT behind HTTP", about, table(rows)])


def render_hundred(found: Mapping[str, Any]) -> str:
    """Return the section about the steps of the "100 times" article."""
    lengths = list(found["lengths"])
    rows = [["step", *(f"{n} tokens" for n in lengths), "what is compared"]]
    about = {
        "tokenizer": "`transformers`' fast tokenizer → `preprocessing` with its word cache, tokenizing alone",
        "cache": "GPT-2, 32 tokens after 64: without and with the cache of keys and values",
        "export": "PyTorch → ONNX Runtime, graph as exported",
        "fusion": "→ the faster of ONNX Runtime and OpenVINO with all graph optimisations, fp32",
        "quantisation": "→ OpenVINO, calibrated int8",
        "engine in all": "PyTorch → OpenVINO int8",
    }
    for name, ratios in hundred.factors(found).items():
        shown = [f"× {r:.2f}" for r in ratios]
        rows.append([name, *(shown if len(shown) == len(lengths) else shown * len(lengths)), about[name]])
    return "\n\n".join(
        [
            '## The steps of "100 times faster"',
            f"{machine(found)} One thread, no server. int8 is "
            "taken with `--accept` here: the gate of `optimize` refuses it for these random weights.",
            table(rows),
        ]
    )


def render() -> str:
    """Return the page from what is saved."""
    parts = [_HEAD.rstrip()]
    if not infinity.RESULTS.exists():
        parts.append(_NO_INFINITY)
    for file, section in (
        (infinity.RESULTS, render_infinity),
        (comet.RESULTS, render_comet),
        (hundred.RESULTS, render_hundred),
    ):
        if file.exists():
            parts.append(section(json.loads(file.read_text())))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(render())
    sys.stdout.write(f"{PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
