"""Turns a Hugging Face model into a bundle: export, candidates, accuracy, speed, choice, files.

Called by ``triton-gateway optimize``. All intermediate files are in a folder of this run, which is removed with it: no
file is taken from another run, so no model can be mistaken for another. The bundle appears under its final name when it
is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from deploy.bundles import prerequisites, serving, speed
from deploy.bundles.export import candidates, custom_code
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.original import Original
from deploy.bundles.export.source import Source, find_source
from deploy.bundles.judge import parity, samples
from deploy.bundles.judge.engine import Engine
from deploy.bundles.judge.gate import Gate
from deploy.bundles.judge.parity import Parity, Truth
from deploy.bundles.model_files import copy_texts, kept_files
from deploy.bundles.options import BeyondTolerance, Options, Outcome, Say, acceptable
from deploy.bundles.pack import manifest, warm_up
from deploy.bundles.speed import ORIGINAL, Cell, Timing
from deploy.bundles.work_folder import file_hash, link, work_folder
from deploy.sync.model_folder import execution
from deploy.tools.clearml_serving import model_add
from deploy.tools.errors import DeployError
from deploy.tools.folders import aside
from gateway.file_names import file_name
from preprocessing.processor import TextProcessor

GRAPH: Final = "model.onnx"
_LEAST_BATCH: Final = 8
"""Small requests may share a call even if batching gains nothing: each call costs Triton about 1 ms."""


def optimize(options: Options, say: Say, progress: Say) -> Outcome:
    """Make the bundle. ``say`` gets lasting lines, ``progress`` the current step. Raises ``DeployError``."""
    prerequisites.require(openvino=not options.candidate.startswith("ort-"))
    tried, left = choose_candidates(options)
    with custom_code.trusted(options.trusts_code), work_folder(options.output) as work:
        progress(f"reading {options.model}")
        source = find_source(options.model, task=options.task, scratch=work, reads=options.reads)
        for note in source.notes:
            say(note)
        say(f"{source.given}: {source.config.architecture or source.config.model_type}, {source.config.task}, "
            f"up to {source.config.max_length} tokens")  # fmt: skip
        return _Run(options, source, work, say, progress).run(tried, left)


def choose_candidates(options: Options) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the candidates to try, and those left out with the reason. Raises ``DeployError`` if none is left."""
    known = [c.name for c in (candidates.GPU if options.target == "gpu" else candidates.CANDIDATES)]
    if options.candidate and options.candidate not in known:
        raise DeployError(
            f"there is no candidate {options.candidate} for a {options.target}",
            hint=f"known candidates: {', '.join(known)}",
        )
    if options.target == "gpu":
        return [c for c in candidates.GPU if c.name == (options.candidate or candidates.GPU[0].name)], []
    tried: list[Candidate] = []
    left: list[tuple[Candidate, str]] = []
    features = execution.this_cpu()
    for one in candidates.CANDIDATES:
        if options.candidate not in ("", one.name):
            left.append((one, "--candidate"))
        elif one.any_of and features and not features.intersection(one.any_of):
            left.append((one, f"this CPU has none of {', '.join(one.any_of)}"))
        else:
            tried.append(one)
    if not tried:
        reasons = "; ".join(f"{c.name}: {why}" for c, why in left)
        raise DeployError(f"{options.candidate} cannot be tried here ({reasons})", hint="leave out --candidate")
    return tried, left


class _Run:
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
        self.cores = execution.available_cores()
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
        self.gate = Gate(truth, texts, exported, options=self.task_options, threads=self.cores, say=self.progress)
        judged = [(candidate, self._judge(candidate)) for candidate in tried]
        usable = acceptable(judged, self.options.accept)
        timings = self._speed([c for c, p in judged if not p.faults], exported)
        chosen, found = usable[max(usable, key=lambda name: speed.score(timings, name))]
        times = speed.score(timings, chosen.name)
        if timings:
            self.say(f"chosen for {self.options.load}: {chosen.name}, ×{times:.1f} PyTorch")
        tuned, lengths = self._tune(chosen, timings), samples.token_counts(self.processor, self.bodies)
        inputs, outputs = serving.tensors(self._feeds(self.bodies[0]), truth.outputs)
        values = {
            **manifest.describe(self.options, self.source, chosen, found, tuned, times),
            "samples": {
                "count": len(lengths), "source": "built in" if self.options.samples is None else "the user's",
                "shortest": min(lengths), "longest": max(lengths),
            },
            "parity": [asdict(one) for _, one in judged],
            "speed": speed.as_rows(timings),
            "left_out": {candidate.name: why for candidate, why in left},
            "serve": serving.command_line(model_add("ENDPOINT", "MODEL_ID", inputs, outputs, tuned.pairs())),
            "notes": [*self.source.notes, *self._notes()],
        }  # fmt: skip
        return self._write(values, exported, chosen, tuned)

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
        return parity.find_truth(
            self.source.read_from(self.options.reads), self.processor, self.bodies, self.named.run, self.progress,
            reads=self.options.reads, files=self.source.kept(),
        )  # fmt: skip

    def _judge(self, candidate: Candidate) -> Parity:
        """Judge a candidate, and say what was found."""
        # For a GPU target, only the fp32 graph can be judged here; TensorRT turns it into fp16 on the target.
        held_to: execution.Precision = "fp32" if self.options.target == "gpu" else candidate.precision
        found = self.gate.judge(candidate, held_to)
        self.say(f"{candidate.name}: {_verdict(found)}")
        return found

    def _speed(self, usable: Sequence[Candidate], exported: Path) -> list[Timing]:
        if self.options.target == "gpu":
            return []
        threads = self.cores if self.options.load == "latency" else 1
        opened = {c.name: Engine(exported, c.execution, threads=threads).call for c in usable}

        def prepared(run: Callable[[Any], object]) -> Callable[[Cell], speed.Call]:
            return lambda cell: partial(run, speed.of_size(self._feeds(self.bodies[0]), cell))

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
        batch = max(_LEAST_BATCH, speed.best_batch(timings, chosen.name))
        if self.options.load == "latency":
            return serving.Tuned(1, self.cores, batch, task=task)
        shared = execution.tuning_for(self.cores)
        return serving.Tuned(shared.instances, shared.threads, batch, task=task)

    # --- files --------------------------------------------------------------------------------------------------

    def _write(self, values: dict[str, Any], graph: Path, chosen: Candidate, tuned: serving.Tuned) -> Outcome:
        """Write all files under a temporary name, then the final name once they are the judged ones."""
        parts = [file_hash(graph), self.source.digest, chosen.name, self.options.target]
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
        final = self.options.output / file_name(f"{values['name']}-{chosen.name}-{digest}")
        with aside(self.work, final) as folder:
            link(graph, folder / GRAPH)
            copy_texts(self.source.folder, folder)
            (folder / execution.FILE).write_text(execution.encode(chosen.execution), encoding="utf-8")
            (folder / "warmup.json").write_text(self._warm_up(chosen, folder, tuned), encoding="utf-8")
            values["files"] = hashes = manifest.hashes(folder)
            if hashes[GRAPH] != self.gate.judged_hash or kept_files(folder) != kept_files(self.work / "texts"):
                raise BeyondTolerance("the judged files changed before they were packed, so no bundle was made")
            self.source.check_unchanged()
            (folder / manifest.FILE).write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")
        return Outcome(final, values)

    def _warm_up(self, chosen: Candidate, folder: Path, tuned: serving.Tuned) -> str:
        """Return ``warmup.json``: the named model's answers that the bundle's own graph confirms."""
        self.progress("recording the answers that the gateway will ask for")
        engine = Engine(folder / GRAPH, chosen.execution, threads=self.cores)
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


def _verdict(found: Parity) -> str:
    if found.faults:
        return f"refused: {found.faults[0]}"
    nearest = "" if found.neighbours is None else f", same neighbour {found.neighbours:.1%}"
    end = "within tolerance" if found.is_within else "beyond tolerance: " + "; ".join(found.excesses)
    return (
        f"mean cosine {found.mean_cosine:.5f}, largest difference {found.max_difference:.1e}, same answer "
        f"{found.decisions:.1%}{nearest}; {end}"
    )
