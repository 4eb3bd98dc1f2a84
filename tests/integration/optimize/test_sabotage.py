"""What the accuracy gate is for: every way an export goes wrong is refused, and the most likely ones are named.

``.ci/run long`` tries some of the ways in ``sabotage``, ``.ci/run models`` all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from deploy.bundles.export.original import quietly

from . import sabotage, tiny
from .conftest import Case

pytestmark = pytest.mark.integration

Bundle = Callable[[Case, Path], Path]
SHOWN = ("negated from 127 tokens", "batches above 8", "a weight × 1.05", "only batches of 29", "one number doubled",
         "a rare token forgotten", "odd batches reversed", "not a number for one token",
         "one token that no text has", "types are not read", "exactly 100 pads", "one row unmasked",
         "padding by its token")  # fmt: skip
GRAPH = list(sabotage.GRAPH) if tiny.IS_ALL else SHOWN
FILES = list(sabotage.FILES) if tiny.IS_ALL else list(sabotage.FILES)[3:8:2]


def of_graph(spoil: sabotage.Spoil) -> Callable[[Path], None]:
    """Spoil a bundle's graph in this way."""
    return lambda bundle: sabotage.spoiled(bundle / "model.onnx", spoil, bundle / "model.onnx")


def cut_off(bundle: Path) -> None:
    """Leave the beginning of the graph's file."""
    (bundle / "model.onnx").write_bytes((bundle / "model.onnx").read_bytes()[:2000])


def test_an_honest_export_passes(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Every length, alone and in padded batches, within 1e-4 of PyTorch."""
    found = case.judge(make_bundle(case, graph))
    assert found.is_within, found
    assert found.max_difference <= 1e-4 * found.scale
    assert len({answer["label"] for answer in case.truth.answers}) > 1, "texts of one class would hide a swapped label"


@pytest.mark.long
def test_another_way_to_run_it_hides_nothing_that_is_wrong_in_the_file(
    case: Case, graph: Path, make_bundle: Bundle
) -> None:
    """OpenVINO is as exact as ONNX Runtime; bf16 is not, and its tolerance is wider."""
    bundle = make_bundle(case, graph)
    sabotage.spoiled(graph, sabotage.output("Mul", np.float32(1)), bundle / "model.onnx")
    exact = case.judge(bundle, name="openvino-fp32")
    assert exact.is_within, "nothing below is refused for another reason"
    assert exact.max_difference <= 1e-4 * exact.scale
    assert not case.judge(bundle, name="openvino-bf16").faults
    of_graph(sabotage.GRAPH["a weight × 1.05"])(bundle)
    assert case.judge(bundle, name="openvino-bf16").faults


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (sabotage.FILES["labels exchanged"], "the bundle's labels: ('positive', 'neutral', 'negative') instead of"),
        (sabotage.FILES["case kept"], "the bundle's tokenizer makes other tokens than the original's"),
        pytest.param(
            of_graph(sabotage.GRAPH["columns exchanged"]), "the answer differs from PyTorch's", marks=pytest.mark.long
        ),
        (of_graph(sabotage.GRAPH["padding is attended to"]), "rows, each of which is right alone"),
        (cut_off, "ONNX Runtime cannot load the model"),
    ],
    ids=["labels", "tokenizer", "columns", "mask", "damaged"],
)
def test_what_goes_wrong_is_refused_and_named(
    case: Case, graph: Path, make_bundle: Bundle, spoil: Callable[[Path], None], said: str
) -> None:
    """One line for each way it differs."""
    bundle = make_bundle(case, graph)
    spoil(bundle)
    found = case.judge(bundle)
    assert not found.is_within
    assert said in "\n".join((*found.faults, *found.excesses))


@pytest.mark.long
def test_a_fixed_length_is_refused(case: Case, make_bundle: Bundle, tmp_path: Path) -> None:
    """The exporter took the example's length for a constant."""
    feeds = case.feeds()
    with quietly():
        torch.onnx.export(
            case.original.module, (), str(tmp_path / "fixed.onnx"), dynamo=True, external_data=False, verbose=False,
            kwargs={n: torch.from_numpy(v) for n, v in feeds.items()}, input_names=list(feeds),
            output_names=["logits"], dynamic_shapes={name: {0: "batch"} for name in feeds},
        )  # fmt: skip
    assert "1 row(s) of up to" in case.judge(make_bundle(case, tmp_path / "fixed.onnx")).faults[0]


@pytest.mark.long
@pytest.mark.parametrize("name", GRAPH)
def test_a_spoiled_graph_is_refused(name: str, case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Whatever the mistake depends on: rows, lengths, tokens, padding, a number of a weight."""
    bundle = make_bundle(case, graph)
    of_graph(sabotage.GRAPH[name])(bundle)
    assert not case.judge(bundle).is_within, name


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_file_is_refused(name: str, case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Whatever the texts happen to show; never accepted with a reason either."""
    bundle = make_bundle(case, graph)
    sabotage.FILES[name](bundle)
    assert case.judge(bundle).faults, name
