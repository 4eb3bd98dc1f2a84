"""Adds pooling of token vectors to an ONNX graph, and proves that the answers equal those pooled outside.

Most exported encoders answer one vector per token, and the gateway pools them, after tens of times as many bytes have
passed through Triton. Graphs of ``optimize`` already pool. Needs onnx and ONNX Runtime, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from deploy.bundles.sentences import SENTENCES
from deploy.sync.model_folder.onnx_signature import onnx_signature
from deploy.tools.errors import ExportFailed
from preprocessing.config import EMBEDDINGS, TaskConfig
from preprocessing.processor import TextProcessor

OUTPUT: Final = "sentence_embedding"
EQUAL: Final = 1e-5
"""Largest difference, relative to the largest number above 1."""
_MODES: Final = ("cls", "mean", "max")
_LEAST_OPSET: Final = 13
"""From this opset on, ReduceSum takes its axes as an input."""
_MAX_TAKES_AXES: Final = 18


def token_vectors(graph: Path, config: TaskConfig) -> str:
    """Return the output of ``graph`` that holds one vector per token and can be pooled inside it; empty if there is
    none.
    """
    if config.task != EMBEDDINGS or not config.pooling or not set(config.pooling) <= set(_MODES):
        return ""
    if config.padding_side != "right" or not config.pools_prompt:
        return ""
    signature = onnx_signature(graph)
    if not any(one.name == "attention_mask" for one in signature.inputs):
        return ""
    if any(len(one.dims) == 2 and "embedding" in one.name for one in signature.outputs):
        return ""  # it already answers with sentence vectors
    hidden = [one.name for one in signature.outputs if len(one.dims) == 3 and one.dtype == "FP32"]
    return next((name for name in hidden if name == "last_hidden_state"), hidden[0] if hidden else "")


def pool_inside(graph: Path, folder: Path, output: str, config: TaskConfig, target: Path) -> float:
    """Write ``graph`` to ``target`` with one output, the sentence vector; return the largest difference of its answers.

    ``folder`` holds the tokenizer. Weights outside the graph's file keep their names. Raises ``ExportFailed`` if the
    answers to texts alone and in padded batches differ.
    """
    import onnx

    model = onnx.load(str(graph), load_external_data=False)
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset < _LEAST_OPSET:
        raise ExportFailed(f"the graph is of opset {opset}", hint="export it again with opset 13 or newer")
    del model.graph.output[:]
    vectors = [_add(model.graph, output, mode, opset) for mode in config.pooling]
    helper = onnx.helper
    model.graph.node.append(helper.make_node("Concat", vectors, [OUTPUT], axis=1))
    size = config.embedding_size * len(config.pooling) if config.embedding_size else None
    shape = helper.make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, ["batch", size])
    model.graph.output.append(shape)
    onnx.save(model, str(target))
    worst = _difference(graph, target, output, TextProcessor.from_folder(folder))
    if not worst <= EQUAL:
        raise ExportFailed(
            f"with pooling inside the graph, its answers differ by {worst:.1e}", hint="no graph was made"
        )
    return worst


def _add(graph: Any, hidden: str, mode: str, opset: int) -> str:
    from onnx import TensorProto, helper

    def constant(name: str, values: Sequence[Any], kind: int = TensorProto.INT64, shape: Sequence[int] = (1,)) -> str:
        name = f"gateway_{mode}_{name}"
        graph.initializer.append(helper.make_tensor(name, kind, list(shape), list(values)))
        return name

    def node(kind: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        name = f"gateway_{mode}_{name}"
        graph.node.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    if mode == "cls":
        return node("Gather", [hidden, constant("first", [0], shape=())], "vector", axis=1)
    mask = node("Unsqueeze", ["attention_mask", constant("last", [2])], "mask")
    if mode == "max":
        is_word = node("Cast", [mask], "is_word", to=TensorProto.BOOL)
        least = constant("least", [float(np.finfo(np.float32).min)], TensorProto.FLOAT, ())
        words = node("Where", [is_word, hidden, least], "words")
        if opset >= _MAX_TAKES_AXES:
            return node("ReduceMax", [words, constant("tokens", [1])], "vector", keepdims=0)
        return node("ReduceMax", [words], "vector", axes=[1], keepdims=0)
    weights = node("Cast", [mask], "weights", to=TensorProto.FLOAT)
    tokens = constant("tokens", [1])
    total = node("ReduceSum", [node("Mul", [hidden, weights], "weighted"), tokens], "total", keepdims=0)
    count = node("ReduceSum", [weights, tokens], "count", keepdims=0)
    least = constant("least", [1e-9], TensorProto.FLOAT, ())
    return node("Div", [total, node("Max", [count, least], "at_least")], "vector")


def _difference(before: Path, after: Path, output: str, processor: TextProcessor) -> float:
    """Compare both graphs on texts alone, batches of unequal length, and the longest text that the model reads."""
    import onnxruntime as ort

    sessions = [ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in (before, after)]
    taken = {one.name for one in sessions[0].get_inputs()}
    long = " ".join(SENTENCES)
    batches: list[list[str]] = [[SENTENCES[0]], [SENTENCES[1], long], [*SENTENCES[:8], "a"], [long, "a b"]]
    worst = 0.0
    for texts in batches:
        prepared = processor.prepare({"text": texts})
        feeds: Mapping[str, Any] = processor.collate_rows(prepared.rows)
        feeds = {name: value for name, value in feeds.items() if name in taken}
        outside = np.asarray(processor.head.decode({output: sessions[0].run([output], feeds)[0]}, prepared))
        inside = np.asarray(processor.head.decode({OUTPUT: sessions[1].run([OUTPUT], feeds)[0]}, prepared))
        size = max(1.0, float(np.abs(outside).max()))
        worst = max(worst, float(np.abs(inside - outside).max()) / size)
    return worst
