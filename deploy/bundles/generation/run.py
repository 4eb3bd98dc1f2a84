"""Makes a bundle of a causal language model: export with a cache, accuracy, files.

For small models on a laptop: one text at a time, in fp32. Real generation belongs to engines with continuous batching.
Called by ``deploy/bundles/run.py`` with the work folder of this run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.bundles import serving
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import Source
from deploy.bundles.generation import judge as gate
from deploy.bundles.generation.judge import Generator, Truth
from deploy.bundles.generation.original import CausalOriginal, Continued
from deploy.bundles.judge import samples, weights
from deploy.bundles.judge.parity import Parity
from deploy.bundles.model_files import copy_texts
from deploy.bundles.options import Options, Outcome, Run, Say, acceptable, judge_each
from deploy.bundles.pack import reference
from deploy.bundles.pack.bundle import Made, write
from deploy.bundles.sentences import SENTENCES
from deploy.bundles.work_folder import file_hash
from deploy.tools.errors import ExportFailed
from preprocessing.processor import TextProcessor

CANDIDATES: Final = (Candidate("ort-fp32", "onnxruntime", "fp32", "ONNX Runtime, token by token"),)

NEW_TOKENS: Final = 16
"""Tokens that each prompt is continued by. Twice as many take twice as long and find the same faults."""
_MAX_PROMPTS: Final = 32
"""Most judged prompts. PyTorch takes seconds for each and keeps logits of the whole vocabulary for every token."""
_BUILT_IN: Final = 12
_LONG: Final = (1, 64, 200, 500, 2048)
"""Lengths, in tokens, of the long texts among the built-in prompts."""
_WARM_UP: Final = 4


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
        texts = self._texts()
        self.judged = texts[:: max(1, -(-len(texts) // _MAX_PROMPTS))]

    def run(self, tried: Sequence[Candidate], left: Sequence[tuple[Candidate, str]]) -> Outcome:
        """Make the bundle. Raises ``DeployError``."""
        graph = self.work / "fp32.onnx"
        self.progress("exporting to ONNX, with the key/value cache")
        self.original.export(graph)
        self.say(f"exported: {graph.stat().st_size / 1e6:.0f} MB of ONNX")
        truth = self._truth()
        if self.processor.chat_fault:
            self.say(f"the bundle accepts prompts, but no chats: {self.processor.chat_fault}")
        folder = self.work / "texts"
        folder.mkdir(exist_ok=True)
        copy_texts(self.source.folder, folder)

        def judge(candidate: Candidate) -> Parity:
            self.progress(f"{candidate.name}: continuing {len(truth.continued)} prompts")
            found = gate.judge(
                candidate.name, folder, truth, lambda: Generator(graph, threads=self.cores), self.task_options
            )
            self.progress(f"{candidate.name}: comparing its weights")
            return replace(found, faults=(*found.faults, *weights.faults(self.named.weights(), graph)))

        judged_hash = file_hash(graph)
        judged = judge_each(tried, judge, self.say)
        ((chosen, found),) = acceptable(judged, self.options.accept).values()
        made = Made(
            chosen, found, judged, {c.name: why for c, why in left}, chosen.execution(0, source=self.source.given),
            serving.Tuned(1, self.cores, 0, task=self.options.named_task), times_pytorch=0.0, timings=(), graph=graph,
            judged_hash=judged_hash, inputs=serving.GENERATION_INPUTS, outputs=serving.GENERATION_OUTPUTS,
            lengths=[len(one.prompt) for one in truth.continued],
            drifts=reference.distributions([self.processor.prepare({"text": text}) for text in self.judged], []),
            notes=(),
        )  # fmt: skip
        return write(self.options, self.source, self.work, made, warm_up=lambda _: self._warm_up(truth))

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
        return gate.find_truth(
            self.source.read_from(self.options.reads), self.processor, self.judged, found, original.eos_ids,
            reads=self.options.reads, files=self.source.kept(),
        )  # fmt: skip

    def _warm_up(self, truth: Truth) -> str:
        """Return ``warmup.json``: short prompts, which the gateway continues before it sends traffic."""
        parameters = {"max_new_tokens": 8, "do_sample": False}
        asked = [{"text": text, "parameters": parameters} for text in sorted(truth.texts, key=len)[:_WARM_UP]]
        return json.dumps({"format": 1, "samples": [{"body": body} for body in asked]}, ensure_ascii=False) + "\n"
