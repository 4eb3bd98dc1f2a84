"""Turns a Hugging Face model into a bundle: export, candidates, accuracy, speed, choice, files.

Called by ``triton-gateway optimize``. All intermediate files are in a folder of this run, which is removed with it: no
file is taken from another run, so no model can be mistaken for another. The bundle appears under its final name when it
is complete.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.bundles import prerequisites
from deploy.bundles.export import candidates, custom_code
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import find_source
from deploy.bundles.generation import run as generation
from deploy.bundles.options import Options, Outcome, Say
from deploy.bundles.register import fetch_source, is_registered
from deploy.bundles.text_run import TextRun
from deploy.bundles.work_folder import work_folder
from deploy.sync.model_folder import execution
from deploy.tools.errors import DeployError
from preprocessing.config import GENERATION


def optimize(options: Options, say: Say, progress: Say) -> Outcome:
    """Make the bundle. ``say`` gets lasting lines, ``progress`` the current step. Raises ``DeployError``."""
    prerequisites.require(openvino=not options.candidate.startswith("ort-"))
    check(options)
    with custom_code.trusted(options.trusts_code), work_folder(options.output) as work:
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
        kind = generation.CausalRun if is_causal else TextRun
        return kind(options, source, work, say, progress).run(tried, left)


def check(options: Options) -> None:
    """Refuse options that no kind of model supports, before a model is fetched. Raises ``DeployError``."""
    known = dict.fromkeys(c.name for c in (*candidates.CANDIDATES, *generation.CANDIDATES))
    if options.target == "gpu" and options.precision == "bf16":
        raise DeployError("--precision bf16 is not supported on GPUs", hint="use fp16, fp32 or auto")
    if options.target == "cpu" and options.candidate and options.candidate not in known:
        raise DeployError(f"there is no candidate {options.candidate}", hint=f"known candidates: {', '.join(known)}")
    if options.target == "cpu" and options.precision == "fp16":
        raise DeployError("fp16 is not faster on a CPU", hint="use --precision bf16, or --target gpu")


def choose_candidates(
    options: Options, among: Sequence[Candidate]
) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the candidates to try, and those left out with the reason. Raises ``DeployError`` if none is left."""
    if options.target == "gpu":
        if among is generation.CANDIDATES:
            raise DeployError(
                "text generation is not supported on GPUs: its program in Triton uses ONNX Runtime on the CPU",
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
            f"no candidate matches {asked} ({reasons or 'candidates: ' + ', '.join(c.name for c in among)})",
            hint="use --precision auto",
        )
    return tried, left
