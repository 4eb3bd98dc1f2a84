"""The gate of one exported graph: every candidate's answers against the model that was named.

bf16, which rounds while it runs, is let through only if the graph is exact without rounding: what is wrong in the
export cannot hide behind the tolerance of the precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deploy.bundles.export.candidates import Candidate
from deploy.bundles.judge import parity
from deploy.bundles.judge.engine import Engine
from deploy.bundles.judge.parity import Parity, Say, Truth, tolerance_for
from deploy.bundles.work_folder import file_hash
from deploy.sync.model_folder.execution import Execution, Precision


class Gate:
    """Judges ways to run one graph, with the tokenizer and configuration in ``texts``, as a bundle will have them."""

    def __init__(
        self, truth: Truth, texts: Path, graph: Path, *, options: Mapping[str, object],
        threads: int, say: Say,
    ) -> None:  # fmt: skip
        self._truth = truth
        self._texts = texts
        self._graph = graph
        self._options = options
        self._threads = threads
        self._say = say
        self.judged_hash = file_hash(graph)
        """The sha256 of the graph that is judged."""
        self._exact: Parity | None = None

    def judge(self, candidate: Candidate, precision: Precision) -> Parity:
        """Return what was found; ``precision`` is the one it is held to. Never raises for a candidate's fault."""
        self._say(f"{candidate.name}: answering {len(self._truth.bodies)} texts")
        found = self._compare(candidate.name, candidate.execution, precision)
        if precision == "fp32":
            if found.is_within or self._exact is None:
                self._exact = found
            return found
        if self._exact is None:
            self._say(f"{candidate.name}: checking its graph without rounding")
            self._exact = self._compare(candidate.name, Execution(), "fp32")
        exact = self._exact
        wrong = [f"its graph is wrong even without rounding: {why}" for why in (*exact.faults, *exact.excesses)]
        return replace(found, faults=(*found.faults, *wrong[:1]))

    def _compare(self, name: str, execution: Execution, precision: Precision) -> Parity:
        return parity.judge(
            name, self._texts, self._truth, lambda: Engine(self._graph, execution, threads=self._threads),
            tolerance_for(precision), self._options, say=lambda text: self._say(f"{name}: {text}"),
        )  # fmt: skip
