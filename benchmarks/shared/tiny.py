"""Tiny models: what costs nothing to run, so that everything else is seen.

A *multiplying* model's answer tells which one it is; a *counting* one classifies by how often 'good' and 'bad' occur.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.shared.words import SPECIAL, WORDS, text_bundle

PROJECT: Final = "benchmarks"
BODY: Final = b'{"x": [[1.0, 2.0]]}'
"""A request to a multiplying model behind ``code``; ``answer`` is what it gets."""
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


def counting_bundle(folder: Path, **config: Any) -> Path:
    """Write a text classification model of two labels: how often 'bad' and 'good' occur."""
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


def _save(graph: Any, path: Path) -> Path:
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, path)
    return path
