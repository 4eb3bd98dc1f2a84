"""A graph of token vectors is pooled inside, and its answers are those that were pooled outside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from deploy.bundles.graph_pooling import EQUAL, OUTPUT, pool_inside, token_vectors
from deploy.bundles.sentences import SENTENCES
from deploy.sync.model_folder.onnx_signature import onnx_signature
from deploy.tools.errors import ExportFailed
from preprocessing.config import TaskConfig

SIZE = 8


def encoder(place: Path, *modes: str, opset: int = 18, include_prompt: bool = True) -> tuple[Path, TaskConfig]:
    """A sentence-transformers folder whose graph looks up one vector per token."""
    place.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(
        vocab_size=200, special_tokens=["[PAD]", "[UNK]"], show_progress=False))  # fmt: skip
    tokenizer.save(str(place / "tokenizer.json"))
    files = {
        "config.json": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": SIZE, "vocab_size": 200,
                        "max_position_embeddings": 64, "type_vocab_size": 1},
        "tokenizer_config.json": {"model_max_length": 64, "pad_token": "[PAD]"},
        "modules.json": [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
                         {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}],
        "1_Pooling/config.json": {
            "word_embedding_dimension": SIZE, "include_prompt": include_prompt,
            **{f"pooling_mode_{name}": mode in modes
               for name, mode in (("cls_token", "cls"), ("mean_tokens", "mean"), ("max_tokens", "max"))},
        },
    }  # fmt: skip
    for name, content in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(content))
    table = np.random.default_rng(7).normal(size=(200, SIZE)).astype(np.float32) - 2
    shape = ["batch", "sequence"]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])], "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*shape, SIZE])],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(place / "model.onnx"))
    return place, TaskConfig.from_folder(place)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("modes", [("mean",), ("cls",), ("max",), ("cls", "max", "mean")])
def test_answers_are_equal_and_one_vector_per_text_leaves_the_graph(
    tmp_path: Path, modes: tuple[str, ...], opset: int
) -> None:
    """In batches that are padded, too; numbers below zero make padding visible in a maximum."""
    place, config = encoder(tmp_path / "model", *modes, opset=opset)
    output = token_vectors(place / "model.onnx", config)
    assert "last_hidden_state" == output
    target = place / "pooled.onnx"
    assert pool_inside(place / "model.onnx", place, output, config, target) <= EQUAL
    assert [OUTPUT] == [one.name for one in onnx_signature(target).outputs]
    ids = np.array([[5, 6, 7], [8, 0, 0]])
    (vectors,) = onnxruntime.InferenceSession(str(target)).run(
        None, {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
    )
    (alone,) = onnxruntime.InferenceSession(str(target)).run(
        None, {"input_ids": ids[1:, :1], "attention_mask": np.ones((1, 1), np.int64)}
    )
    assert (2, SIZE * len(modes)) == vectors.shape
    np.testing.assert_allclose(vectors[1:], alone, atol=1e-6)
    assert "" == token_vectors(target, config)


def test_a_graph_that_pools_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put into the graph is asked and compared, not believed."""
    place, config = encoder(tmp_path / "model", "mean")
    wrong = TaskConfig.from_folder(encoder(tmp_path / "other", "max")[0])
    monkeypatch.setattr("deploy.bundles.graph_pooling._MODES", ("max", "mean"))
    with pytest.raises(ExportFailed, match="differ"):
        pool_inside(place / "model.onnx", place, "last_hidden_state", wrong, place / "pooled.onnx")
    assert config.pooling == ("mean",)


def test_what_cannot_be_pooled_inside_stays_as_it_is(tmp_path: Path) -> None:
    """A prompt that is left out is known outside only."""
    place, config = encoder(tmp_path / "model", "mean", include_prompt=False)
    assert "" == token_vectors(place / "model.onnx", config)
