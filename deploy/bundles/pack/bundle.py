"""Writes a bundle: all files under a temporary name, then the final name once they are the judged ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from deploy.bundles import serving, speed
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import Source
from deploy.bundles.judge.parity import Parity
from deploy.bundles.model_files import copy_texts, kept_files
from deploy.bundles.options import BeyondTolerance, Judged, Options, Outcome
from deploy.bundles.pack import manifest
from deploy.bundles.speed import Timing
from deploy.bundles.work_folder import link
from deploy.sync.model_folder import execution
from deploy.tools.clearml_serving import Tensor
from deploy.tools.folders import aside, file_name

GRAPH: Final = "model.onnx"


@dataclass(frozen=True, slots=True)
class Made:
    """Results of a run, for any kind of model."""

    chosen: Candidate
    parity: Parity
    judged: Judged
    left_out: Mapping[str, str]
    wanted: execution.Execution
    tuned: serving.Tuned
    times_pytorch: float
    timings: Sequence[Timing]
    graph: Path
    judged_hash: str
    """The sha256 of the graph when it was judged."""
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    lengths: Sequence[int]
    """Tokens of the judged samples."""
    notes: Sequence[str]


def write(options: Options, source: Source, work: Path, made: Made, *, warm_up: Callable[[Path], str]) -> Outcome:
    """Write the bundle; ``warm_up`` returns ``warmup.json`` for the bundle in a folder. Raises ``DeployError``."""
    name = options.name or source.name
    values = {
        **manifest.describe(
            options, source, name, made.chosen, made.parity, made.wanted, made.tuned, made.times_pytorch
        ),
        "samples": {
            "count": len(made.lengths), "source": "built in" if options.samples is None else "the user's",
            "shortest": min(made.lengths), "longest": max(made.lengths),
        },
        "parity": [asdict(parity) for _, parity in made.judged],
        "speed": speed.as_rows(made.timings),
        "left_out": dict(made.left_out),
        "serve": serving.command_line(
            serving.add_arguments("ENDPOINT", "MODEL_ID", made.inputs, made.outputs, made.tuned)
        ),
        "notes": [*source.notes, *made.notes],
    }  # fmt: skip
    digest = manifest.bundle_digest(values, made.graph)
    final = options.output / file_name(f"{name}-{made.chosen.name}-{digest}")
    with aside(work, final) as folder:
        link(made.graph, folder / GRAPH)
        copy_texts(source.folder, folder)
        (folder / execution.FILE).write_text(execution.encode(made.wanted), encoding="utf-8")
        (folder / "warmup.json").write_text(warm_up(folder), encoding="utf-8")
        values["files"] = hashes = manifest.hashes(folder)
        if hashes[GRAPH] != made.judged_hash or kept_files(folder) != kept_files(work / "texts"):
            raise BeyondTolerance("the judged files changed before they were packed, so no bundle was made")
        source.check_unchanged()
        (folder / manifest.FILE).write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")
    return Outcome(final, values)
