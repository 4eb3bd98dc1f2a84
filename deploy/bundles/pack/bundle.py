"""Writes a bundle: all files under a temporary name, then the final name once they are the judged ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from deploy.bundles import other_load, serving
from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.source import Source
from deploy.bundles.judge.parity import Parity
from deploy.bundles.model_files import copy_texts, kept_files
from deploy.bundles.options import BeyondTolerance, Options, Outcome
from deploy.bundles.pack import manifest, reference
from deploy.bundles.work_folder import link
from deploy.sync.model_folder import execution
from deploy.tools.clearml_serving import Tensor
from deploy.tools.folders import aside, file_name

LEAST_REFERENCE: Final = 100
"""Least number of the user's own texts for reference distributions."""


@dataclass(frozen=True, slots=True)
class Made:
    """Results of a run, for any kind of model."""

    chosen: Candidate
    parity: Parity
    judged: Sequence[tuple[Candidate, Parity]]
    left_out: Mapping[str, str]
    wanted: execution.Execution
    tuned: serving.Tuned
    times_pytorch: float
    speed: Sequence[Mapping[str, Any]]
    """The speed table as plain values."""
    graph: Mapping[str, Path]
    """The graph's files by their names in the bundle."""
    hashes: Mapping[str, str]
    """The sha256 of those files when they were judged, by the same names."""
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    texts: int
    """Number of samples, judged or not."""
    lengths: Sequence[int]
    """Tokens of the judged samples."""
    drifts: reference.Distributions
    notes: Sequence[str]
    judged_on: str
    """Name of the built-in samples in a note."""
    facts: Mapping[str, Any]
    """Further facts about the samples for the manifest."""
    other_load: float
    """The share of the machine's cores that other programs used while speeds were measured."""


def write(
    options: Options, source: Source, work: Path, made: Made, *, warm_up: Callable[[Path], str],
    page: Callable[[Mapping[str, Any], str], str],
) -> Outcome:  # fmt: skip
    """Write the bundle. Raises ``DeployError``.

    ``warm_up`` returns ``warmup.json`` for the bundle in a folder, ``page`` the report from the manifest and the
    command that serves it.
    """
    name = options.name or source.name
    is_users = options.samples is not None
    values = {
        **manifest.describe(
            options, source, name, made.chosen, made.parity, made.wanted, made.tuned, made.times_pytorch
        ),
        "samples": {
            "count": made.texts, **made.facts, "source": "the user's" if is_users else "built in",
            "shortest": min(made.lengths), "longest": max(made.lengths),
            "distributions": reference.describe(made.drifts),
        },
        "parity": [asdict(parity) for _, parity in made.judged],
        "speed": made.speed,
        "left_out": dict(made.left_out),
        "notes": [
            *source.notes, *made.notes, *filter(None, [other_load.sentence(made.other_load)]),
            *_note_of_samples(made, is_users=is_users),
        ],
    }  # fmt: skip
    values["machine"]["used_by_others"] = round(made.other_load, 3)
    digest = manifest.bundle_digest(values, list(made.graph.values()))
    final = options.output / file_name(f"{name}-{made.chosen.name}-{digest}")
    with aside(work, final) as folder:
        for file, path in made.graph.items():
            link(path, folder / file)
        copy_texts(source.folder, folder)
        (folder / execution.FILE).write_text(execution.encode(made.wanted), encoding="utf-8")
        (folder / "warmup.json").write_text(warm_up(folder), encoding="utf-8")
        if is_users and made.texts >= LEAST_REFERENCE:
            text = reference.encode(made.drifts, source=f"{made.texts} texts given to triton-gateway optimize")
            (folder / "reference.json").write_text(text, encoding="utf-8")
        added = serving.add_arguments("ENDPOINT", "MODEL_ID", made.inputs, made.outputs, made.tuned)
        (folder / "report.md").write_text(page(values, serving.command_line(added)), encoding="utf-8")
        values["files"] = hashes = manifest.hashes(folder)
        is_judged = made.hashes == {file: hashes[file] for file in made.graph}
        if not is_judged or kept_files(folder) != kept_files(work / "texts"):
            raise BeyondTolerance("the judged files changed before they were packed, so no bundle was made")
        source.check_unchanged()
        (folder / manifest.FILE).write_text(json.dumps(values, indent=1, default=str) + "\n", encoding="utf-8")
    return Outcome(
        final, made.chosen, made.parity, made.times_pytorch, made.inputs, made.outputs, made.tuned, values
    )  # fmt: skip


def _note_of_samples(made: Made, *, is_users: bool) -> list[str]:
    if not is_users:
        return [
            f"Judged on the built-in {made.judged_on}. With your own texts (--samples FILE), the accuracy is that of "
            "your use, and the bundle carries reference distributions for drift."
        ]
    if made.texts < LEAST_REFERENCE:
        return [f"No reference distributions: they need {LEAST_REFERENCE} texts, but {made.texts} were given."]
    return []
