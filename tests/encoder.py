"""A tiny encoder of token vectors, as most exporters write them: without pooling."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from deploy.bundles.sentences import SENTENCES
from tests.tiny import TOKENS, saved

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
    output = ("last_hidden_state", TensorProto.FLOAT, ("batch", "sequence", SIZE))
    gather = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    saved(place / "model.onnx", [gather], TOKENS, [output], table=table)
    return place
