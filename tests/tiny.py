"""Tiny models, which cost almost nothing to run, so that everything else is visible.

The answer of a *multiplying* model identifies it. A *counting* model classifies by how often 'good' and 'bad' occur.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.words import SPECIAL, WORDS, text_bundle

PROJECT: Final = "benchmarks"
BODY: Final = b'{"x": [[1.0, 2.0]]}'
"""A request to a multiplying model behind ``code``; ``answer`` is its answer."""
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
    """Return the answer to ``BODY`` of a model with ``factor`` behind code called ``name``."""
    return {"y": [[factor, 2 * factor]], "code": name}


def upload(path: Path, name: str) -> tuple[str, ...]:
    """Return the stock CLI's arguments that upload a multiplying model."""
    return ("model", "upload", "--name", name, "--project", PROJECT, "--path", str(path), "--publish",
            "--framework", "onnx")  # fmt: skip


def add(endpoint: str, name: str, code: Path, version: str = "") -> tuple[str, ...]:
    """Return the stock CLI's arguments that serve the model of that name behind ``code``."""
    return ("model", "add", "--engine", "triton", "--endpoint", endpoint, "--name", name, "--project", PROJECT,
            "--preprocess", str(code), *_TENSORS, *(("--version", version) if version else ()))  # fmt: skip


def counting_bundle(folder: Path, **config: Any) -> Path:
    """Write a text classification model with two labels: how often 'bad' and 'good' occur."""
    text_bundle(folder, **{"max_position_embeddings": 32, **config})
    worth = np.zeros((len(SPECIAL) + len(WORDS), 2), dtype=np.float32)
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


def static_bundle(source: Path, folder: Path, *, width: int = 384) -> Path:
    """Write an encoder with the texts of ``source`` (a folder of BERT's files), once: the mean of its tokens' vectors.

    The graph takes ``input_ids`` and ``attention_mask`` (int64, batch × length) and returns ``sentence_embedding``
    (float32, batch × width) of length 1.
    """
    if (folder / "model.onnx").is_file():
        return folder
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config |= {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 1}  # others read them all
    (folder / "config.json").write_text(json.dumps(config))
    vectors = np.random.default_rng(1).normal(size=(config["vocab_size"], width)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["vectors", "input_ids"], ["each"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["each", "column"], ["counted"]),
        helper.make_node("ReduceSum", ["counted", "axis"], ["sum"], keepdims=0),
        helper.make_node("LpNormalization", ["sum"], ["sentence_embedding"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes, "static",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", "s"]) for n in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["b", width])],
        [numpy_helper.from_array(vectors, "vectors"), numpy_helper.from_array(np.array([2], dtype=np.int64), "last"),
         numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")],
    )  # fmt: skip
    _save(graph, folder / "model.onnx")
    return folder


def _save(graph: Any, path: Path) -> Path:
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, path)
    return path
