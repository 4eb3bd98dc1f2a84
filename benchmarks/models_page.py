"""Writes docs/benchmarks-models.md and its heatmap from the saved results of infinity, comet and hundred."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import comet, hundred, infinity

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks-models.md"
PICTURE = ROOT / "docs" / "images" / "benchmark-infinity.png"

_HEAD = """# Benchmarks: three published tables, reproduced

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
    """Return the section about HF Infinity's grid."""
    cells = list(found["cells"].values())
    parity = found["parity"]
    rows = infinity.summary(dict(found))
    best = max(
        {(c["instances"], c["threads"]) for c in cells if c["cores"] > 1} or {(1, 1)},
        key=lambda s: sum(c["best"]["texts_per_second"] / max(
            o["best"]["texts_per_second"] for o in cells if (o["length"], o["batch"]) == (c["length"], c["batch"]))
            for c in cells if (c["instances"], c["threads"]) == s),
    )  # fmt: skip
    is_met = all(float(row[5]) >= infinity.FACTOR for row in rows[1:])
    parts = [
        "## HF Infinity's grid: DistilBERT, sequence classification",
        machine(found) + f" End to end: HTTP, tokenization, Triton, `{found['candidate']}` (mean cosine of logits to "
        f"PyTorch {parity['mean_cosine']:.4f}, same label {parity['decisions']:.1%}).",
        "Batch 1, the best of the settings, two cores:",
        table(rows),
        "The published numbers are from two Ice Lake cores, another CPU: they are a goal, not a peer. The pipeline is "
        "a peer: `transformers` with PyTorch on both cores, without any server, between the cells of the same runs. "
        "Of several runs the better of each cell counts, for both: the machine was shared, and other programs used "
        "about one of its two cores during parts of them.",
        f"**1.2 × Infinity: {'met' if is_met else 'not shown'} in every column by these runs.**",
        f"Recommended on this machine: {best[0]} instance(s) of {best[1]} thread(s) for throughput; for one client "
        "alone, the setting with the smallest latency below.",
    ]
    if any(c["batch"] > 1 for c in cells):
        parts.append(f"![texts per second by batch and length](images/{PICTURE.name})")
    header = [
        "tokens",
        "batch",
        "instances × threads",
        "requests/s",
        "texts/s",
        "min",
        "avg",
        "p90",
        "p95",
        "p99",
        "max",
    ]
    lines = [
        [str(c["length"]), str(c["batch"]), f"{c['instances']} × {c['threads']}", f"{c['best']['rps']:.1f}",
         f"{c['best']['texts_per_second']:.0f}",
         *(f"{c['one_client'][k]:.1f}" for k in ("min_ms", "avg_ms", "p90_ms", "p95_ms", "p99_ms", "max_ms"))]
        for c in sorted(cells, key=lambda c: (c["length"], c["batch"], c["instances"], c["threads"]))
    ]  # fmt: skip
    parts += [f"All {len(cells)} cells; latencies (ms) of one client alone, rates of the best number of clients:",
              table([header, *lines])]  # fmt: skip
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
    about = f"{machine(found)} {load}"
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
    return "\n\n".join(['## The steps of "100 times faster"', f"{machine(found)} One thread, no server.", table(rows)])


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw texts per second by batch and length, one field per setting."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    cells = list(found["cells"].values())
    chosen = sorted({(c["instances"], c["threads"]) for c in cells})
    lengths, batches = sorted({c["length"] for c in cells}), sorted({c["batch"] for c in cells})
    figure, axes = plt.subplots(1, len(chosen), figsize=(5 * len(chosen), 4.5), squeeze=False, layout="constrained")
    for field, setting in zip(axes[0], chosen, strict=True):
        rates = np.full((len(lengths), len(batches)), np.nan)
        for c in cells:
            if (c["instances"], c["threads"]) == setting:
                rates[lengths.index(c["length"]), batches.index(c["batch"])] = c["best"]["texts_per_second"]
        field.imshow(np.log(rates), aspect="auto", cmap="viridis")
        for (row, column), value in np.ndenumerate(rates):
            if np.isfinite(value):
                field.text(column, row, f"{value:.0f}", ha="center", va="center", color="white", fontsize=8)
        field.set_xticks(range(len(batches)), [str(b) for b in batches])
        field.set_yticks(range(len(lengths)), [str(n) for n in lengths])
        field.set_title(f"texts/s, {setting[0]} instance(s) × {setting[1]} thread(s)")
        field.set_xlabel("texts per request")
        field.set_ylabel("tokens")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def render() -> str:
    """Return the page from what is saved."""
    parts = [_HEAD.rstrip()]
    for file, section in (
        (infinity.RESULTS, render_infinity),
        (comet.RESULTS, render_comet),
        (hundred.RESULTS, render_hundred),
    ):
        if file.exists():
            parts.append(section(json.loads(file.read_text())))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write page and picture."""
    if infinity.RESULTS.exists():
        draw(json.loads(infinity.RESULTS.read_text()), PICTURE)
    PAGE.write_text(render())
    sys.stdout.write(f"{PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
