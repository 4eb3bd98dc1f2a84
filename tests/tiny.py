"""Tiny models, which cost almost nothing to run, so that everything else is visible.

The answer of a *multiplying* model identifies it. A *counting* model classifies by how often 'good' and 'bad' occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.words import SPECIAL, WORDS, text_bundle

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
TENSORS: Final = (
    "--input-name", "x", "--input-type", "float32", "--input-size", "[-1, 2]",
    "--output-name", "y", "--output-type", "float32", "--output-size", "[-1, 2]",
)  # fmt: skip


Tensor = tuple[str, int, Sequence[int | str]]
"""Name, type of ONNX, shape."""
TOKENS: Final[Sequence[Tensor]] = tuple(
    (name, TensorProto.INT64, ("batch", "sequence")) for name in ("input_ids", "attention_mask")
)


def saved(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor], domain: str = "",
    **weights: Any,
) -> Path:  # fmt: skip
    """Save a graph, whose operators may be from a ``domain`` of their own."""
    graph = helper.make_graph(
        list(nodes), path.stem, [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def summed(path: Path, table: Any, output: str, *, inputs: Sequence[Tensor] = TOKENS, is_normal: bool = False,
           operator: str = "Gather", domain: str = "") -> Path:  # fmt: skip
    """Save a model in which each token is worth a row of ``table``, and a text what its tokens are; of length 1 if
    ``is_normal``.
    """
    (ids, *_), (mask, *_) = inputs
    nodes = [
        helper.make_node(operator, ["table", ids], ["each"], domain=domain),
        helper.make_node("Cast", [mask], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ones", "last"], ["column"]),
        helper.make_node("Mul", ["each", "column"], ["counted"]),
        helper.make_node("ReduceSum", ["counted", "middle"], ["sum"], keepdims=0),
        helper.make_node("LpNormalization", ["sum"], [output], axis=1, p=2)
        if is_normal else helper.make_node("Identity", ["sum"], [output]),
    ]  # fmt: skip
    outputs = [(output, TensorProto.FLOAT, ("batch", int(table.shape[1])))]
    return saved(path, nodes, inputs, outputs, domain, table=table, last=[2], middle=[1])


def multiplying(path: Path, factor: float) -> Path:
    """Save a model that multiplies by ``factor``."""
    x, y = ((name, TensorProto.FLOAT, ("batch", 2)) for name in "xy")
    return saved(path, [helper.make_node("Mul", ["x", "factor"], ["y"])], [x], [y], factor=np.float32([factor]))


def code(path: Path, name: str) -> Path:
    """Save ``Preprocess`` code for a multiplying model; its answers say ``name``."""
    path.write_text(_CODE.format(name=name))
    return path


def answer(factor: float, name: str) -> dict[str, Any]:
    """Return the answer to ``BODY`` of a model with ``factor`` behind code called ``name``."""
    return {"y": [[factor, 2 * factor]], "code": name}


def counting_bundle(folder: Path, **config: Any) -> Path:
    """Write a text classification model with two labels: how often 'bad' and 'good' occur."""
    text_bundle(folder, **{"max_position_embeddings": 32, **config})
    worth = np.zeros((len(SPECIAL) + len(WORDS), 2), dtype=np.float32)
    worth[5, 0] = worth[4, 1] = 1
    summed(folder / "model.onnx", worth, "logits")
    return folder
