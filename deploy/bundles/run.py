"""Turns a Hugging Face model into a bundle: export, candidates, accuracy, speed, choice, files.

Called by ``triton-gateway optimize``. All intermediate files are in a folder of this run, which is removed with it: no
file is taken from another run, so no model can be mistaken for another. The bundle appears under its final name when it
is complete.
"""

from __future__ import annotations

from deploy.bundles import prerequisites
from deploy.bundles.export import candidates, custom_code
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import find_source
from deploy.bundles.options import Options, Outcome, Say
from deploy.bundles.registered import fetch_source, is_registered
from deploy.bundles.text_run import TextRun
from deploy.bundles.work_folder import work_folder
from deploy.sync.model_folder import execution
from deploy.tools.errors import DeployError


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
        tried, left = choose_candidates(options)
        say(f"{source.given}: {source.config.architecture or source.config.model_type}, {source.config.task}, "
            f"up to {source.config.max_length} tokens")  # fmt: skip
        return TextRun(options, source, work, say, progress).run(tried, left)


def check(options: Options) -> None:
    """Refuse a candidate that does not exist, before a model is fetched. Raises ``DeployError``."""
    known = [c.name for c in (candidates.GPU if options.target == "gpu" else candidates.CANDIDATES)]
    if options.candidate and options.candidate not in known:
        raise DeployError(
            f"there is no candidate {options.candidate} for a {options.target}",
            hint=f"known candidates: {', '.join(known)}",
        )


def choose_candidates(options: Options) -> tuple[list[Candidate], list[tuple[Candidate, str]]]:
    """Return the candidates to try, and those left out with the reason. Raises ``DeployError`` if none is left."""
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
