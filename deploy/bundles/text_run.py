"""Makes a bundle of a model of texts: an encoder, classifier, ranker or similar.

Called by ``run`` with the work folder of this run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.bundles import serving, speed
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.original import Original
from deploy.bundles.export.source import Source
from deploy.bundles.judge import parity, probes, samples
from deploy.bundles.judge.engine import Engine
from deploy.bundles.judge.gate import Gate
from deploy.bundles.judge.parity import Parity, Truth
from deploy.bundles.model_files import copy_texts
from deploy.bundles.options import BeyondTolerance, Options, Outcome, Say, acceptable
from deploy.bundles.pack import warm_up
from deploy.bundles.pack.bundle import Made, write
from deploy.bundles.speed import ORIGINAL, Cell, Timing
from deploy.sync.model_folder import execution
from deploy.sync.model_folder.cores import available_cores
from preprocessing.processor import TextProcessor

_INSTANCES: Final = 4
"""Most instances for many requests at once: they share the cores, and each holds the weights once."""


class TextRun:
    """One run: judged on whole requests, timed by batch and length.

    ``work`` is the run's folder for intermediate files. ``say`` gets lasting lines, ``progress`` the current step.
    """

    def __init__(self, options: Options, source: Source, work: Path, say: Say, progress: Say) -> None:
        self.options = options
        self.source = source
        self.work = work
        self.say = say
        self.progress = progress
        self.task_options = {"task": options.named_task} if options.named_task else {}
        self.cores = available_cores()
        progress("loading the model into PyTorch")
        self.original = Original(source.folder, source.config)
        self.original.use_threads(self.cores)
        self.processor = TextProcessor.from_folder(
            source.folder, options=self.task_options, output_names=self.original.output_names
        )
        self.bodies = self._bodies()
        self.max_length = min(source.config.max_length, samples.MAX_TOKENS)

    def run(self, tried: Sequence[Candidate], left: Sequence[tuple[Candidate, str]]) -> Outcome:
        """Make the bundle. Raises ``DeployError``."""
        exported = self._export()
        truth = self._truth()
        texts = self.work / "texts"
        texts.mkdir(exist_ok=True)
        copy_texts(self.source.folder, texts)
        self.gate = Gate(
            truth, self.named.weights(), texts, self.processor, exported, options=self.task_options,
            threads=self.cores, say=self.progress,
        )  # fmt: skip
        judged = [(candidate, self._judge(candidate)) for candidate in tried]
        usable = acceptable(judged, self.options.accept)
        timings = self._speed([c for c, p in judged if not p.faults], exported)
        name = max(usable, key=lambda name: speed.score(timings, name))
        chosen, found = usable[name]
        times = speed.score(timings, name)
        if timings:
            self.say(f"chosen for {self.options.load}: {name}, ×{times:.1f} PyTorch")
        inputs, outputs = serving.tensors(self._feeds(self.bodies[0]), truth.outputs)
        tuned = self._tune(chosen, timings)
        made = Made(
            chosen, found, judged, {c.name: why for c, why in left}, self._wanted(chosen), tuned,
            times_pytorch=times, timings=timings, graph=exported, judged_hash=self.gate.judged_hash,
            inputs=inputs, outputs=outputs, lengths=[self.processor.prepare(body).n_tokens for body in self.bodies],
            notes=self._notes(),
        )  # fmt: skip
        return write(
            self.options, self.source, self.work, made, warm_up=lambda folder: self._warm_up(chosen, folder, tuned)
        )

    # --- steps --------------------------------------------------------------------------------------------------

    def _bodies(self) -> list[dict[str, Any]]:
        if self.options.samples is not None:
            return samples.from_file(self.options.samples, self.processor)
        return samples.built_in(self.processor)

    def _feeds(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.processor.collate_rows(self.processor.prepare(body).rows)

    def _export(self) -> Path:
        target = self.work / "fp32.onnx"
        self.progress("exporting to ONNX")
        self.original.export(target, self._example())
        self.say(f"exported: {target.stat().st_size / 1e6:.0f} MB of ONNX")
        return target

    def _example(self) -> dict[str, Any]:
        """Two texts of different length: an exported graph must not depend on a size being 1, or on two being equal."""
        bodies = samples.built_in(self.processor)
        lengths = samples.token_counts(self.processor, bodies)
        fitting = [i for i, n in enumerate(lengths) if 6 <= n <= 40] or list(range(len(lengths)))
        order = sorted(fitting, key=lambda i: lengths[i])
        rows = [self.processor.prepare(bodies[i]).rows[0] for i in (order[0], order[-1])]
        return self.processor.collate_rows(rows)

    def _truth(self) -> Truth:
        """Ask PyTorch: the model that the user named, loaded again, since the exported one may have been modified."""
        self.progress("loading the model into PyTorch again, to compare with")
        self.source.check_unchanged()
        self.named = Original(self.source.origin, self.source.config)
        self.named.use_threads(self.cores)
        if probes.depends_on_what_came_before(self.processor, self.named.run):
            kind = self.source.config.architecture or "the model"
            raise BeyondTolerance(
                f"{kind} answers a long text differently after a short one, in PyTorch too",
                hint="no bundle was made; a setting in config.json may prevent this (BigBird: attention_type "
                "original_full)",
            )
        return parity.find_truth(
            self.source.read_from(self.options.reads), self.processor, self.bodies, self.named.run, self.progress,
            reads=self.options.reads, files=self.source.kept(),
        )  # fmt: skip

    def _judge(self, candidate: Candidate) -> Parity:
        """Judge a candidate, and say what was found."""
        # For a GPU target, only the fp32 graph can be judged here; TensorRT turns it into fp16 on the target.
        held_to: execution.Precision = "fp32" if self.options.target == "gpu" else candidate.precision
        found = self.gate.judge(candidate, self._execution(candidate), held_to)
        self.say(f"{candidate.name}: {_verdict(found)}")
        return found

    def _open(self, candidate: Candidate, graph: Path, threads: int) -> Engine:
        return self.gate.engine(graph, self._execution(candidate), threads)

    def _execution(self, candidate: Candidate) -> execution.Execution:
        return candidate.execution(self.max_length, source=self.source.given)

    def _speed(self, usable: Sequence[Candidate], exported: Path) -> list[Timing]:
        if self.options.target == "gpu":
            return []
        threads = self.cores if self.options.load == "latency" else 1
        opened = {c.name: self._open(c, exported, threads).call for c in usable}

        def prepared(run: Callable[[Any], object]) -> Callable[[Cell], speed.Call]:
            return lambda cell: _bind(run, speed.of_size(self._feeds(self.bodies[0]), cell))

        engines = {name: prepared(run) for name, run in {ORIGINAL: self.original.run, **opened}.items()}
        cells = speed.grid(self.max_length, self.options.load, is_quick=self.options.is_quick)
        self.original.use_threads(threads)
        try:
            return speed.measure(cells, engines, self.progress)
        finally:
            self.original.use_threads(self.cores)

    def _tune(self, chosen: Candidate, timings: Sequence[Timing]) -> serving.Tuned:
        task = self.options.named_task
        if self.options.target == "gpu":
            return serving.Tuned(1, 1, 64, "gpu", task=task)
        batch = serving.batch_limit(speed.best_batch(timings, chosen.name))
        instances = 1 if self.options.load == "latency" else min(_INSTANCES, self.cores)
        return serving.Tuned(instances, self.cores // instances, batch, task=task)

    # --- files --------------------------------------------------------------------------------------------------

    def _wanted(self, chosen: Candidate) -> execution.Execution:
        if self.options.target == "gpu":
            return execution.Execution(engine="onnxruntime", precision=chosen.precision, target="gpu")
        return self._execution(chosen)

    def _warm_up(self, chosen: Candidate, folder: Path, tuned: serving.Tuned) -> str:
        """Return ``warmup.json``: the named model's answers that the bundle's own graph confirms."""
        self.progress("recording the answers that the gateway will ask for")
        engine = self._open(chosen, folder / "model.onnx", self.cores)
        names = engine.output_names
        own = self.bodies if self.options.samples is not None else ()
        return warm_up.encode(
            self.processor, warm_up.bodies(self.processor, own, tuned.max_batch_size), self.named.run,
            lambda feeds: dict(zip(names, engine.call(feeds), strict=True)), chosen.precision,
        )  # fmt: skip

    def _notes(self) -> list[str]:
        """Return notes for what the tables do not show."""
        notes = []
        if self.options.samples is None:
            notes.append(
                "Judged on the built-in texts. With your own texts (--samples FILE), the accuracy is that of your use."
            )
        if self.options.target == "gpu":
            notes.append(
                "The graph was checked in fp32 on this machine's CPU. Speed and fp16 accuracy on a GPU were not "
                "measured. The configuration uses ONNX Runtime with TensorRT, as in NVIDIA's container."
            )
        judged = samples.judged_length(self.processor)
        if judged < self.source.config.max_length:
            notes.append(
                f"Judged on texts of up to {judged} tokens. The model reads {self.source.config.max_length}, but "
                "longer texts do not fit into this machine's memory."
            )
        return notes


def _bind(function: Callable[[Any], object], argument: Any) -> speed.Call:
    return lambda: function(argument)


def _verdict(found: Parity) -> str:
    if found.faults:
        return f"refused: {found.faults[0]}"
    nearest = "" if found.neighbours is None else f", same neighbour {found.neighbours:.1%}"
    end = "within tolerance" if found.is_within else "beyond tolerance: " + "; ".join(found.excesses)
    return (
        f"mean cosine {found.mean_cosine:.5f}, largest difference {found.max_difference:.1e}, same answer "
        f"{found.decisions:.1%}{nearest}; {end}"
    )
