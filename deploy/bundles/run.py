"""The whole way from a Hugging Face model to a bundle: export, candidates, accuracy, speed, choice, files.

Called by ``triton-gateway optimize``. Everything on the way lies in a folder of this run alone, which disappears with
it: nothing is ever taken from another run, so no model can be taken for another. The bundle appears under its final
name when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import util
from pathlib import Path
from typing import Any, Final

import numpy as np

from deploy.bundles import serving, speed
from deploy.bundles.export import candidates
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.original import Original
from deploy.bundles.export.source import Source, copy_texts, find_source, kept_files
from deploy.bundles.generation import candidates as generation
from deploy.bundles.generation.run import CausalRun
from deploy.bundles.judge import parity, probes, samples
from deploy.bundles.judge.engine import Engine
from deploy.bundles.judge.gate import Gate
from deploy.bundles.judge.parity import Parity, Truth
from deploy.bundles.options import BeyondTolerance, Options, Outcome, Say, acceptable, judge_each
from deploy.bundles.pack import manifest, reference, report, warm_up
from deploy.bundles.pack.manifest import bundle_digest
from deploy.bundles.register import fetch_source, is_registered
from deploy.bundles.speed import ORIGINAL, Cell, Timing
from deploy.bundles.work import link, work_folder
from deploy.modelsync.model_folder import execution
from deploy.modelsync.model_folder.cores import available_cores
from deploy.tools.errors import DeployError, MissingPart
from deploy.tools.folders import aside
from deploy.tools.sentences import SENTENCES
from preprocessing.config import GENERATION
from preprocessing.processor import TextProcessor

NEEDED: Final = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "nncf", "matplotlib")

_LEAST_REFERENCE: Final = 100
"""Texts of the user's own from which reference distributions are made."""


def optimize(options: Options, say: Say, progress: Say) -> Outcome:
    """Make the bundle. ``say`` gets lasting lines, ``progress`` what is going on. Raises ``DeployError``."""
    missing = [package for package in NEEDED if util.find_spec(package) is None]
    if missing:
        raise MissingPart(
            f"optimizing a model needs {', '.join(missing)}", hint='run `pip install "triton-gateway[bundles]"`'
        )
    check(options)
    with work_folder(options.output) as work:
        fetched = None
        if is_registered(options.model):
            progress(f"fetching model {options.model}")
            fetched = fetch_source(options.model, work / "fetched")
        source = find_source(options.model, task=options.task, scratch=work, reads=options.reads, fetched=fetched)
        for note in source.notes:
            say(note)
        is_causal = source.config.task == GENERATION
        tried, left = choose_candidates(options, generation.CANDIDATES if is_causal else candidates.CANDIDATES)
        say(f"{source.given}: {source.config.architecture or source.config.model_type}, {source.config.task}, "
            f"up to {source.config.max_length} tokens")  # fmt: skip
        if is_causal:
            return CausalRun(options, source, work, say, progress).run(tried, left)
        return _Run(options, source, work, say, progress).run(tried, left)


class _Run:
    """One run: the original and its answers, shared by every step."""

    def __init__(self, options: Options, source: Source, work: Path, say: Say, progress: Say) -> None:
        self.options = options
        self.source = source
        self.work = work
        self.say = say
        self.progress = progress
        self.task_options = {} if options.task == "auto" else {"task": options.task}
        self.cores = available_cores()
        progress("loading the model into PyTorch")
        self.original = Original(source.folder, source.config)
        self.original.use_threads(self.cores)
        self.processor = TextProcessor.from_folder(
            source.folder, options=self.task_options, output_names=self.original.output_names
        )
        self.bodies = self._bodies()
        self.max_length = min(source.config.max_length, samples.MOST_TOKENS)

    def run(self, tried: Sequence[Candidate], left: Sequence[tuple[Candidate, str]]) -> Outcome:
        exported = self._export()
        truth = self._truth()
        texts = self.work / "texts"
        texts.mkdir(exist_ok=True)
        copy_texts(self.source.folder, texts)

        def judge(candidate: Candidate, graph: Path) -> Parity:
            return gate.judge(
                candidate, graph, self._execution(candidate), self._judged_precision(candidate), exported=exported
            )

        gate = self.gate = Gate(
            truth, self.named.weights(), texts, self.processor, tolerance=self.options.tolerance,
            options=self.task_options, threads=self.cores, say=self.progress,
        )  # fmt: skip
        judged, left_out = judge_each(tried, left, lambda c: self._graph(c, exported), judge, _sentence, self.say)
        timings = self._speed([(c, p) for c, p in judged if not p.faults]) if self.options.target == "cpu" else []
        try:
            chosen, found = self._choose(judged, timings)
        except BeyondTolerance as error:
            # Whichever fault the gate met first: an original that reads its padding has all of them.
            if any(p.faults for _, p in judged) and self._reads_padding():
                kind = self.source.config.architecture or "the model"
                raise BeyondTolerance(
                    f"{kind} answers a text otherwise when padding stands behind it, in PyTorch "
                    "too, so texts of different length cannot share a batch",
                    hint="nothing was made; a Preprocess class that asks for one text at a time can serve it",
                ) from error
            raise
        tuned = replace(self._tune(chosen, timings), task=self.task_options.get("task", ""))
        return self._bundle(chosen, found, judged, timings, tuned, truth, left_out)

    # --- steps --------------------------------------------------------------------------------------------------

    def _bodies(self) -> list[dict[str, Any]]:
        if self.options.samples is not None:
            return samples.from_file(self.options.samples, self.processor)
        return samples.built_in(self.processor)

    def _feeds(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.processor.collate_rows(self.processor.prepare(body).rows)

    def _example(self) -> dict[str, Any]:
        """Two texts of different length: nothing about an exported graph may depend on either size being 1 or equal."""
        bodies = self.bodies
        lengths = samples.token_counts(self.processor, bodies)
        if max(lengths) < 2 or len(bodies) < 2:  # a user's texts of one token each are no example
            bodies = samples.built_in(self.processor)
            lengths = samples.token_counts(self.processor, bodies)
        fitting = [i for i, n in enumerate(lengths) if 6 <= n <= 40] or list(range(len(lengths)))
        order = sorted(fitting, key=lambda i: lengths[i])
        rows = [self.processor.prepare(bodies[i]).rows[0] for i in (order[0], order[-1])]
        return self.processor.collate_rows(rows)

    def _export(self) -> Path:
        target = self.work / "fp32.onnx"
        self.progress("exporting to ONNX")
        self.original.export(target, self._example())
        self.say(f"exported: {target.stat().st_size / 1e6:.0f} MB of ONNX")
        return target

    def _reads_padding(self) -> bool:
        sizes = samples.token_counts(self.processor, self.bodies)
        short = self._feeds(self.bodies[sizes.index(min(sizes))])
        pads = {"input_ids": self.source.config.pad_id}
        padded = {n: np.pad(v, ((0, 0), (0, 8)), constant_values=pads.get(n, 0)) for n, v in short.items()}
        return self.original.reads_padding(short, padded)

    def _truth(self) -> Truth:
        """Ask PyTorch: the model the user named, loaded afresh, whatever was done to the one that was exported."""
        self.progress("loading the model into PyTorch again, to compare with")
        self.source.check_unchanged()
        self.named = Original(self.source.origin, self.source.config)
        self.named.use_threads(self.cores)
        if probes.depends_on_what_came_before(self.processor, self.named.run):
            kind = self.source.config.architecture or "the model"
            raise BeyondTolerance(
                f"{kind} answers a long text otherwise after it was asked a short one, in PyTorch too",
                hint="nothing was made; a setting in config.json may end that (BigBird: attention_type original_full)",
            )
        return parity.find_truth(
            self.source.read_from(self.options.reads), self.processor, self.bodies, self.named.run, self.progress,
            reads=self.options.reads, files=self.source.kept(),
        )  # fmt: skip

    def _graph(self, candidate: Candidate, exported: Path) -> Path:
        if candidate.graph == "fp32":
            return exported
        target = self.work / f"{candidate.graph}.onnx"
        if not target.exists():
            self.progress(f"{candidate.name}: making the graph (calibration takes up to a minute)")
            candidates.make_graph(candidate.graph, exported, target, self._calibration)
        return target

    def _calibration(self) -> list[dict[str, Any]]:
        """Texts activations are measured on: the user's own where there are any, else none of the judged ones."""
        if self.options.samples is not None:
            bodies: Sequence[Mapping[str, Any]] = self.bodies[::2]
        else:
            texts = SENTENCES
            pairs = [f"{a} {texts[(i + 37) % len(texts)]}" for i, a in enumerate(texts)]
            bodies = list(map(samples.bodies_of(self.processor), pairs))
        fitting = [f for f in map(self._feeds, bodies) if f["input_ids"].shape[1] <= self.max_length]
        return fitting[: candidates.CALIBRATION]

    def _opener(self, candidate: Candidate, graph: Path, threads: int) -> Callable[[], Engine]:
        return lambda: self.gate.engine(graph, self._execution(candidate), threads)

    def _execution(self, candidate: Candidate) -> execution.Execution:
        return candidate.execution(self.max_length, source=self.source.given)

    def _judged_precision(self, candidate: Candidate) -> execution.Precision:
        # On a GPU target the fp32 graph is what can be judged here; TensorRT makes fp16 of it over there.
        return "fp32" if self.options.target == "gpu" else candidate.precision

    def _speed(self, found: Sequence[tuple[Candidate, Parity]]) -> list[Timing]:
        cells = speed.grid(
            self.max_length,
            (1, self.cores),
            **({"lengths": (16, 128), "batches": (1,)} if self.options.is_quick else {}),
        )
        exported = self.work / "fp32.onnx"

        def open_engines(threads: int) -> dict[str, Callable[[Cell], speed.Call]]:
            self.original.use_threads(threads)
            engines = {c.name: self._opener(c, self._graph(c, exported), threads)() for c, _ in found}
            calls: dict[str, Callable[[Cell], speed.Call]] = {
                ORIGINAL: lambda cell: _bind(self.original.run, self._cell(cell))
            }
            for name, engine in engines.items():
                calls[name] = lambda cell, engine=engine: _bind(engine.call, self._cell(cell))  # type: ignore[misc]
            return calls

        try:
            return speed.measure(cells, open_engines, self.progress)
        finally:
            self.original.use_threads(self.cores)

    def _cell(self, cell: Cell) -> dict[str, Any]:
        """Real tokens, repeated to the cell's size."""
        return speed.of_size(self._feeds(self.bodies[0]), cell)

    def _choose(
        self, judged: Sequence[tuple[Candidate, Parity]], timings: Sequence[Timing]
    ) -> tuple[Candidate, Parity]:
        usable = acceptable(judged, self.options.accept)
        if not timings:
            return next(iter(usable.values()))
        name = speed.fastest(timings, usable, self.options.load)
        self.say(
            f"chosen for {self.options.load}: {name}, ×{speed.score(timings, name, self.options.load):.1f} PyTorch"
        )
        return usable[name]

    def _tune(self, chosen: Candidate, timings: Sequence[Timing]) -> serving.Tuned:
        if self.options.target == "gpu":
            return serving.Tuned(1, 1, 64, "gpu")
        batch = serving.batch_limit(speed.best_batch(timings, chosen.name))
        if self.options.load == "latency" or self.cores == 1:
            return serving.Tuned(1, self.cores, batch)
        graph = self._graph(chosen, self.work / "fp32.onnx")
        lengths = samples.token_counts(self.processor, self.bodies)
        middle = Cell(1, max(4, int(np.median(lengths))), 1)
        rates: dict[tuple[int, int], float] = {}
        for instances, threads in speed.shapes(4, self.cores):
            self.progress(f"{chosen.name}: {instances} instance(s) of {threads} thread(s)")
            engines = [self._opener(chosen, graph, threads)() for _ in range(instances)]
            rates[instances, threads] = speed.side_by_side([_bind(e.call, self._cell(middle)) for e in engines])
        instances, threads = max(rates, key=lambda shape: rates[shape])
        self.say("instances × threads: " + ", ".join(f"{i} × {t}: {rate:.0f}/s" for (i, t), rate in rates.items()))
        return serving.Tuned(instances, threads, batch)

    # --- files --------------------------------------------------------------------------------------------------

    def _bundle(
        self, chosen: Candidate, found: Parity, judged: Sequence[tuple[Candidate, Parity]], timings: Sequence[Timing],
        tuned: serving.Tuned, truth: Truth, left_out: Mapping[str, str],
    ) -> Outcome:  # fmt: skip
        options, source = self.options, self.source
        name = options.name or source.name
        wanted = self._execution(chosen)
        if options.target == "gpu":
            wanted = execution.Execution(engine="onnxruntime", precision=chosen.precision, target="gpu")
        prepared = [self.processor.prepare(body) for body in self.bodies]
        lengths = [p.n_tokens for p in prepared]
        ratio = speed.score(timings, chosen.name, options.load) if timings else 0.0
        drifts = reference.distributions(prepared, truth.answers, len(source.config.labels))
        inputs, outputs = serving.tensors(self._feeds(self.bodies[0]), truth.outputs[0])
        values = {
            **manifest.describe(options, source, name, chosen, found, wanted, tuned, ratio),
            "samples": {
                "count": len(self.bodies), "source": "the user's" if options.samples else "built in",
                "shortest": min(lengths), "longest": max(lengths), "distributions": reference.describe(drifts),
            },
            "parity": [asdict(p) for _, p in judged],
            "speed": speed.as_rows(timings),
            "left_out": dict(left_out),
            "notes": self._notes(),
        }  # fmt: skip
        graph = self._graph(chosen, self.work / "fp32.onnx")
        final = options.output / f"{name}-{chosen.name}-{bundle_digest(values, [graph])}"
        with aside(self.work, final) as folder:
            link(graph, folder / "model.onnx")
            copy_texts(source.folder, folder)
            (folder / execution.FILE).write_text(execution.encode(wanted), encoding="utf-8")
            (folder / "warmup.json").write_text(self._warm_up(chosen, folder, tuned), encoding="utf-8")
            if options.samples is not None and len(self.bodies) >= _LEAST_REFERENCE:
                text = reference.encode(drifts, source=f"{len(self.bodies)} texts given to triton-gateway optimize")
                (folder / "reference.json").write_text(text, encoding="utf-8")
            report.draw(folder / "report.png", [p for _, p in judged], timings)
            line = serving.command_line(serving.add_arguments("ENDPOINT", "MODEL_ID", inputs, outputs, tuned))
            (folder / "report.md").write_text(
                report.render(values, [p for _, p in judged], timings, line), encoding="utf-8"
            )
            values["files"] = manifest.hashes(folder)
            is_judged = self.gate.is_judged(chosen, folder / "model.onnx")
            if not is_judged or kept_files(folder) != kept_files(self.work / "texts"):
                raise BeyondTolerance("the files that were judged changed on the way into the bundle: nothing was made")
            self.source.check_unchanged()
            (folder / manifest.FILE).write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")
        return Outcome(final, chosen, found, ratio, inputs, outputs, tuned, values)

    def _warm_up(self, chosen: Candidate, folder: Path, tuned: serving.Tuned) -> str:
        """Return ``warmup.json``, with what the named model answers and the bundle's own graph bears out."""
        self.progress("recording the answers that the gateway will ask for")
        engine = self._opener(chosen, folder / "model.onnx", self.cores)()
        names = engine.output_names
        own = self.bodies if self.options.samples is not None else ()
        return warm_up.encode(
            self.processor, warm_up.bodies(self.processor, own, tuned.max_batch_size), self.named.run,
            lambda feeds: dict(zip(names, engine.call(feeds), strict=True)), chosen.precision,
        )  # fmt: skip

    def _notes(self) -> list[str]:
        notes = list(self.source.notes)
        if self.original.not_given:
            others = " and ".join(self.original.not_given)
            notes.append(
                f"The model also reads {others}, which a text does not have: it answers without, as its pipeline."
            )
        if self.options.target == "gpu":
            notes.append(
                "The graph was checked in fp32 on this machine's CPU. Speed and fp16 accuracy on a GPU were not "
                "measured: the configuration is TensorRT behind ONNX Runtime as in NVIDIA's container."
            )
        judged = samples.judged_length(self.processor)
        if judged < self.source.config.max_length:
            notes.append(
                f"Judged up to {judged} tokens, of {self.source.config.max_length} that the model reads: more does not "
                "fit into this machine's memory."
            )
        if self.options.samples is None:
            notes.append(
                "Judged on the built-in samples: with --samples FILE, on your own texts, accuracy means more, and the "
                "bundle carries reference distributions for drift."
            )
        elif len(self.bodies) < _LEAST_REFERENCE:
            notes.append(
                f"No reference distributions: they need {_LEAST_REFERENCE} texts, {len(self.bodies)} were given."
            )
        return notes


def check(options: Options) -> None:
    """Refuse what no kind of model has, before a model is fetched. Raises ``DeployError``."""
    known = dict.fromkeys(c.name for c in (*candidates.CANDIDATES, *generation.CANDIDATES))
    if options.target == "gpu" and options.precision in ("int8", "bf16"):
        raise DeployError(f"--precision {options.precision} is not made for GPUs", hint="use fp16, fp32 or auto")
    if options.target == "cpu" and options.candidate and options.candidate not in known:
        raise DeployError(f"there is no candidate {options.candidate}", hint=f"known are {', '.join(known)}")
    if options.target == "cpu" and options.precision == "fp16":
        raise DeployError("fp16 brings nothing on a CPU", hint="use --precision bf16, or --target gpu")


def choose_candidates(
    options: Options, among: Sequence[Candidate]
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the candidates to try, and those left out with the reason. Raises ``DeployError`` when none is left."""
    if options.target == "gpu":
        if among is generation.CANDIDATES:
            raise DeployError(
                "text generation is not made for GPUs: the program that runs it in Triton uses ONNX Runtime on the CPU",
                hint="use --target cpu",
            )
        wanted = "fp32" if options.precision == "fp32" else "fp16"
        return [c for c in candidates.GPU if c.precision == wanted], []
    tried, left = candidates.usable(execution.this_cpu(), options.precision, among)
    if options.candidate:
        left += [(c, "--candidate") for c in tried if c.name != options.candidate]
        tried = [c for c in tried if c.name == options.candidate]
    if not tried:
        asked = options.candidate or options.precision
        reasons = "; ".join(f"{c.name}: {why}" for c, why in left if asked in (c.name, c.precision))
        raise DeployError(
            f"nothing can be made for {asked} ({reasons or 'it is made as ' + ', '.join(c.name for c in among)})",
            hint="use --precision auto",
        )
    return tried, left


def _sentence(found: Parity) -> str:
    if found.faults:
        return f"refused: {found.faults[0]}"
    exact = f"mean cosine {found.mean_cosine:.5f}, largest difference {found.max_difference:.1e}"
    nearest = "" if found.neighbours is None else f", same neighbour {found.neighbours:.1%}"
    verdict = "within tolerance" if found.is_within else "beyond tolerance: " + "; ".join(found.excesses)
    return f"{exact}, same answer {found.decisions:.1%}{nearest}; {verdict}"


def _bind(function: Callable[[Any], object], argument: Any) -> speed.Call:
    return lambda: function(argument)
