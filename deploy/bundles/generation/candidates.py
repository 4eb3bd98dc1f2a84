"""The candidates for a causal language model: graphs for ONNX Runtime. ``CANDIDATES`` is the only list of them.

There is none for OpenVINO, because ``deploy/modelsync/runtime/generate_model.py`` runs ONNX Runtime only. Generating a
token reads every weight once, so memory bandwidth sets the speed, and 8 bits are a quarter of the bytes. A graph is a
folder, since large weights are in a file of their own.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from deploy.bundles.export.candidates import Candidate, without_weight_shapes
from deploy.bundles.export.original import quietly
from deploy.bundles.generation.original import GRAPH, MAX_INLINE, WEIGHTS
from deploy.modelsync.model_folder.execution import INT8
from deploy.tools.errors import ExportFailed

CANDIDATES: Final = (
    Candidate("ort-fp32", "onnxruntime", "fp32", "fp32", "ONNX Runtime, token by token"),
    Candidate("ort-int8-weights", "onnxruntime", "int8", "int8-weights",
              "ONNX Runtime, token by token, weights in int8 blocks of 32"),
    Candidate("ort-int8", "onnxruntime", "int8", "int8-dynamic",
              "ONNX Runtime, token by token, signed int8 per channel", INT8),
)  # fmt: skip

_BLOCK: Final = 32


def make_graph(kind: str, exported: Path, target: Path) -> None:
    """Write the graph of ``kind``, made from the folder ``exported``, to the folder ``target``.

    ``target`` appears when it is complete. Raises ``ExportFailed``.
    """
    aside = target.with_name(f".{target.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        with quietly():
            _MAKERS[kind](exported / GRAPH, aside)
        aside.rename(target)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportFailed(f"the {kind} graph cannot be made: {lines[0][:300]}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _weights(exported: Path, folder: Path) -> None:
    from onnxruntime.quantization import matmul_nbits_quantizer
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    matmul_nbits_quantizer.logger.setLevel(logging.ERROR)  # it logs every node, and sets its level when imported
    config = DefaultWeightOnlyQuantConfig(block_size=_BLOCK, is_symmetric=True, accuracy_level=4, bits=8)
    quantizer = MatMulNBitsQuantizer(_loaded(exported), algo_config=config)
    quantizer.process()
    _save(quantizer.model.model, folder)


def _dynamic(exported: Path, folder: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    cleaned = folder / "clean"
    cleaned.mkdir()
    _save(_loaded(exported), cleaned)
    quantize_dynamic(
        str(cleaned / GRAPH), str(folder / GRAPH), weight_type=QuantType.QInt8, per_channel=True,
        use_external_data_format=(cleaned / WEIGHTS).exists(),
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )  # fmt: skip
    shutil.rmtree(cleaned)


def _loaded(exported: Path) -> Any:
    """Return the exported model as quantisers can read it: weights of ``MatMul`` laid out as they are multiplied."""
    import onnx

    return lay_out_weights(without_weight_shapes(onnx.load(str(exported))))


def lay_out_weights(model: Any) -> Any:
    """Return ``model`` with every product by a weight as a ``MatMul`` by its own weight, which quantisers recognise.

    Quantisers skip everything that is not a weight. The exporter leaves a ``Transpose`` in front of large weights (for
    example a head tied to the embedding), quantisation in blocks handles only ``MatMul``, and GPT-2's layers are
    ``Gemm``.
    """
    from onnx import helper, numpy_helper

    graph = model.graph
    weights = {weight.name: weight for weight in graph.initializer}
    changed: dict[str, str] = {}

    def turned(name: str) -> str:
        """Return the name of the weight ``name`` with its axes exchanged."""
        if name not in changed:
            changed[name] = f"{name}_turned"
            value = numpy_helper.to_array(weights[name]).T.copy()
            graph.initializer.append(numpy_helper.from_array(value, changed[name]))
        return changed[name]

    made = {node.output[0]: node for node in graph.node}
    nodes = []
    for node in graph.node:
        if node.op_type == "Gemm" and node.input[1] in weights:
            given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if given.get("alpha", 1.0) == 1.0 and given.get("beta", 1.0) == 1.0 and not given.get("transA", 0):
                weight = turned(node.input[1]) if given.get("transB", 0) else node.input[1]
                product = f"{node.output[0]}_product" if len(node.input) > 2 else node.output[0]
                nodes.append(helper.make_node("MatMul", [node.input[0], weight], [product], name=node.name))
                if len(node.input) > 2:
                    nodes.append(helper.make_node("Add", [product, node.input[2]], [node.output[0]]))
                continue
        if node.op_type == "MatMul" and node.input[1] in made:
            source = made[node.input[1]]
            if source.op_type == "Transpose" and source.input[0] in weights and len(weights[source.input[0]].dims) == 2:
                node.input[1] = turned(source.input[0])
        nodes.append(node)
    used = {name for node in nodes for name in node.input} | {output.name for output in graph.output}
    del graph.node[:]
    graph.node.extend(node for node in nodes if node.op_type != "Transpose" or node.output[0] in used)
    used = {name for node in graph.node for name in node.input}
    for name in changed:
        if name not in used:
            graph.initializer.remove(weights[name])
    return without_weight_shapes(model)


def _save(model: Any, folder: Path) -> None:
    import onnx

    size = sum(len(weight.raw_data) for weight in model.graph.initializer)
    onnx.save(
        model, str(folder / GRAPH), save_as_external_data=size > MAX_INLINE, all_tensors_to_one_file=True,
        location=WEIGHTS,
    )  # fmt: skip


_MAKERS: Final[Mapping[str, Callable[[Path, Path], None]]] = {"int8-weights": _weights, "int8-dynamic": _dynamic}
