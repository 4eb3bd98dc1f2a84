"""Builds the ONNX graph of a BERT encoder node by node from its files, without PyTorch.

Pure: configuration and weights in, a model out. The graph computes what ``transformers`` computes in fp32, followed by
the pooling of sentence-transformers. ONNX Runtime fuses it like a graph exported by PyTorch. A test compares its
answers with PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from deploy.tools.errors import ExportFailed

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT: Final = "sentence_embedding"

_OPSET: Final = 17
"""The first opset with LayerNormalization; ONNX Runtime supports it since 1.12."""
_IR_VERSION: Final = 8
_KNOWN: Final[Mapping[str, Sequence[object]]] = {
    "model_type": ("bert",),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
}

Weights = Mapping[str, NDArray[Any]]


def build(config: Mapping[str, Any], weights: Weights) -> ModelProto:
    """Return the graph: ``INPUTS`` (int64, any batch × any length up to the model's) to ``OUTPUT`` (float32, batch ×
    hidden size), the mean of the tokens that are not masked, of length one.

    ``weights`` by their names in ``model.safetensors``. Raises ``ExportFailed`` for another architecture, and for
    weights that are missing or of another shape.
    """
    for name, known in _KNOWN.items():
        if config.get(name) not in known:
            raise ExportFailed(
                f"config.json has {name} {config.get(name)!r}, but this export supports only BERT with {known[0]!r}",
                hint='use `triton-gateway optimize` (pip install "triton-gateway[bundles]")',
            )
    return _Graph(config, weights).build()


class _Graph:
    """The nodes so far; each method adds some and returns the name of their output."""

    def __init__(self, config: Mapping[str, Any], weights: Weights) -> None:
        self._hidden = int(config["hidden_size"])
        self._heads = int(config["num_attention_heads"])
        self._inner = int(config["intermediate_size"])
        self._layers = int(config["num_hidden_layers"])
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))
        self._tables = {
            "word": int(config["vocab_size"]),
            "position": int(config["max_position_embeddings"]),
            "token_type": int(config["type_vocab_size"]),
        }
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def build(self) -> ModelProto:
        """Return the model."""
        mask = self._add("Cast", "attention_mask", to=TensorProto.FLOAT)
        hidden = self._embeddings()
        # masked tokens get the smallest float32, as in transformers
        kept = self._add("Unsqueeze", mask, self._constant("axes_of_heads", np.array([1, 2])))
        masked = self._add("Sub", self._constant("one", np.float32(1)), kept)
        bias = self._add("Mul", masked, self._constant("least", np.finfo(np.float32).min))
        for number in range(self._layers):
            hidden = self._layer(f"encoder.layer.{number}", hidden, bias)
        self._pooled(hidden, mask)
        graph = helper.make_graph(
            self._nodes, "encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in INPUTS],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", self._hidden])],
            self._constants,
        )  # fmt: skip
        opset = helper.make_operatorsetid("", _OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="triton-gateway")

    def _embeddings(self) -> str:
        tables = {
            kind: self._weight(f"embeddings.{kind}_embeddings.weight", (size, self._hidden))
            for kind, size in self._tables.items()
        }
        words = self._add("Gather", tables["word"], "input_ids")
        types = self._add("Gather", tables["token_type"], "token_type_ids")
        length = self._add("Shape", "input_ids", start=1, end=2)
        zero = self._constant("zero", np.array([0]))
        places = self._add("Slice", tables["position"], zero, length, zero)
        return self._normalised("embeddings.LayerNorm", self._add("Add", self._add("Add", words, types), places))

    def _layer(self, name: str, hidden: str, bias: str) -> str:
        """Add attention over all tokens and two dense layers, each with a residual connection."""
        size = self._hidden // self._heads
        split = self._constant("split", np.array([0, 0, self._heads, size]))
        parts = []
        for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
            dense = self._dense(f"{name}.attention.self.{part}", hidden, self._hidden, self._hidden)
            parts.append(self._add("Transpose", self._add("Reshape", dense, split), perm=order))
        query, key, value = parts
        scale = self._constant("scale", np.float32(size**-0.5))
        scores = self._add("Add", self._add("Mul", self._add("MatMul", query, key), scale), bias)
        read = self._add("MatMul", self._add("Softmax", scores, axis=-1), value)
        joined = self._constant("joined", np.array([0, 0, self._hidden]))
        read = self._add("Reshape", self._add("Transpose", read, perm=(0, 2, 1, 3)), joined)
        attended = self._dense(f"{name}.attention.output.dense", read, self._hidden, self._hidden)
        hidden = self._normalised(f"{name}.attention.output.LayerNorm", self._add("Add", attended, hidden))
        inner = self._gelu(self._dense(f"{name}.intermediate.dense", hidden, self._hidden, self._inner))
        outer = self._dense(f"{name}.output.dense", inner, self._inner, self._hidden)
        return self._normalised(f"{name}.output.LayerNorm", self._add("Add", outer, hidden))

    def _gelu(self, value: str) -> str:
        """x · ½ · (1 + erf(x / √2)), in the order in which ONNX Runtime recognises it."""
        root = self._constant("root_of_two", np.float32(np.sqrt(2)))
        share = self._add("Add", self._add("Erf", self._add("Div", value, root)), self._constant("one", np.float32(1)))
        return self._add("Mul", self._add("Mul", value, share), self._constant("half", np.float32(0.5)))

    def _pooled(self, hidden: str, mask: str) -> None:
        weights = self._add("Unsqueeze", mask, self._constant("axis_of_hidden", np.array([2])))
        over = self._constant("over_tokens", np.array([1]))
        total = self._add("ReduceSum", self._add("Mul", hidden, weights), over, keepdims=0)
        count = self._add("ReduceSum", weights, over, keepdims=0)
        mean = self._add("Div", total, self._add("Max", count, self._constant("tiny", np.float32(1e-9))))
        length = self._add(
            "Max", self._add("ReduceL2", mean, axes=[1]), self._constant("least_length", np.float32(1e-12))
        )
        self._nodes.append(helper.make_node("Div", [mean, length], [OUTPUT]))

    def _dense(self, name: str, value: str, given: int, made: int) -> str:
        weight = self._weight(f"{name}.weight", (made, given), is_turned=True)
        return self._add("Add", self._add("MatMul", value, weight), self._weight(f"{name}.bias", (made,)))

    def _normalised(self, name: str, value: str) -> str:
        parts = [self._weight(f"{name}.{part}", (self._hidden,)) for part in ("weight", "bias")]
        return self._add("LayerNormalization", value, *parts, axis=-1, epsilon=self._epsilon)

    def _weight(self, name: str, shape: tuple[int, ...], *, is_turned: bool = False) -> str:
        """Add a weight in fp32. ``is_turned``: transposed, because PyTorch stores weights as outputs × inputs."""
        value = self._weights.get(name, self._weights.get(f"bert.{name}"))
        if value is None or value.shape != shape:
            found = "is missing" if value is None else f"has shape {list(value.shape)}"
            raise ExportFailed(f"the weight {name} {found}; config.json requires shape {list(shape)}")
        value = value.astype(np.float32, copy=False)
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value.T if is_turned else value), name))
        return name

    def _constant(self, name: str, value: Any) -> str:
        if all(known.name != name for known in self._constants):
            self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output
