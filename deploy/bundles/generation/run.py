"""Makes a bundle of a causal language model: export with a cache, candidates, accuracy, speed, choice, files.

Called by ``deploy/bundles/run.py`` with the work folder of this run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from deploy.bundles import serving
from deploy.bundles import speed as cells
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import Source
from deploy.bundles.generation import parity, probes, speed
from deploy.bundles.generation import report as tables
from deploy.bundles.generation.candidates import CANDIDATES, make_graph
from deploy.bundles.generation.engine import Generator
from deploy.bundles.generation.original import GRAPH, CausalOriginal, Continued
from deploy.bundles.generation.parity import TextParity, Truth
from deploy.bundles.generation.speed import Pace, Pacer
from deploy.bundles.judge import samples, weights
from deploy.bundles.model_files import copy_texts
from deploy.bundles.options import Options, Outcome, Run, Say, acceptable, choose, judge_each, verdict
from deploy.bundles.pack import manifest, reference, report
from deploy.bundles.pack.bundle import Made, write
from deploy.bundles.speed import ORIGINAL
from deploy.tools.errors import ExportFailed
from deploy.tools.sentences import SENTENCES
from preprocessing.continuation import Continuation
from preprocessing.processor import TextProcessor

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
_MAX_INSTANCE_BYTES: Final = 2_000_000_000
"""Most bytes of weights in all instances. Each instance has its own copy, so several are tried only if they are small.
"""


class CausalRun(Run):
    """One run for a causal language model: judged on prompts that it continues, timed to the first and per further
    token.
    """

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
                candidate.name, folder, truth, self._opener(graph, self.cores),
                parity.tolerance_for(candidate.precision, self.options.tolerance), self.task_options,
            )  # fmt: skip
            hashes[graph] = manifest.hashes(graph)
            self.progress(f"{candidate.name}: comparing its weights")
            return replace(found, faults=(*found.faults, *weights.faults(self.named.weights(), graph / GRAPH)))

        def judge_with_origin(candidate: Candidate, graph: Path) -> TextParity:
            found = judge(candidate, graph)
            if graph == exported:
                exact.append(found)
                return found
            if not exact:
                exact.append(judge(CANDIDATES[0], exported))
            faults = [f"the graph it was made from is wrong: {why}" for why in exact[0].faults[:1]]
            excesses = [f"the graph it was made from is inexact: {why}" for why in exact[0].excesses[:1]]
            return replace(found, faults=(*found.faults, *faults), excesses=(*found.excesses, *excesses))

        hashes: dict[Path, dict[str, str]] = {}
        exact: list[TextParity] = []
        judged, left_out = judge_each(
            tried, left, lambda c: self._graph(c, exported), judge_with_origin, _verdict_line, self.say
        )
        usable = acceptable(judged, self.options.accept)
        paces = self._speed([c for c, p in judged if not p.faults], exported)
        load = self.options.load
        chosen, found = choose(usable, lambda name: speed.score(paces, name, load), load, self.say)
        graph = self._graph(chosen, exported)
        parities = [p for _, p in judged]
        lengths = [len(one.prompt) for one in truth.continued]
        made = Made(
            chosen, found, judged, left_out, chosen.execution(0, source=self.source.given), self._tune(chosen, graph),
            times_pytorch=speed.score(paces, chosen.name, load), speed=speed.as_rows(paces),
            graph={path.name: path for path in sorted(graph.iterdir())}, hashes=hashes[graph],
            inputs=serving.GENERATION_INPUTS, outputs=serving.GENERATION_OUTPUTS,
            texts=len(self.texts), lengths=lengths,
            drifts=reference.distributions([self.processor.prepare({"text": text}) for text in self.texts], []),
            notes=self._notes(max(lengths)), judged_on="prompts", other_load=self.other_load,
            facts={"judged": len(self.judged), "new_tokens": self.new_tokens},
        )  # fmt: skip
        return write(
            self.options, self.source, self.work, made,
            warm_up=lambda folder: self._warm_up(truth, folder),
            draw=lambda path: report.draw_ratios(path, parities, tables.cells(paces)),
            page=lambda values, line: tables.render(values, parities, paces, line),
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

    def _graph(self, candidate: Candidate, exported: Path) -> Path:
        if candidate.graph == "fp32":
            return exported
        target = self.work / candidate.graph
        if not target.exists():
            self.progress(f"{candidate.name}: making the graph")
            make_graph(candidate.graph, exported, target)
        return target

    def _opener(self, graph: Path, threads: int) -> Callable[[], Generator]:
        return lambda: Generator(graph / GRAPH, threads=threads)

    def _speed(self, usable: Sequence[Candidate], exported: Path) -> list[Pace]:
        if not usable:
            return []
        row = self._prompt(max(self.judged, key=len))
        room = max(1, self.source.config.max_length - speed.TOKENS)
        lengths = speed.QUICK if self.options.is_quick else speed.PROMPTS
        prompts = [np.resize(row, n).tolist() for n in sorted({min(n, room) for n in lengths})]

        def open_engines(threads: int) -> dict[str, Pacer]:
            self.original.use_threads(threads)
            engines = {c.name: self._opener(self._graph(c, exported), threads)() for c in usable}
            return {ORIGINAL: self.original.pace, **{name: engine.pace for name, engine in engines.items()}}

        tokens = min(speed.TOKENS, self.source.config.max_length - max(map(len, prompts)))
        try:
            with self.measuring():
                return speed.measure(prompts, (1, self.cores), open_engines, self.progress, tokens=tokens)
        finally:
            self.original.use_threads(self.cores)

    def _tune(self, chosen: Candidate, graph: Path) -> serving.Tuned:
        task = self.task_options.get("task", "")
        size = sum(path.stat().st_size for path in graph.iterdir())
        most = int(_MAX_INSTANCE_BYTES // max(size, 1))
        if self.options.load == "latency" or self.cores == 1 or most < 2:
            return serving.Tuned(1, self.cores, 0, task=task)
        prompt = self._prompt(self.judged[0])
        shape = cells.best_shape(
            min(4, most), self.cores, lambda threads: _bind(self._opener(graph, threads)(), prompt, self.new_tokens),
            self.say, lambda what: self.progress(f"{chosen.name}: {what}"), per_call=self.new_tokens, unit=" tokens",
        )  # fmt: skip
        return serving.Tuned(*shape, 0, task=task)

    # --- files --------------------------------------------------------------------------------------------------

    def _warm_up(self, truth: Truth, folder: Path) -> str:
        """Return ``warmup.json``: prompts that the bundle continues like PyTorch, with no close decision."""
        engine = self._opener(folder, self.cores)()
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


def _bind(engine: Generator, prompt: Sequence[int], tokens: int) -> cells.Call:
    return lambda: engine.continue_(prompt, tokens)


def _verdict_line(found: TextParity) -> str:
    return verdict(found, f"same next token {found.decisions:.1%}", f"same text until {found.continued:.1%}")
