"""Every way in ``sabotage`` and ``hostile`` is refused: ``.ci/run long`` tries some of them, ``.ci/run models`` all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from . import hostile, sabotage, tiny
from .conftest import Case
from .test_sabotage import exported

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

SHOWN = ("negated from 127 tokens", "batches above 8", "a weight × 1.05", "only batches of 29", "one number × 1.05",
         "a rare token forgotten", "odd batches reversed", "not a number for one token",
         "one token that no text has", "types are not read", "exactly 100 pads")  # fmt: skip
GRAPH = list(sabotage.GRAPH) if tiny.IS_ALL else SHOWN
WAYS = list(hostile.WAYS) if tiny.IS_ALL else ("one row unmasked", "padding by its token")
FILES = list(sabotage.FILES) if tiny.IS_ALL else list(sabotage.FILES)[3:8:2]


@pytest.mark.parametrize("name", GRAPH)
def test_a_spoiled_graph_is_refused(
    name: str, case: Case, graph: Path, make_bundle: Callable[[Case, Path], Path]
) -> None:
    """As fp32, and as bf16, whose rounding may hide nothing that is in the file."""
    bundle = make_bundle(case, graph)
    sabotage.spoiled(graph, sabotage.GRAPH[name], bundle / "model.onnx")
    found = case.judge(bundle)
    assert not found.is_within, name
    rounded = case.judge(bundle, name="openvino-bf16")
    assert rounded.faults, (name, rounded)


@pytest.mark.parametrize("name", WAYS)
def test_a_mistake_in_the_program_is_refused(
    name: str, case: Case, tmp_path: Path, make_bundle: Callable[[Case, Path], Path]
) -> None:
    """All weights are right, and the exporter has optimised around the mistake."""
    wrong = hostile.Wrong(case.original.module.model, hostile.WAYS[name]).eval()
    bundle = make_bundle(case, exported(wrong, case, tmp_path / "wrong.onnx", {0: "batch", 1: "sequence"}))
    assert not case.judge(bundle).is_within, name
    assert case.judge(bundle, name="openvino-bf16").faults, name


@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_file_is_refused(
    name: str, case: Case, graph: Path, make_bundle: Callable[[Case, Path], Path]
) -> None:
    """Whatever the texts happen to show; never accepted with a reason either."""
    bundle = make_bundle(case, graph)
    sabotage.FILES[name](bundle)
    assert case.judge(bundle).faults, name


def test_the_honest_graph_passes(case: Case, graph: Path, make_bundle: Callable[[Case, Path], Path]) -> None:
    """What the others are compared with: nothing above is refused for another reason."""
    bundle = make_bundle(case, graph)
    sabotage.spoiled(graph, sabotage.output("Mul", np.float32(1)), bundle / "model.onnx")
    assert case.judge(bundle).is_within
    assert not case.judge(bundle, name="openvino-bf16").faults
