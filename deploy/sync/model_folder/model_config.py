"""Builds config.pbtxt from what an endpoint declares, what its ONNX graph says and what the user adds.

Pure: values in, text out. Model sync calls it. The text comes from Triton's own protobuf message, so it always parses.
Of types and shapes the graph counts, then the user's own configuration, then the command line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.sync.errors import BadModel
from deploy.sync.model_folder.aux_config import is_numbered, parse_pairs, parse_pbtxt, unquote
from deploy.sync.model_folder.execution import MAX_ROWS, Execution, Tuning
from deploy.sync.model_folder.layout import Engine, Kind
from deploy.sync.model_folder.native import run_natively
from deploy.sync.model_folder.onnx_signature import GraphTensor, OnnxSignature
from gateway.spec import EndpointSpec, TensorSpec

FORMAT = 5
"""Part of every recipe. Raise it when the same inputs give another config.pbtxt, so that models are written again."""

_log = logging.getLogger("triton_gateway.sync")

_TYPES: Mapping[str, str] = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float32": "FP32",
    "float64": "FP64", "half": "FP16", "float": "FP64", "double": "FP64", "int": "INT64", "long": "INT64",
    "str": "STRING", "string": "STRING", "bytes": "STRING", "object": "STRING", "bfloat16": "BF16",
    "bool_": "BOOL", "bytes_": "STRING", "str_": "STRING", "object_": "STRING",
}  # fmt: skip
_DataType = model_config_pb2.DataType


def auxiliary_backend(endpoint: EndpointSpec) -> str:
    """Return the platform or backend that the user set with ``--aux-config``; empty if none."""
    if endpoint.auxiliary_pbtxt.strip():
        message = parse_pbtxt(endpoint.auxiliary_pbtxt)
        return str(message.platform or message.backend)
    pairs = endpoint.auxiliary_pairs
    return unquote(str(pairs.get("platform") or pairs.get("backend") or ""))


def build_config(
    *,
    name: str,
    endpoint: EndpointSpec,
    kind: Kind,
    engine: Engine,
    signature: OnnxSignature | None = None,
    tuning: Tuning | None = None,
    execution: Execution | None = None,
) -> str:
    """Return the text of config.pbtxt. Raises ``BadModel`` for a model or an option that Triton cannot use."""
    tuning = tuning or Tuning()
    if engine == "python" and kind not in ("onnx", "python"):
        raise BadModel(
            f"the embedded Triton runs ONNX models only, this one is {kind}",
            hint="export it to ONNX, or use a full Triton (--triton-grpc, or the NGC container)",
        )
    if execution is not None and execution.target == "gpu" and engine == "python":
        raise BadModel(
            "the bundle was made for a Triton with a GPU, the embedded Triton has none",
            hint="make one with `triton-gateway optimize --target cpu`, or use NVIDIA's container (--triton-grpc)",
        )
    runs_here = engine == "python" and kind == "onnx"
    config, user_says = _user_config(endpoint)
    sides: tuple[tuple[str, Any, Sequence[TensorSpec]], ...] = (
        ("input", config.input, endpoint.inputs), ("output", config.output, endpoint.outputs)
    )  # fmt: skip
    for side, blocks, declared in sides:
        _declare(blocks, declared)
        if engine == "python" and kind == "python" and not blocks:
            raise BadModel(
                f"the model's program declares no {side}s, and the embedded Triton does not call its "
                "auto_complete_config",
                hint=f"declare them: --{side}-name, --{side}-type and --{side}-size, or {side} blocks of config.pbtxt",
            )
    holds_batch = not config.max_batch_size
    batch = _decide_batch(config, user_says, signature, tuning)
    if execution is not None and batch > MAX_ROWS:
        _log.warning("%s was judged in batches of up to %d rows: max_batch_size %d is lowered", name, MAX_ROWS, batch)
        batch = MAX_ROWS
        preferred = [size for size in config.dynamic_batching.preferred_batch_size if size <= MAX_ROWS]
        if config.WhichOneof("scheduling_choice") == "dynamic_batching":
            config.dynamic_batching.preferred_batch_size[:] = preferred
    if signature is not None:
        _complete("input", config.input, signature.inputs, is_batched=batch > 0)
        _complete("output", config.output, signature.outputs, is_batched=batch > 0)
    elif batch > 0 and holds_batch:
        for block in (*config.input, *config.output):
            del block.dims[0]
    config.name = name
    config.max_batch_size = batch
    if execution is not None and not runs_here:
        run_natively(config, execution)
    _choose_backend(config, kind, runs_here=runs_here)
    if batch > 0 and config.WhichOneof("scheduling_choice") is None and not runs_here:
        config.dynamic_batching.SetInParent()  # our program would run the joined requests one by one
    if runs_here:
        _tune_for_cpu(config, tuning)
        if execution is not None:
            for parameter, value in (("engine", execution.engine), ("precision", execution.precision)):
                if parameter not in config.parameters:  # what the user sets with `--aux-config parameters.…` wins
                    config.parameters[parameter].string_value = value
    return str(text_format.MessageToString(config))


def build_generation_config(*, name: str, endpoint: EndpointSpec, tuning: Tuning | None = None) -> str:
    """Return the text of config.pbtxt for a model that ``runtime/generate_model.py`` runs.

    Its inputs are token ids and parameters, its output one response per token. The tensors that the endpoint declares
    for the graph itself do not matter.
    """
    tuning = tuning or Tuning()
    config, _ = _user_config(endpoint)
    del config.input[:], config.output[:]
    config.ClearField("platform")
    config.ClearField("default_model_filename")
    config.ClearField("dynamic_batching")
    config.name, config.backend, config.max_batch_size = name, "python", 0
    config.input.add(name="input_ids", data_type=_DataType.TYPE_INT64, dims=[-1])
    config.input.add(name="parameters", data_type=_DataType.TYPE_STRING, dims=[1])
    config.output.add(name="token_ids", data_type=_DataType.TYPE_INT64, dims=[-1])
    config.output.add(name="finish_reason", data_type=_DataType.TYPE_STRING, dims=[1])
    config.model_transaction_policy.decoupled = True
    _tune_for_cpu(config, replace(tuning, instances=1))
    return str(text_format.MessageToString(config))


def cpu_instances(config: str) -> int:
    """Return how many CPU instances a config.pbtxt sets; 0 if it leaves that to Triton."""
    groups = text_format.Parse(config, model_config_pb2.ModelConfig()).instance_group
    if any(g.kind != model_config_pb2.ModelInstanceGroup.KIND_CPU for g in groups):
        return 0
    return sum(max(1, g.count) for g in groups)


def _user_config(endpoint: EndpointSpec) -> tuple[Any, bool]:
    """Return the user's message, and whether it sets anything about batching."""
    text, pairs = endpoint.auxiliary_pbtxt.strip(), dict(endpoint.auxiliary_pairs)
    if text:
        config = parse_pbtxt(text)
        says = re.search(r"(?m)^[^#\n]*\bmax_batch_size\s*:", text) is not None
    else:
        for side, declared in (("input", endpoint.inputs), ("output", endpoint.outputs)):
            if is_numbered(given := pairs.get(side, "")):  # input.0.format=… says more of the first declared input
                numbered = {unquote(str(number)): one for number, one in given.items()}
                for number, one in enumerate(declared):
                    if isinstance(more := numbered.get(str(number)), dict):
                        numbered[str(number)] = {"name": one.name, **more}
                pairs[side] = numbered
        config = parse_pairs(pairs)
        says = "max_batch_size" in pairs
    config.ClearField("name")
    return config, says


def _type_of(tensor: TensorSpec) -> int:
    name = tensor.dtype.strip().lower().removeprefix("np.").removeprefix("numpy.").removeprefix("type_")
    known: dict[str, str] = {v.lower(): v for v in _TYPES.values()}
    known.update(_TYPES)
    if name not in known:
        raise BadModel(f"type {tensor.dtype!r} of {tensor.name!r} is not a numpy type Triton knows",
                        hint=f"one of {', '.join(sorted(_TYPES))}")  # fmt: skip
    return int(_DataType.Value(f"TYPE_{known[name]}"))


def _declare(blocks: Any, declared: Sequence[TensorSpec]) -> None:
    """Add the tensors of the command line to the user's blocks, by name. What a block says counts."""
    there = {block.name: block for block in blocks}
    for tensor in declared:
        block = there.get(tensor.name) or blocks.add(name=tensor.name)
        block.data_type = block.data_type or _type_of(tensor)
        block.dims.extend(() if block.dims else tensor.shape)


def _decide_batch(config: Any, user_says: bool, signature: OnnxSignature | None, tuning: Tuning) -> int:
    if config.WhichOneof("scheduling_choice") == "ensemble_scheduling":
        return int(config.max_batch_size)
    if signature is None:
        # Without a graph to read, shapes mean what they mean in clearml-serving (whole shapes): batched if all start
        # with −1.
        shapes = [block.dims for block in (*config.input, *config.output)]
        can_batch = bool(shapes) and all(len(dims) > 1 and dims[0] == -1 for dims in shapes)
    else:
        tensors = (*signature.inputs, *signature.outputs)
        fixed = [t for t in tensors if not t.dims or isinstance(t.dims[0], int)]
        can_batch = not fixed and any(len(t.dims) > 1 for t in signature.inputs)
        if config.max_batch_size > 0 and not can_batch:
            first = (*fixed, *tensors)[0]
            raise BadModel(
                f"max_batch_size is set to {config.max_batch_size}, but the first dimension of {first.name!r} "
                f"is not dynamic ({_shown(first)})",
                hint="export the model with a dynamic batch dimension, or remove max_batch_size",
            )
    if user_says:
        return int(config.max_batch_size)
    return tuning.max_batch_size if can_batch else 0


def _complete(side: str, blocks: Any, graph: Sequence[GraphTensor], *, is_batched: bool) -> None:
    """Write what the graph says of types and shapes, whatever was declared, and the tensors that are missing.

    The user may declare some of the outputs only, but the model needs all of its inputs.
    """
    by_name = {tensor.name: tensor for tensor in graph}
    if unknown := [block.name for block in blocks if block.name not in by_name]:
        raise BadModel(f"{side} {unknown[0]!r} is declared, but the model has {', '.join(by_name)}",
                        hint=f"correct --{side}-name (or the {side} block of config.pbtxt)")  # fmt: skip
    if side == "input" or not blocks:
        declared = {block.name for block in blocks}
        for tensor in graph:
            if tensor.name not in declared:
                blocks.add(name=tensor.name)
    for block in blocks:
        actual = by_name[block.name]
        if f"TYPE_{actual.dtype}" not in _DataType.DESCRIPTOR.values_by_name:
            raise BadModel(f"{block.name!r} has the type {actual.dtype}, which Triton cannot carry")
        block.data_type = _DataType.Value(f"TYPE_{actual.dtype}")
        if not actual.has_shape or block.HasField("reshape"):
            continue  # then only the user knows
        dims = [size if isinstance(size, int) else -1 for size in actual.dims][is_batched:]
        if is_batched and not dims:  # Triton has no tensors without dimensions: [rows] is sent as [rows, 1]
            block.reshape.SetInParent()
        block.dims[:] = dims or [1]


def _choose_backend(config: Any, kind: Kind, *, runs_here: bool) -> None:
    if runs_here:
        config.ClearField("platform")
        config.backend = "python"
    elif not config.platform and not config.backend and config.WhichOneof("scheduling_choice") != "ensemble_scheduling":
        if kind == "folder":
            raise BadModel(
                "cannot tell which Triton backend runs this model",
                hint="say it: --aux-config backend=NAME (or platform=…)",
            )
        config.backend = "onnxruntime" if kind == "onnx" else kind
    if kind not in ("python", "folder"):
        # Files are stored under the backend's own default name; OpenVINO has another one for ONNX.
        is_of_openvino = kind == "onnx" and config.backend == "openvino"
        config.default_model_filename = "model.onnx" if is_of_openvino else ""


def _tune_for_cpu(config: Any, tuning: Tuning) -> None:
    if not config.instance_group:
        group = config.instance_group.add()
        group.kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
        group.count = tuning.instances
    if "threads" not in config.parameters:
        config.parameters["threads"].string_value = str(tuning.threads)


def _shown(tensor: GraphTensor) -> str:
    return f"{tensor.dtype} [{', '.join('?' if d is None else str(d) for d in tensor.dims)}]"
