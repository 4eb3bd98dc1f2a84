"""What is each step of the "100 times faster" article worth here: tokenizer, cache, export, fusion, quantisation?

One process, no server, one thread; each step is compared with the one before it, taking turns. ``cache`` is the
key/value cache of generation, at GPT-2's size; the other steps are DistilBERT classification. Factors may be multiplied
only over a step's own share of a request, which the table names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared import models, optimized
from benchmarks.shared.command import narrator, parser
from benchmarks.shared.optimized import measured_on
from benchmarks.shared.results import save, table
from deploy.bundles.pack import manifest
from deploy.laptop.demo.encoder import locate_packaged_model

TAKES = "3 minutes"
SAVES = "results/hundred.json, docs/benchmarks-models.md"
LENGTHS = (16, 128)
_ROUNDS = 5

Call = Callable[[], object]


def in_turns(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Return milliseconds per call: the best of a few rounds in which all calls take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            began, done = time.perf_counter(), 0
            while done == 0 or time.perf_counter() - began < seconds / _ROUNDS:
                call()
                done += 1
            best[name] = min(best[name], (time.perf_counter() - began) / done * 1000)
    return best


def tokenizer(folder: Path, length: int, seconds: float) -> dict[str, float]:
    """Compare ``transformers``' tokenizer with ``preprocessing``: a new text every call, then the same words again."""
    from transformers import AutoTokenizer

    from preprocessing.config import TaskConfig
    from preprocessing.tokenizer import TextTokenizer

    reference: Any = AutoTokenizer.from_pretrained(folder)
    ours = TextTokenizer.from_folder(folder, TaskConfig.from_folder(folder))
    texts = models.texts(folder, length, 512)
    turn = [0, 0]

    def next_text(which: int) -> str:
        turn[which] = (turn[which] + 1) % len(texts)
        return texts[turn[which]]

    return in_turns({
        "transformers": lambda: reference(next_text(0), return_tensors="np", truncation=True),
        "preprocessing": lambda: ours.encode_batch([next_text(1)]),
    }, seconds)  # fmt: skip


def cache(seconds: float) -> dict[str, float]:
    """Compare generation of 32 tokens after 64 with and without the key/value cache; GPT-2's size, random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config()).eval()
    model.generation_config.pad_token_id = 0
    ids = torch.randint(0, 50000, (1, 64))
    mask = torch.ones_like(ids)

    def generate(*, with_cache: bool) -> object:
        with torch.inference_mode():
            return model.generate(ids, attention_mask=mask, max_new_tokens=32, min_new_tokens=32, do_sample=False,
                                  use_cache=with_cache)  # fmt: skip

    return in_turns({"without": lambda: generate(with_cache=False), "with": lambda: generate(with_cache=True)}, seconds)


def engines(folder: Path, exported: Path, int8: Path, length: int, seconds: float) -> dict[str, float]:
    """Compare the model alone: PyTorch → the exported graph unchanged → fused → quantised."""
    import numpy as np
    import onnxruntime
    import torch
    from transformers import AutoModelForSequenceClassification

    from deploy.modelsync.runtime.onnx_model import OpenVino

    torch.set_num_threads(1)
    original: Any = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(1000, 20000, (1, length))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    tensors = {name: torch.from_numpy(value) for name, value in feeds.items()}

    def session(level: Any) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.graph_optimization_level = level
        return onnxruntime.InferenceSession(str(exported), options, providers=["CPUExecutionProvider"])

    levels = onnxruntime.GraphOptimizationLevel
    plain, fused = session(levels.ORT_DISABLE_ALL), session(levels.ORT_ENABLE_ALL)
    openvino, quantised = OpenVino(exported, 1, "fp32"), OpenVino(int8, 1, "int8")

    def ask_original() -> object:
        with torch.inference_mode():
            return original(**tensors)

    return in_turns({
        "pytorch": ask_original,
        "exported": lambda: plain.run(None, feeds),
        "fused, ONNX Runtime": lambda: fused.run(None, feeds),
        "fused, OpenVINO": lambda: openvino.run(["logits"], feeds),
        "int8, OpenVINO": lambda: quantised.run(["logits"], feeds),
    }, seconds)  # fmt: skip


def factors(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the factor of every step: one number per length, or a single one."""
    lengths = list(found["lengths"].values())
    engines_ = [one["engines"] for one in lengths]
    fused = [min(e["fused, ONNX Runtime"], e["fused, OpenVINO"]) for e in engines_]
    return {
        "tokenizer": [one["tokenizer"]["transformers"] / one["tokenizer"]["preprocessing"] for one in lengths],
        "cache": [found["cache"]["without"] / found["cache"]["with"]],
        "export": [e["pytorch"] / e["exported"] for e in engines_],
        "fusion": [e["exported"] / f for e, f in zip(engines_, fused, strict=True)],
        "quantisation": [f / e["int8, OpenVINO"] for e, f in zip(engines_, fused, strict=True)],
        "engine in all": [e["pytorch"] / e["int8, OpenVINO"] for e in engines_],
    }


def section(found: Mapping[str, Any]) -> str:
    """Return the section about the steps of the "100 times" article."""
    lengths = list(found["lengths"])
    rows = [["step", *(f"{n} tokens" for n in lengths), "what is compared"]]
    about = {
        "tokenizer": "`transformers`' fast tokenizer → the gateway's, with its word cache; tokenization only",
        "cache": "GPT-2, 32 tokens after 64: without and with a key/value cache",
        "export": "PyTorch → ONNX Runtime, graph as exported",
        "fusion": "→ the faster of ONNX Runtime and OpenVINO with all graph optimisations, fp32",
        "quantisation": "→ OpenVINO, calibrated int8",
        "engine in all": "PyTorch → OpenVINO int8",
    }
    for name, ratios in factors(found).items():
        shown = [f"× {r:.2f}" for r in ratios]
        rows.append([name, *(shown if len(shown) == len(lengths) else shown * len(lengths)), about[name]])
    return "\n\n".join(
        [
            '## The steps of "100 times faster"',
            f"{measured_on(found)} One thread, no server. int8 is "
            "used with `--accept`, because the gate of `optimize` refuses it for these random weights.",
            table(rows),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every step and print its factor."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--state-dir", type=Path, default=optimized.FOLDER)
    arguments.add_argument("--seconds", type=float, default=2.0, help="seconds per step")
    options = arguments.parse_args(argv)
    say, state = narrator(), options.state_dir.absolute()
    folder = models.make("distilbert", state / "distilbert")
    int8 = optimized.bundle(state, folder, say, "openvino-int8") / "model.onnx"
    exported = next(iter((state / "optimized" / ".work").glob("distilbert-*/fp32.onnx")))
    package = locate_packaged_model(models.PACKAGE)
    found: dict[str, Any] = {"machine": manifest.machine(), "versions": manifest.versions(), "lengths": {}}
    for length in LENGTHS:
        say(f"{length} tokens")
        times = engines(folder, exported, int8, length, options.seconds)
        words = tokenizer(package, length, options.seconds)
        found["lengths"][str(length)] = {"engines": times, "tokenizer": words}
    say("generation")
    found["cache"] = cache(options.seconds)
    if options.save:
        save("hundred", found)
    for name, ratios in factors(found).items():
        print(f"{name:12} {'  '.join(f'× {ratio:.2f}' for ratio in ratios)}")
    return 0
