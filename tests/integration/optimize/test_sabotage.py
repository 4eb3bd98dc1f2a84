"""What the accuracy gate is for: every way an export goes wrong is refused, and the most likely ones are named.

``.ci/run long`` tries some of the ways in ``sabotage`` and ``hostile``, ``.ci/run models`` all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from deploy.bundles.export.original import quietly

from . import hostile, sabotage, tiny
from .conftest import Case

pytestmark = pytest.mark.integration

Bundle = Callable[[Case, Path], Path]
SHOWN = ("negated from 127 tokens", "batches above 8", "a weight × 1.05", "only batches of 29", "one number doubled",
         "a rare token forgotten", "odd batches reversed", "not a number for one token",
         "one token that no text has", "types are not read", "exactly 100 pads")  # fmt: skip
GRAPH = list(sabotage.GRAPH) if tiny.IS_ALL else SHOWN
WAYS = list(hostile.WAYS) if tiny.IS_ALL else ("one row unmasked", "padding by its token")
FILES = list(sabotage.FILES) if tiny.IS_ALL else list(sabotage.FILES)[3:8:2]


def exported(module: torch.nn.Module, case: Case, path: Path, axes: dict[int, str]) -> Path:
    """Export any module of the same inputs."""
    feeds = case.feeds()
    with quietly():
        torch.onnx.export(
            module, (), str(path), kwargs={n: torch.from_numpy(v) for n, v in feeds.items()}, input_names=list(feeds),
            output_names=["logits"], dynamic_shapes=dict.fromkeys(feeds, axes), dynamo=True, external_data=False,
            verbose=False,
        )  # fmt: skip
    return path


def of_graph(spoil: sabotage.Spoil) -> Callable[[Path], None]:
    """Spoil a bundle's graph in this way."""
    return lambda bundle: sabotage.spoiled(bundle / "model.onnx", spoil, bundle / "model.onnx")


def cut_off(bundle: Path) -> None:
    """Leave the beginning of the graph's file."""
    (bundle / "model.onnx").write_bytes((bundle / "model.onnx").read_bytes()[:2000])


def test_an_honest_export_passes(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Every length, alone and in padded batches, within 1e-4 of PyTorch: ONNX Runtime and OpenVINO in fp32."""
    bundle = make_bundle(case, graph)
    for name in ("ort-fp32", "openvino-fp32"):
        found = case.judge(bundle, name=name)
        assert found.is_within, found
        assert found.max_difference <= 1e-4 * found.scale
    assert len({answer["label"] for answer in case.truth.answers}) > 1, "texts of one class would hide a swapped label"
    sabotage.spoiled(graph, sabotage.output("Mul", np.float32(1)), bundle / "model.onnx")
    assert case.judge(bundle).is_within, "nothing below is refused for another reason"
    assert not case.judge(bundle, name="openvino-bf16").faults


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (sabotage.FILES["labels exchanged"], ["the bundle's labels: ('positive', 'neutral', 'negative') instead of"]),
        (sabotage.FILES["case kept"], ["the bundle's tokenizer makes other tokens than the original's"]),
        (of_graph(sabotage.GRAPH["columns exchanged"]), ["the answer differs from PyTorch's"]),
        (of_graph(sabotage.GRAPH["padding is attended to"]), ["rows, each of which is right alone"]),
        (of_graph(sabotage.four_bits), ["rows of 1, 2, 3, 4 … 128 tokens: the answer differs from PyTorch's"]),
        (cut_off, ["ONNX Runtime cannot load the model"]),
    ],
    ids=["labels", "tokenizer", "columns", "mask", "four bits", "damaged"],
)
def test_what_goes_wrong_is_refused_and_named(
    case: Case, graph: Path, make_bundle: Bundle, spoil: Callable[[Path], None], said: list[str]
) -> None:
    """Also as bf16, whose tolerance is wider."""
    bundle = make_bundle(case, graph)
    spoil(bundle)
    found = case.judge(bundle)
    assert not found.is_within
    assert not case.judge(bundle, name="openvino-bf16").is_within
    lines = "\n".join((*found.faults, *found.excesses))
    assert [] == [words for words in said if words not in lines], lines


@pytest.mark.long
def test_a_fixed_length_is_refused(case: Case, make_bundle: Bundle, tmp_path: Path) -> None:
    """The exporter took the example's length for a constant."""
    path = exported(case.original.module, case, tmp_path / "fixed.onnx", {0: "batch"})
    assert "1 row(s) of up to" in case.judge(make_bundle(case, path)).faults[0]


@pytest.mark.long
@pytest.mark.parametrize("name", GRAPH)
def test_a_spoiled_graph_is_refused(name: str, case: Case, graph: Path, make_bundle: Bundle) -> None:
    """As fp32, and as bf16, whose rounding may hide nothing that is in the file."""
    bundle = make_bundle(case, graph)
    of_graph(sabotage.GRAPH[name])(bundle)
    assert not case.judge(bundle).is_within, name
    rounded = case.judge(bundle, name="openvino-bf16")
    assert rounded.faults, (name, rounded)


@pytest.mark.long
@pytest.mark.parametrize("name", WAYS)
def test_a_mistake_in_the_program_is_refused(name: str, case: Case, tmp_path: Path, make_bundle: Bundle) -> None:
    """All weights are right, and the exporter has optimised around the mistake."""
    wrong = hostile.Wrong(case.original.module.model, hostile.WAYS[name]).eval()
    bundle = make_bundle(case, exported(wrong, case, tmp_path / "wrong.onnx", {0: "batch", 1: "sequence"}))
    assert not case.judge(bundle).is_within, name
    assert case.judge(bundle, name="openvino-bf16").faults, name


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_file_is_refused(name: str, case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Whatever the texts happen to show; never accepted with a reason either."""
    bundle = make_bundle(case, graph)
    sabotage.FILES[name](bundle)
    assert case.judge(bundle).faults, name
