"""A tiny encoder of token vectors, as most exporters write them: without pooling."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from deploy.bundles.sentences import SENTENCES

SIZE = 8


def encoder(place: Path, *modes: str) -> Path:
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
            "word_embedding_dimension": SIZE,
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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, str(place / "model.onnx"))
    return place
