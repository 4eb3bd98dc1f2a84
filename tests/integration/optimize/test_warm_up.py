"""The samples in a bundle notice by themselves what went wrong after the gate; Triton does not load another file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.bundles.judge import parity
from deploy.bundles.judge.engine import Engine
from deploy.bundles.pack import warm_up
from deploy.sync.model_folder.execution import Execution
from gateway import samples as stored
from preprocessing.processor import TextProcessor

from . import sabotage
from .conftest import Case

pytestmark = pytest.mark.integration

NOTICED = ("negated from 127 tokens", "batches above 8", "a weight × 1.05", "only the longest row", "scores × 1.1")


@pytest.fixture(scope="module")
def kept(case: Case, graph: Path) -> stored.Samples:
    """The samples of an fp32 bundle that is configured for batches of 16."""
    asked = warm_up.bodies(case.processor, (), 16)
    text = warm_up.encode(case.processor, asked, case.original.run, runs(graph), "fp32")
    return stored.parse(json.loads(text))


def runs(graph: Path) -> Callable[[Any], dict[str, Any]]:
    """Answer with a graph."""
    engine = Engine(graph, Execution(), threads=1)
    return lambda feeds: dict(zip(engine.output_names, engine.call(feeds), strict=True))


def disagreements(kept: stored.Samples, processor: TextProcessor, graph: Path) -> list[str]:
    """What the gateway would find, one sentence for each sample that is answered otherwise."""
    run = runs(graph)
    found = []
    for sample in kept.samples:
        prepared = processor.prepare(sample.body)
        answer = parity.answer_of(processor, run(processor.collate_rows(prepared.rows)), prepared)
        found.append(stored.difference(sample.answer, answer, kept.tolerance))
    return [text for text in found if text]


def test_samples_are_short_long_cut_and_in_batches(case: Case, kept: stored.Samples, graph: Path) -> None:
    """And the honest graph gives their answers, at the tolerance of fp32."""
    sizes = [[row.n_tokens for row in case.processor.prepare(s.body).rows] for s in kept.samples]
    alone = {rows[0] for rows in sizes if len(rows) == 1}
    assert {3, 128} <= alone
    assert len(alone) >= 5
    assert any(case.processor.prepare(s.body).rows[0].truncated for s in kept.samples)
    assert {5, 16} <= {len(rows) for rows in sizes}
    assert any(min(rows) < 8 and max(rows) == 128 for rows in sizes if len(rows) > 1)
    assert kept.tolerance <= 3e-4
    assert [] == disagreements(kept, case.processor, graph)


@pytest.mark.parametrize("name", NOTICED)
def test_a_graph_that_was_spoiled_later_is_noticed(
    name: str, case: Case, kept: stored.Samples, graph: Path, tmp_path: Path
) -> None:
    """Whatever way it came to Triton."""
    sabotage.spoiled(graph, sabotage.GRAPH[name], tmp_path / "model.onnx")
    assert disagreements(kept, case.processor, tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["half as long", "labels exchanged"])
def test_a_file_that_was_spoiled_later_is_noticed(
    name: str, case: Case, kept: stored.Samples, graph: Path, make_bundle: Callable[[Case, Path], Path]
) -> None:
    """Where nothing compares hashes."""
    bundle = make_bundle(case, graph)
    sabotage.FILES[name](bundle)
    processor = TextProcessor.from_folder(bundle, output_names=case.original.output_names)
    assert disagreements(kept, processor, graph)
