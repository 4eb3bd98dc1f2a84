"""Tiny models and their exports, made once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.bundles.export import candidates
from deploy.bundles.export.original import Original
from deploy.bundles.judge import parity, samples
from deploy.bundles.judge.gate import Gate
from deploy.bundles.judge.parity import Parity, Truth
from deploy.bundles.model_files import copy_texts
from preprocessing.processor import TextProcessor

from . import families, tiny


@dataclass
class Case:
    """A tiny model, what PyTorch answers, and how a bundle of it is judged."""

    folder: Path
    original: Original
    processor: TextProcessor
    truth: Truth

    def feeds(self) -> dict[str, Any]:
        """Two texts of different length, as the exporter gets them."""
        make = samples.bodies_of(self.processor)
        texts = ("short text", "a text that is much longer")
        rows = [self.processor.prepare(make(text)).rows[0] for text in texts]
        return self.processor.collate_rows(rows)

    def judge(self, bundle: Path, *, name: str = "ort-fp32", options: dict[str, object] | None = None) -> Parity:
        """Judge ``bundle`` (texts and model.onnx) as candidate ``name``."""
        candidate = next(c for c in candidates.CANDIDATES if c.name == name)
        gate = Gate(
            self.truth, bundle, bundle / "model.onnx", options=options or {}, threads=1, say=_nothing,
        )  # fmt: skip
        return gate.judge(candidate, candidate.precision)


def _nothing(_: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models of a few thousand weights: threads of torch only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    """Make a tiny BERT, or a model of a family, which has a task of its own, and ask PyTorch."""

    def make(name: str, task: str = "SequenceClassification") -> Case:
        folder = tmp_path_factory.mktemp(name) / "model"
        if name == "Bert":
            tiny.make(folder, task=task)
        else:
            families.make(families.FAMILIES[name], folder)
        config = TextProcessor.from_folder(folder).config
        original = Original(folder, config)
        processor = TextProcessor.from_folder(folder, output_names=original.output_names)
        bodies = samples.built_in(processor)
        return Case(folder, original, processor, parity.find_truth(folder, processor, bodies, original.run, str))

    return make


@pytest.fixture(scope="session")
def case(make_case: Callable[..., Case]) -> Case:
    """A tiny BERT classifier with three labels that reads 128 tokens."""
    return make_case("Bert")


@pytest.fixture(scope="session")
def graph(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its honest export."""
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    case.original.export(path, case.feeds())
    return path


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[[Case, Path], Path]:
    """Put a graph and the original's texts into a folder, for a test to spoil."""

    def make(case: Case, graph: Path) -> Path:
        bundle = tmp_path / "bundle"
        bundle.mkdir()
        copy_texts(case.folder, bundle)
        (bundle / "model.onnx").write_bytes(graph.read_bytes())
        return bundle

    return make
