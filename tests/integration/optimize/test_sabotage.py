"""What the accuracy gate is for: each way an export goes wrong is refused, and says which way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from deploy.bundles.export.original import quietly

from .conftest import Case

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Bundle = Callable[[Case, Path], Path]


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


def test_an_honest_export_passes(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Every length, alone and in padded batches, within 1e-4 of PyTorch: ONNX Runtime and OpenVINO in fp32."""
    bundle = make_bundle(case, graph)
    for name in ("ort-fp32", "openvino-fp32"):
        found = case.judge(bundle, name=name)
        assert found.is_within, found
        assert found.max_difference <= 1e-4 * found.scale
    assert {"negative", "neutral", "positive"} >= set(found.classes)
    assert len(found.classes) > 1, "texts of one class would hide a swapped label"


def test_a_swapped_label_is_refused(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """The graph is right, config.json exchanges two names."""
    bundle = make_bundle(case, graph)
    config = json.loads((bundle / "config.json").read_text())
    config["id2label"] = {"0": "positive", "1": "neutral", "2": "negative"}
    (bundle / "config.json").write_text(json.dumps(config))
    found = case.judge(bundle)
    assert "the bundle's labels differ from the original's: 0 is positive instead of negative" in found.faults[0]


def test_exchanged_columns_are_refused(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """The names are right, the graph's last layer exchanges two of them."""
    bundle = make_bundle(case, graph)
    model = onnx.load(bundle / "model.onnx")
    node = next(n for n in model.graph.node if "logits" in n.output)
    node.output[0] = "right"
    order = numpy_helper.from_array(np.array([2, 1, 0], dtype=np.int64), "order")
    model.graph.initializer.append(order)
    model.graph.node.append(onnx.helper.make_node("Gather", ["right", "order"], ["logits"], axis=1))
    onnx.save(model, bundle / "model.onnx")
    found = case.judge(bundle)
    assert not found.is_within
    assert any("of the answers changed" in line for line in found.excesses)
    assert any("a class shifted" in line for line in found.excesses)


def test_a_dropped_attention_mask_is_refused(case: Case, make_bundle: Bundle, tmp_path: Path) -> None:
    """Alone every text is right; beside longer ones it is not."""

    class Deaf(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = case.original.module.model

        def forward(self, input_ids, attention_mask, token_type_ids):
            mask = torch.ones_like(attention_mask) + 0 * attention_mask
            return self.model(input_ids=input_ids, attention_mask=mask, token_type_ids=token_type_ids).logits

    path = exported(Deaf().eval(), case, tmp_path / "deaf.onnx", {0: "batch", 1: "sequence"})
    found = case.judge(make_bundle(case, path))
    assert any("depends on its padding" in line and "attention mask" in line for line in found.faults), found


def test_a_wrong_tokenizer_is_refused(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Cased instead of uncased: most texts still work, their tokens are others."""
    bundle = make_bundle(case, graph)
    tokenizer = json.loads((bundle / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (bundle / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = case.judge(bundle)
    assert "the bundle's tokenizer makes other tokens than the original's" in found.faults[0]


def test_weights_of_four_bits_are_refused(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """Rounded per tensor; refused also as bf16, whose tolerance is wider."""
    bundle = make_bundle(case, graph)
    model = onnx.load(bundle / "model.onnx")
    for weight in model.graph.initializer:
        value = numpy_helper.to_array(weight)
        if value.dtype == np.float32 and value.ndim == 2:
            step = np.abs(value).max() / 7
            weight.CopyFrom(numpy_helper.from_array((np.round(value / step) * step).astype(np.float32), weight.name))
    onnx.save(model, bundle / "model.onnx")
    for name in ("ort-fp32", "openvino-bf16"):
        found = case.judge(bundle, name=name)
        assert any("mean cosine" in line for line in found.excesses), found


@pytest.mark.long
def test_a_fixed_length_is_refused(case: Case, make_bundle: Bundle, tmp_path: Path) -> None:
    """The exporter took the example's length for a constant."""
    path = exported(case.original.module, case, tmp_path / "fixed.onnx", {0: "batch"})
    found = case.judge(make_bundle(case, path))
    assert "the graph cannot run texts of" in found.faults[0]


def test_a_damaged_graph_is_refused(case: Case, graph: Path, make_bundle: Bundle) -> None:
    """With the engine's own reason."""
    bundle = make_bundle(case, graph)
    (bundle / "model.onnx").write_bytes(graph.read_bytes()[:2000])
    assert "ONNX Runtime cannot load the graph" in case.judge(bundle).faults[0]
