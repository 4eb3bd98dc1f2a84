"""Makes a bundle of a causal language model: export with a cache, accuracy, files.

For small models on a laptop: one text at a time, in fp32. Real generation belongs to engines with continuous batching.
Called by ``deploy/bundles/run.py`` with the work folder of this run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from deploy.bundles import serving
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import Source
from deploy.bundles.generation import parity, probes
from deploy.bundles.generation.engine import Generator
from deploy.bundles.generation.original import GRAPH, CausalOriginal, Continued
from deploy.bundles.generation.parity import TextParity, Truth
from deploy.bundles.judge import samples, weights
from deploy.bundles.model_files import copy_texts
from deploy.bundles.options import Options, Outcome, Run, Say, acceptable, judge_each, verdict
from deploy.bundles.pack import manifest, reference, report
from deploy.bundles.pack.bundle import Made, write
from deploy.bundles.sentences import SENTENCES
from deploy.tools.errors import ExportFailed
from preprocessing.continuation import Continuation
from preprocessing.processor import TextProcessor

CANDIDATES: Final = (Candidate("ort-fp32", "onnxruntime", "fp32", "fp32", "ONNX Runtime, token by token"),)

NEW_TOKENS: Final = 16
"""Tokens that each prompt is continued by. Twice as many take twice as long and find the same faults."""

_MAX_PROMPTS: Final = 32
"""Most judged prompts. PyTorch takes seconds for each and keeps logits of the whole vocabulary for every token."""
_BUILT_IN: Final = 12
_LONG: Final = (1, 64, 200, 500, 2048)
"""Lengths, in tokens, of the long texts among the built-in prompts."""
_WARM_UP_TOKENS: Final = 8
_WARM_UP_SAMPLES: Final = 4
_CLEAR: Final = 0.05
"""Difference of the two best logits below which another machine could choose the other token."""


class CausalRun(Run):
    """One run for a causal language model: judged on prompts that it continues."""

    def __init__(self, options: Options, source: Source, work: Path, say: Say, progress: Say) -> None:
        super().__init__(options, source, work, say, progress)
        self.original = CausalOriginal(source.folder)
        self.original.use_threads(self.cores)
        self.processor = TextProcessor.from_folder(source.folder, options=self.task_options)
        self.new_tokens = min(NEW_TOKENS, source.config.max_length // 2)
        if self.new_tokens < 2:
            raise ExportFailed(f"the model reads only {source.config.max_length} tokens: too few to continue a text")
        self.texts = self._texts()
        self.judged = self.texts[:: max(1, -(-len(self.texts) // _MAX_PROMPTS))]

    def run(self, tried: Sequence[Candidate], left: Sequence[tuple[Candidate, str]]) -> Outcome:
        """Make the bundle. Raises ``DeployError``."""
        exported = self._export()
        truth = self._truth()
        if refused := parity.why_no_chats(truth, self.processor):
            self.say(f"the bundle accepts prompts, but not these chats of the model's template: {refused}")
        folder = self.work / "texts"
        folder.mkdir(exist_ok=True)
        copy_texts(self.source.folder, folder)

        def judge(candidate: Candidate, graph: Path) -> TextParity:
            self.progress(f"{candidate.name}: continuing {len(truth.continued)} prompts")
            found = parity.judge(
                candidate.name, folder, truth, lambda: Generator(graph / GRAPH, threads=self.cores),
                parity.tolerance(self.options.tolerance), self.task_options,
            )  # fmt: skip
            self.progress(f"{candidate.name}: comparing its weights")
            return replace(found, faults=(*found.faults, *weights.faults(self.named.weights(), graph / GRAPH)))

        hashes = manifest.hashes(exported)
        judged, left_out = judge_each(tried, left, lambda _: exported, judge, _verdict_line, self.say)
        ((chosen, found),) = acceptable(judged, self.options.accept).values()
        lengths = [len(one.prompt) for one in truth.continued]
        made = Made(
            chosen, found, judged, left_out, chosen.execution(0, source=self.source.given),
            serving.Tuned(1, self.cores, 0, task=self.task_options.get("task", "")), times_pytorch=0.0, speed=(),
            graph={path.name: path for path in sorted(exported.iterdir())}, hashes=hashes,
            inputs=serving.GENERATION_INPUTS, outputs=serving.GENERATION_OUTPUTS,
            texts=len(self.texts), lengths=lengths,
            drifts=reference.distributions([self.processor.prepare({"text": text}) for text in self.texts], []),
            notes=self._notes(max(lengths)), judged_on="prompts", other_load=self.other_load,
            facts={"judged": len(self.judged), "new_tokens": self.new_tokens},
        )  # fmt: skip
        return write(
            self.options, self.source, self.work, made, warm_up=lambda folder: self._warm_up(truth, folder),
            page=lambda values, line: _report(values, found, line),
        )  # fmt: skip

    # --- steps --------------------------------------------------------------------------------------------------

    def _texts(self) -> list[str]:
        if self.options.samples is not None:
            bodies = samples.from_file(self.options.samples, self.processor)
            return [str(body["text"]) for body in bodies]
        built_in = samples.built_in(self.processor)
        lengths = samples.token_counts(self.processor, built_in)
        apart = len(SENTENCES) // _BUILT_IN
        short = [str(body["text"]) for body in built_in[: len(SENTENCES) : apart]][:_BUILT_IN]
        room = self.source.config.max_length - self.new_tokens
        wanted = [min(length, room) for length in _LONG]
        nearest = {min((abs(n - length), i) for i, n in enumerate(lengths))[1] for length in wanted}
        return [*short, *(str(built_in[i]["text"]) for i in sorted(nearest))]

    def _prompt(self, text: str) -> list[int]:
        """Return the text's tokens as the gateway would continue them; of a text that is too long, its end."""
        ids: list[int] = self.processor.prepare({"text": text}).rows[0].ids.tolist()
        return ids[-(self.source.config.max_length - self.new_tokens) :]

    def _export(self) -> Path:
        target = self.work / "fp32"
        self.progress("exporting to ONNX, with the key/value cache")
        target.mkdir()
        self.original.export(target)
        size = sum(path.stat().st_size for path in target.iterdir())
        self.say(f"exported: {size / 1e6:.0f} MB of ONNX, a cache of {len(self.original.cache)} tensors")
        return target

    def _truth(self) -> Truth:
        """Ask PyTorch: the model that the user named, loaded again, since the exported one may have been modified."""
        self.progress("loading the model into PyTorch again, to compare with")
        self.source.check_unchanged()
        original = self.named = CausalOriginal(self.source.origin)
        original.use_threads(self.cores)
        found: list[Continued] = []
        for number, text in enumerate(self.judged, 1):
            found.append(original.generate(self._prompt(text), self.new_tokens))
            if number % 8 == 0:
                self.progress(f"PyTorch: {number} of {len(self.judged)} prompts")
        self.progress("PyTorch: prompts of every length and every token")
        size = self.processor.tokenizer.vocab_size
        probed = probes.make(
            original.read, self._prompt(max(self.judged, key=len)), longest=self.source.config.max_length,
            vocabulary=min(size, self.source.config.vocab_size or size), weights=original.weight_bytes // 4,
        )  # fmt: skip
        return parity.find_truth(
            self.source.read_from(self.options.reads), self.processor, self.judged, found, original.eos_ids,
            reads=self.options.reads, files=self.source.kept(), probed=probed,
        )  # fmt: skip

    # --- files --------------------------------------------------------------------------------------------------

    def _warm_up(self, truth: Truth, folder: Path) -> str:
        """Return ``warmup.json``: prompts that the bundle continues like PyTorch, with no close decision."""
        engine = Generator(folder / GRAPH, threads=self.cores)
        listed: list[dict[str, Any]] = []
        parameters = {"max_new_tokens": _WARM_UP_TOKENS, "do_sample": False, "repetition_penalty": 1.0}
        for text, true in sorted(zip(truth.texts, truth.continued, strict=True), key=lambda both: len(both[1].prompt)):
            tokens = true.tokens[:_WARM_UP_TOKENS]
            room = self.source.config.max_length - len(true.prompt)
            if len(tokens) < _WARM_UP_TOKENS or room < _WARM_UP_TOKENS or not self._is_whole(text, true):
                continue
            logits = engine.follow(true.prompt, tokens)
            best = np.sort(logits, axis=1)[:, -2:]
            if tuple(logits.argmax(1)) == tokens and (best[:, 1] - best[:, 0]).min() >= _CLEAR:
                listed.append({"body": {"text": text, "parameters": parameters}, "answer": self._answer(true)})
            if len(listed) == _WARM_UP_SAMPLES:
                break
        if not listed:
            short = min(truth.texts, key=len)
            listed = [{"body": {"text": short, "parameters": parameters}}]
        return json.dumps({"format": 1, "samples": listed}, ensure_ascii=False) + "\n"

    def _is_whole(self, text: str, true: Continued) -> bool:
        return bool(self.processor.prepare({"text": text}).rows[0].ids.tolist() == list(true.prompt))

    def _answer(self, true: Continued) -> dict[str, Any]:
        """Return the gateway's answer for PyTorch's tokens: their text up to an end token."""
        made = Continuation(self.processor.tokenizer, true.prompt)
        text, generated, reason = "", 0, "length"
        for token in true.tokens[:_WARM_UP_TOKENS]:
            text += made.push(token)
            generated += 1
            if token in self.source.config.eos_ids:
                reason = "eos"
                break
        return {"text": text + made.rest(), "generated_tokens": generated, "finish_reason": reason}

    def _notes(self, longest: int) -> list[str]:
        """Return notes for what the tables do not show. ``longest`` is the longest judged prompt, in tokens."""
        notes = []
        window = self.original.window
        if window is not None and longest + self.new_tokens <= window < self.source.config.max_length:
            notes.append(
                f"Some layers see only the last {window} tokens, and no judged prompt is longer: give longer ones with "
                "--samples."
            )
        if len(self.judged) < len(self.texts):
            notes.append(f"Judged on {len(self.judged)} of the {len(self.texts)} prompts, evenly spaced.")
        return notes


def _verdict_line(found: TextParity) -> str:
    return verdict(found, f"same next token {found.decisions:.1%}", f"same text until {found.continued:.1%}")


def _report(values: Mapping[str, Any], found: TextParity, line: str) -> str:
    """Return the report. ``line`` is the command that serves the bundle."""
    facts = values["samples"]
    rows = [
        ["candidate", "largest difference", "mean cosine", "min cosine", "same next token", "same text until",
         "with and without cache", "verdict"],
        [found.candidate, f"{found.max_difference:.1e}", f"{found.mean_cosine:.5f}", f"{found.min_cosine:.5f}",
         f"{found.decisions:.1%}", f"{found.continued:.1%}", f"{found.companions:.1e}",
         "within tolerance" if found.is_within else "; ".join((*found.faults, *found.excesses))],
    ]  # fmt: skip
    return report.page(
        values,
        f"{facts['judged']} prompts ({facts['source']}), each continued by {facts['new_tokens']} tokens, against "
        "transformers' greedy `generate` in fp32: logits less their mean, at every step after PyTorch's own tokens. "
        "*same text until* is the share of the text before the first token that differs from PyTorch's.",
        rows, "", [], line,
    )  # fmt: skip
