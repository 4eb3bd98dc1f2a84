"""Every task with a head: its own requests, its own class of transformers, exported and judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.bundles.export.original import Original
from deploy.bundles.judge import parity, samples
from preprocessing.heads import HEADS
from preprocessing.processor import TextProcessor

from . import tiny
from .conftest import Case

pytestmark = pytest.mark.integration

MODELS = {
    "text-classification": "SequenceClassification",
    "zero-shot-classification": "SequenceClassification",
    "token-classification": "TokenClassification",
    "question-answering": "QuestionAnswering",
    "fill-mask": "MaskedLM",
    "feature-extraction": "",
    "sentence-embeddings": "",
    "ranking": "SequenceClassification",
}
"""Task → what stands behind ``For`` in the architecture's name."""
ELSEWHERE = ("text-classification", "sentence-embeddings")
"""Exported, judged and served in the tests beside this one."""
EXPORTED = [task for task in MODELS if task not in ELSEWHERE] if tiny.IS_ALL else ["question-answering"]
NOT_ENCODERS = {"text-generation"}


def test_every_task_of_the_package_is_known_here() -> None:
    """A new head needs a row above, or a word why it is not exported."""
    assert set(HEADS) - NOT_ENCODERS <= set(MODELS)


@pytest.mark.long
@pytest.mark.parametrize("task", EXPORTED)
def test_task_is_exported_and_judged(task: str, tmp_path: Path, make_bundle: Callable[[Case, Path], Path]) -> None:
    """Its requests are made, PyTorch and the exported graph answer them alike."""
    labels = {
        "ranking": ("score",),
        "question-answering": ("start", "end"),
        "zero-shot-classification": ("contradiction", "neutral", "entailment"),
    }
    folder = tiny.make(tmp_path / "model", task=MODELS[task], labels=labels.get(task, tiny.LABELS))
    options = {"task": task}
    processor = TextProcessor.from_folder(folder, options=options)
    original = Original(folder, processor.config)
    processor = TextProcessor.from_folder(folder, options=options, output_names=original.output_names)
    bodies = samples.built_in(processor)[::6]
    assert len(bodies) > 10
    truth = parity.find_truth(folder, processor, bodies, original.run, str)
    case = Case(folder, original, processor, truth)
    original.export(tmp_path / "graph.onnx", case.feeds())
    found = case.judge(make_bundle(case, tmp_path / "graph.onnx"), options=options)
    assert found.is_within, found
