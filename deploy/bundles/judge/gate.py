"""The gate of one original: every candidate's answers, and every graph's weights, against the model that was named.

bf16, which rounds while it runs, is let through only if the graph is exact without rounding: what is wrong in the
export cannot hide behind the tolerance of the precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.bundles.export.candidates import Candidate
from deploy.bundles.judge import parity, weights
from deploy.bundles.judge.engine import Engine
from deploy.bundles.judge.parity import Parity, Say, Truth
from deploy.bundles.work_folder import file_hash
from deploy.sync.model_folder.execution import Execution, Precision
from preprocessing.processor import TextProcessor


class Gate:
    """Judges candidates with the tokenizer and configuration in ``texts``, as a bundle will have them."""

    def __init__(
        self, truth: Truth, originals: Mapping[str, Any], texts: Path, processor: TextProcessor, *,
        tolerance: Mapping[str, float], options: Mapping[str, object], threads: int, say: Say,
    ) -> None:  # fmt: skip
        """``originals`` are the named model's weights by name, ``tolerance`` what the user asks for instead."""
        self._truth = truth
        self._originals = originals
        self._texts = texts
        self._tolerance = tolerance
        self._options = options
        self._threads = threads
        self._say = say
        self._pads = {n: processor.config.pad_id if n == "input_ids" else 0 for n in processor.input_names}
        # By the hash of a graph's file: it may be another one the next time.
        self._exact: dict[str, Parity] = {}
        self._weights: dict[str, list[str]] = {}
        self._judged: dict[str, str] = {}

    def engine(self, graph: Path, execution: Execution, threads: int = 0) -> Engine:
        """Open a graph as Triton will, with ``threads`` or the gate's own. Raises ``ExportFailed``."""
        return Engine(graph, execution, threads=threads or self._threads, pads=self._pads)

    def judge(self, candidate: Candidate, graph: Path, execution: Execution, precision: Precision) -> Parity:
        """Return what was found; ``precision`` is the one it is held to. Never raises for a candidate's fault."""
        self._say(f"{candidate.name}: answering {len(self._truth.bodies)} texts")
        key = self._judged[candidate.name] = file_hash(graph)
        found = self._compare(candidate.name, graph, execution, precision, self._tolerance)
        faults = [*found.faults, *self._weight_faults(candidate.name, graph, key)]
        if precision == "fp32":
            if found.is_within or key not in self._exact:
                self._exact[key] = found
        else:
            exact = self._without_rounding(candidate.name, graph, key)
            wrong = (*exact.faults, *exact.excesses)
            faults += [f"its graph is wrong even without rounding: {why}" for why in wrong[:1]]
        return replace(found, faults=tuple(faults))

    def _without_rounding(self, name: str, graph: Path, key: str) -> Parity:
        if key not in self._exact:
            self._say(f"{name}: checking its graph without rounding")
            self._exact[key] = self._compare(name, graph, Execution(), "fp32", {})
        return self._exact[key]

    def _weight_faults(self, name: str, graph: Path, key: str) -> list[str]:
        if key not in self._weights:
            self._say(f"{name}: comparing its weights")
            self._weights[key] = weights.faults(self._originals, graph)
        return self._weights[key]

    def judged_file(self, candidate: Candidate) -> str:
        """Return the sha256 of the graph that was judged as ``candidate``."""
        return self._judged[candidate.name]

    def _compare(
        self, name: str, graph: Path, execution: Execution, precision: Precision, tolerance: Mapping[str, float]
    ) -> Parity:
        return parity.judge(
            name, self._texts, self._truth, lambda: self.engine(graph, execution),
            parity.tolerance_for(precision, tolerance), self._options, say=lambda text: self._say(f"{name}: {text}"),
        )  # fmt: skip
