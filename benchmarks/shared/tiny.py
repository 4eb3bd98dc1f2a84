"""Tiny models and their tokenizers: what costs nothing to run, so that everything else is seen.

A *multiplying* model's answer tells which one it is; a *counting* one classifies by how often 'good' and 'bad' occur.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

PROJECT: Final = "benchmarks"
BODY: Final = b'{"x": [[1.0, 2.0]]}'
"""A request to a multiplying model behind ``code``; ``answer`` is what it gets."""
WORDS: Final = ("good", "bad", "film", "hello", "world")
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_CODE: Final = """
import numpy as np
class Preprocess:
    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        return np.array(body["x"], dtype="float32")
    def postprocess(self, data, state, collect_custom_statistics_fn=None):
        return {{"y": data.tolist(), "code": "{name}"}}
"""
_TENSORS: Final = (
    "--input-name", "x", "--input-type", "float32", "--input-size", "[-1, 2]",
    "--output-name", "y", "--output-type", "float32", "--output-size", "[-1, 2]",
)  # fmt: skip


def multiplying(path: Path, factor: float) -> Path:
    """Save a model that multiplies by ``factor``."""
    shape = ["batch", 2]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])], "factor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array([factor], dtype=np.float32), "factor")],
    )  # fmt: skip
    return _save(graph, path)


def code(path: Path, name: str) -> Path:
    """Save ``Preprocess`` code for a multiplying model; its answers say ``name``."""
    path.write_text(_CODE.format(name=name))
    return path


def answer(factor: float, name: str) -> dict[str, Any]:
    """Return what ``BODY`` gets of a model with ``factor`` behind code called ``name``."""
    return {"y": [[factor, 2 * factor]], "code": name}


def upload(path: Path, name: str) -> tuple[str, ...]:
    """Return the stock CLI's arguments that upload a multiplying model."""
    return ("model", "upload", "--name", name, "--project", PROJECT, "--path", str(path), "--publish",
            "--framework", "onnx")  # fmt: skip


def add(endpoint: str, name: str, code: Path, version: str = "") -> tuple[str, ...]:
    """Return the stock CLI's arguments that serve the model of that name behind ``code``."""
    return ("model", "add", "--engine", "triton", "--endpoint", endpoint, "--name", name, "--project", PROJECT,
            "--preprocess", str(code), *_TENSORS, *(("--version", version) if version else ()))  # fmt: skip


def text_bundle(
    folder: Path, architecture: str = "BertForSequenceClassification", *, words: Sequence[str] = WORDS, **config: Any
) -> Path:
    """Write a model folder whose tokenizer knows ``words``, without a model: one that the gateway does not read."""
    folder.mkdir(parents=True)
    known = list(dict.fromkeys((*_SPECIAL, *words)))
    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({
        "architectures": [architecture], "model_type": "bert", "pad_token_id": 0, "max_position_embeddings": 512,
        "id2label": {"0": "BAD", "1": "GOOD"}, "vocab_size": len(known), **config,
    }))  # fmt: skip
    (folder / "model.onnx").write_bytes(b"not read by the gateway")
    return folder


def counting_bundle(folder: Path) -> Path:
    """Write a text classification model of two labels: how often 'bad' and 'good' occur."""
    text_bundle(folder, max_position_embeddings=32)
    worth = np.zeros((len(_SPECIAL) + len(WORDS), 2), dtype=np.float32)
    worth[5, 0] = worth[4, 1] = 1
    nodes = [
        helper.make_node("Gather", ["worth", "input_ids"], ["each"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["each", "column"], ["counted"]),
        helper.make_node("ReduceSum", ["counted", "axis"], ["logits"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "labels",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", "s"]) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 2])],
        [numpy_helper.from_array(worth, "worth"), numpy_helper.from_array(np.array([2], dtype=np.int64), "last"),
         numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")],
    )  # fmt: skip
    _save(graph, folder / "model.onnx")
    return folder


def _save(graph: Any, path: Path) -> Path:
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, path)
    return path
