"""``python -m tests.integration.demo_graph BUNDLE``: make ``deploy/laptop/demo/minilm.onnx`` from an export.

BUNDLE is what ``triton-gateway optimize`` made of the demo's packaged model with ``--candidate ort-fp32``. Each weight
of its graph becomes a reference into the package's weights file, so the graph is 43 KB instead of 90 MB.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from deploy.laptop.demo.minilm import GRAPH, WEIGHTS, packaged_model


def referring(exported: Path, weights: Path) -> onnx.ModelProto:
    """The exported graph, which refers to the weights in ``weights`` (safetensors) and turns them as PyTorch does."""
    model = onnx.load(exported)
    raw = weights.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    places = json.loads(raw[8 : 8 + size])
    known = {(v.shape, v.tobytes()): name for name, v in load_file(weights).items() if v.dtype == np.float32}
    turns, kept = [], {}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        name = known.get((value.shape, value.tobytes()))
        as_it_is = name is not None
        if name is None and value.ndim == 2:
            name = known.get((value.T.shape, value.T.tobytes()))
        if name is None:
            kept[tensor.name] = tensor
            continue
        begin, end = places[name]["data_offsets"]
        dims = value.shape if as_it_is else value.shape[::-1]
        outside = TensorProto(
            name=tensor.name if as_it_is else name, data_type=TensorProto.FLOAT, dims=dims,
            data_location=TensorProto.EXTERNAL,
        )  # fmt: skip
        for key, text in (("location", weights.name), ("offset", 8 + size + begin), ("length", end - begin)):
            outside.external_data.add(key=key, value=str(text))
        kept[outside.name] = outside
        if not as_it_is:
            turns.append(helper.make_node("Transpose", [name], [tensor.name], perm=[1, 0]))
    nodes = [*turns, *model.graph.node]
    for node in nodes:  # notes of the exporter: which line of Python, which module
        node.doc_string = ""
        del node.metadata_props[:]
    graph = model.graph
    for several in (graph.initializer, graph.node, graph.value_info, graph.metadata_props, model.metadata_props):
        del several[:]
    graph.initializer.extend(kept.values())
    graph.node.extend(nodes)
    for value in (*graph.input, *graph.output):
        del value.metadata_props[:]
    return model


if __name__ == "__main__":
    GRAPH.write_bytes(referring(Path(sys.argv[1]) / "model.onnx", packaged_model() / WEIGHTS).SerializeToString())
