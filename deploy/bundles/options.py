"""Options and outcome of a run of ``triton-gateway optimize``, and which candidates may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bundles.export.candidates import Candidate
from deploy.bundles.export.tokens import Reads
from deploy.bundles.judge.parity import Parity
from deploy.bundles.speed import Load
from deploy.sync.model_folder.execution import Target
from deploy.tools.errors import DeployError

Say = Callable[[str], None]
Judged = Sequence[tuple[Candidate, Parity]]


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options."""

    model: str
    output: Path
    task: str = "auto"
    target: Target = "cpu"
    candidate: str = ""
    """Only this one of ``candidates.CANDIDATES`` or of ``candidates.GPU``."""
    load: Load = "throughput"
    samples: Path | None = None
    reads: Reads = "transformers"
    """Whose reading of ``tokenizer.json`` the bundle takes over: transformers' or the file's."""
    accept: str = ""
    name: str = ""
    is_quick: bool = False
    trusts_code: bool = False
    """True if the model's own Python code may run here."""

    @property
    def named_task(self) -> str:
        """The task that the user names; empty if the model's files tell it."""
        return "" if self.task == "auto" else self.task


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    bundle: Path
    manifest: Mapping[str, Any]


class BeyondTolerance(DeployError):
    """No candidate is as exact as required, or the bundle would be wrong."""


def acceptable(judged: Judged, accept: str) -> dict[str, tuple[Candidate, Parity]]:
    """Return the candidates that may be chosen, by name: those within tolerance.

    If there is none and ``accept`` gives a reason, all that have no faults. Raises ``BeyondTolerance`` if none is left.
    """
    usable = {c.name: (c, p) for c, p in judged if p.is_within}
    if not usable and accept:
        usable = {c.name: (c, p) for c, p in judged if not p.faults}
    if usable:
        return usable
    reasons = "; ".join(f"{p.candidate}: {(*p.faults, *p.excesses)[0]}" for _, p in judged) or "none could be made"
    is_wrong = all(p.faults for _, p in judged)
    raise BeyondTolerance(
        f"no candidate is within tolerance ({reasons})",
        hint="no bundle was made: the export is wrong, or the model itself answers a text differently in a batch; a "
        "Preprocess class that sends one text at a time can serve it" if is_wrong else
        'no bundle was made; --accept "REASON" takes the fastest anyway',
    )  # fmt: skip
