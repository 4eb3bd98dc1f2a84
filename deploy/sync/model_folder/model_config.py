"""Builds config.pbtxt from what an endpoint declares, what its ONNX graph says and what the user adds.

Pure: values in, text out. Model sync calls it. The text comes from Triton's own protobuf message, so it always parses.
If two sources contradict each other, it raises a ``BadModel`` that says which one to remove.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.sync.errors import BadModel
from deploy.sync.model_folder.aux_config import is_numbered, parse_pairs, parse_pbtxt, unquote
from deploy.sync.model_folder.execution import MAX_ROWS, Execution
from deploy.sync.model_folder.layout import Engine, Kind
from deploy.sync.model_folder.native import finish_natively, run_natively
from deploy.sync.model_folder.onnx_signature import GraphTensor, OnnxSignature
from gateway.spec import EndpointSpec, TensorSpec

FORMAT = 4
"""Part of every recipe. Raise it when the same inputs give another config.pbtxt, so that models are written again."""

_log = logging.getLogger("triton_gateway.sync")

DEFAULT_MAX_BATCH = 64
_NOTHING: Mapping[str, str] = {}

_TYPES: Mapping[str, str] = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "float32": "FP32",
    "float64": "FP64", "half": "FP16", "float": "FP64", "double": "FP64", "int": "INT64", "long": "INT64",
    "str": "STRING", "string": "STRING", "bytes": "STRING", "object": "STRING", "bfloat16": "BF16",
    "bool_": "BOOL", "bytes_": "STRING", "str_": "STRING", "object_": "STRING",
}  # fmt: skip
_NATIVE: Mapping[Kind, tuple[str, str]] = {
    "onnx": ("backend", "onnxruntime"),
    "pytorch": ("backend", "pytorch"),
    "savedmodel": ("platform", "tensorflow_savedmodel"),
    "graphdef": ("platform", "tensorflow_graphdef"),
    "tensorrt": ("platform", "tensorrt_plan"),
    "openvino": ("backend", "openvino"),
    "python": ("backend", "python"),
}


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a CPU server runs one model: ``instances`` processes of ``threads`` threads each."""

    instances: int = 1
    threads: int = 1
    max_batch_size: int = DEFAULT_MAX_BATCH


@dataclass(slots=True)
class _Tensor:
    """A tensor being merged. ``dims`` is the full shape if ``is_full``, otherwise the shape without the batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    message: Any = field(default=None)


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
    pad_token_id: int = 0,
    tuning: Tuning | None = None,
    execution: Execution | None = None,
    judged: Mapping[str, str] = _NOTHING,
) -> str:
    """Return the text of config.pbtxt. Raises ``BadModel`` if the sources contradict each other.

    ``judged`` maps names of the model's files to their hashes; the embedded server's program compares them before it
    loads the files.
    """
    tuning = tuning or Tuning()
    if engine == "python" and kind not in ("onnx", "python"):
        raise BadModel(
            f"the embedded Triton runs ONNX models only, this one is {kind}",
            hint="export it to ONNX, or use a full Triton (--triton-grpc, or the NGC container)",
        )
    config, has_batch, user_max = _user_config(endpoint)
    if engine == "python" and kind == "python":
        _refuse_undeclared(endpoint, config)
    if execution is not None and execution.target == "gpu" and engine == "python":
        raise BadModel(
            "the bundle was made for a Triton with a GPU, the embedded Triton has none",
            hint="make one with `triton-gateway optimize --target cpu`, or use NVIDIA's container (--triton-grpc)",
        )
    runs_here = engine == "python" and kind == "onnx"
    inputs = _merge("input", endpoint.inputs, config.input)
    outputs = _merge("output", endpoint.outputs, config.output)
    batch = _decide_batch(config, has_batch, user_max, inputs, outputs, signature, tuning)
    if execution is not None and batch > MAX_ROWS:
        _log.warning("%s was judged in batches of up to %d rows: max_batch_size %d is lowered", name, MAX_ROWS, batch)
        batch = MAX_ROWS
        preferred = [size for size in config.dynamic_batching.preferred_batch_size if size <= MAX_ROWS]
        if config.WhichOneof("scheduling_choice") == "dynamic_batching":
            config.dynamic_batching.preferred_batch_size[:] = preferred
    if signature is not None:
        inputs = _with_graph("input", inputs, signature.inputs, batch > 0)
        outputs = _with_graph("output", outputs, signature.outputs, batch > 0)
    elif batch > 0 and not has_batch:
        for tensor in (*inputs, *outputs):
            tensor.dims = tensor.dims[1:]
    config.name = name
    config.max_batch_size = batch
    _write("input", config, inputs, signature.inputs if signature else (), batch > 0)
    _write("output", config, outputs, signature.outputs if signature else (), batch > 0)
    if execution is not None and not runs_here:
        run_natively(config, execution)
    _choose_backend(config, kind, runs_here=runs_here)
    if execution is not None and not runs_here:
        finish_natively(config)
    if batch > 0 and config.WhichOneof("scheduling_choice") is None and not runs_here:
        config.dynamic_batching.SetInParent()  # our program would run the joined requests one by one
    if runs_here:
        _tune_for_cpu(config, tuning)
        if execution is not None:
            _run_here(config, execution, pad_token_id)
        if judged:
            config.parameters["judged"].string_value = json.dumps(dict(sorted(judged.items())))
    return str(text_format.MessageToString(config))


def _refuse_undeclared(endpoint: EndpointSpec, config: Any) -> None:
    for side, declared, block in (
        ("input", endpoint.inputs, config.input), ("output", endpoint.outputs, config.output)
    ):  # fmt: skip
        if not declared and not block:
            raise BadModel(
                f"the model's program declares no {side}s, and the embedded Triton does not call its "
                "auto_complete_config",
                hint=f"declare them: --{side}-name, --{side}-type and --{side}-size, or {side} blocks of config.pbtxt",
            )


def build_generation_config(*, name: str, endpoint: EndpointSpec, tuning: Tuning | None = None) -> str:
    """Return the text of config.pbtxt for a model that ``runtime/generate_model.py`` runs.

    Its inputs are token ids and parameters, its output one response per token. The tensors that the endpoint declares
    for the graph itself do not matter.
    """
    tuning = tuning or Tuning()
    config, _, _ = _user_config(endpoint)
    del config.input[:], config.output[:]
    config.ClearField("platform")
    config.ClearField("default_model_filename")
    config.ClearField("dynamic_batching")
    config.name, config.backend, config.max_batch_size = name, "python", 0
    _fill(config.input.add(), "input_ids", "INT64", (-1,))
    _fill(config.input.add(), "parameters", "STRING", (1,))
    _fill(config.output.add(), "token_ids", "INT64", (-1,))
    _fill(config.output.add(), "finish_reason", "STRING", (1,))
    config.model_transaction_policy.decoupled = True
    if not config.instance_group:
        group = config.instance_group.add()
        group.kind, group.count = model_config_pb2.ModelInstanceGroup.KIND_CPU, 1
    if "threads" not in config.parameters:
        config.parameters["threads"].string_value = str(tuning.threads)
    return str(text_format.MessageToString(config))


def cpu_instances(config: str) -> int:
    """Return how many CPU instances a config.pbtxt sets; 0 if it leaves that to Triton."""
    groups = text_format.Parse(config, model_config_pb2.ModelConfig()).instance_group
    if any(g.kind != model_config_pb2.ModelInstanceGroup.KIND_CPU for g in groups):
        return 0
    return sum(max(1, g.count) for g in groups)


def _user_config(endpoint: EndpointSpec) -> tuple[Any, bool, bool]:
    """Return the user's message, whether it batches, and whether it sets anything about batching."""
    text, pairs = endpoint.auxiliary_pbtxt.strip(), endpoint.auxiliary_pairs
    if text:
        config = parse_pbtxt(text)
        says = re.search(r"(?m)^[^#\n]*\bmax_batch_size\s*:", text) is not None
    else:
        for side in ("input", "output"):
            if is_numbered(given := pairs.get(side, "")):  # input.0.format=… says more of the first declared input
                numbered = {unquote(str(number)): one for number, one in given.items()}
                for number, one in enumerate(getattr(endpoint, f"{side}s")):
                    declared = {"name": one.name, "data_type": f"TYPE_{_triton_type(one)}", "dims": list(one.shape)}
                    more = numbered.get(str(number), {})
                    numbered[str(number)] = declared | more if isinstance(more, dict) else more
                pairs = {**pairs, side: numbered}
        config = parse_pairs(pairs)
        says = "max_batch_size" in pairs
    config.ClearField("name")
    return config, config.max_batch_size > 0, says


def _triton_type(tensor: TensorSpec) -> str:
    name = tensor.dtype.strip().lower().removeprefix("np.").removeprefix("numpy.").removeprefix("type_")
    known: dict[str, str] = {v.lower(): v for v in _TYPES.values()}
    known.update(_TYPES)
    if name not in known:
        raise BadModel(f"type {tensor.dtype!r} of {tensor.name!r} is not a numpy type Triton knows",
                        hint=f"one of {', '.join(sorted(_TYPES))}")  # fmt: skip
    return known[name]


def _merge(side: str, declared: Sequence[TensorSpec], block: Any) -> list[_Tensor]:
    """Join the tensors declared on the command line and in config.pbtxt, by name. Two different declarations are a
    fault.
    """
    merged: dict[str, _Tensor] = {}
    for message in block:
        dtype = model_config_pb2.DataType.Name(message.data_type).removeprefix("TYPE_")
        if message.name in merged:
            raise BadModel(f"{side} {message.name!r} is declared twice in the auxiliary configuration; remove one")
        copied = type(message)()
        copied.CopyFrom(message)
        merged[message.name] = _Tensor(message.name, "" if dtype == "INVALID" else dtype, tuple(message.dims), copied)
    for spec in declared:
        dtype = _triton_type(spec)
        there = merged.get(spec.name)
        if there is None:
            merged[spec.name] = _Tensor(spec.name, dtype, spec.shape)
            continue
        same_shape = not there.dims or spec.shape in (there.dims, (-1, *there.dims), (1, *there.dims)) or (
            there.dims in ((-1, *spec.shape), (1, *spec.shape)))  # fmt: skip
        if (there.dtype and there.dtype != dtype) or not same_shape:
            raise BadModel(
                f"{side} {spec.name!r} is {dtype} {list(spec.shape)} on the command line and "
                f"{there.dtype} {list(there.dims)} in the auxiliary configuration: "
                f"remove --{side}-name {spec.name} from the command or its {side} block from config.pbtxt"
            )
        there.dtype = dtype
        there.dims = there.dims or spec.shape
    return list(merged.values())


def _decide_batch(config: Any, has_batch: bool, user_says: bool, inputs: Sequence[_Tensor],
                  outputs: Sequence[_Tensor], signature: OnnxSignature | None, tuning: Tuning) -> int:  # fmt: skip
    if config.WhichOneof("scheduling_choice") == "ensemble_scheduling":
        return int(config.max_batch_size)
    if signature is not None:
        tensors = (*signature.inputs, *signature.outputs)
        can_batch = all(t.dims and not isinstance(t.dims[0], int) for t in tensors) and any(
            len(t.dims) > 1 for t in signature.inputs
        )
        if has_batch and not can_batch:
            fixed = next((t for t in tensors if not t.dims or isinstance(t.dims[0], int)), tensors[0])
            raise BadModel(
                f"max_batch_size is set to {config.max_batch_size}, but the first dimension of {fixed.name!r} "
                f"is not dynamic ({_shown(fixed)})",
                hint="export the model with a dynamic batch dimension, or remove max_batch_size",
            )
        if user_says:
            return int(config.max_batch_size)
        return tuning.max_batch_size if can_batch else 0
    if user_says:
        return int(config.max_batch_size)
    # Without a graph to read, shapes mean what they mean in clearml-serving (whole shapes): batched if all start with
    # −1.
    tensors_declared = (*inputs, *outputs)
    is_dynamic = bool(tensors_declared) and all(len(t.dims) > 1 and t.dims[0] == -1 for t in tensors_declared)
    return tuning.max_batch_size if is_dynamic else 0


def _with_graph(
    side: str, declared: Sequence[_Tensor], graph: Sequence[GraphTensor], is_batched: bool
) -> list[_Tensor]:
    """Check the declared tensors against the graph and complete them. The result's dims leave out the batch."""
    by_name = {t.name: t for t in graph}
    unknown = [t.name for t in declared if t.name not in by_name]
    if unknown:
        raise BadModel(f"{side} {unknown[0]!r} is declared, but the model has {', '.join(by_name)}",
                        hint=f"correct --{side}-name (or the {side} block of config.pbtxt)")  # fmt: skip
    result: list[_Tensor] = []
    for tensor in declared:
        actual = by_name[tensor.name]
        tensor.dtype = tensor.dtype or actual.dtype
        if tensor.dtype != actual.dtype:
            raise BadModel(f"{side} {tensor.name!r} is declared {tensor.dtype}, the model has {actual.dtype}",
                            hint=f"correct --{side}-type (or data_type in config.pbtxt)")  # fmt: skip
        tensor.dims = _joined(side, tensor, actual, is_batched)
        result.append(tensor)
    if side == "output" and declared:
        return result  # a subset of the outputs may be declared, but all inputs are needed
    names = {t.name for t in result}
    for actual in graph:
        if actual.name not in names:
            dims = _sizes(actual)
            result.append(_Tensor(actual.name, actual.dtype, dims[1:] if is_batched else dims))
    return result


def _joined(side: str, tensor: _Tensor, actual: GraphTensor, is_batched: bool) -> tuple[int, ...]:
    sizes = _sizes(actual)
    if not tensor.dims and (tensor.message is not None or actual.is_scalar):
        return sizes[1:] if is_batched else sizes
    if len(tensor.dims) == len(sizes):
        given = tensor.dims
    elif len(tensor.dims) == len(sizes) - 1:
        given = (sizes[0], *tensor.dims)
    else:
        raise BadModel(
            f"{side} {tensor.name!r} is declared {list(tensor.dims)}, the model has {_shown(actual)}",
            hint=f"correct --{side}-size: the shape with or without its batch dimension",
        )
    for position, (mine, theirs) in enumerate(zip(given, sizes, strict=True)):
        if mine != theirs and -1 not in (mine, theirs) and not (position == 0 and is_batched):
            raise BadModel(
                f"{side} {tensor.name!r} is declared {list(tensor.dims)}, the model has {_shown(actual)}",
                hint=f"correct --{side}-size",
            )
    joined = tuple(t if m == -1 else m for m, t in zip(given, sizes, strict=True))
    return joined[1:] if is_batched else joined


def _write(side: str, config: Any, tensors: Sequence[_Tensor], graph: Sequence[GraphTensor], is_batched: bool) -> None:
    block = getattr(config, side)
    del block[:]
    full_rank = {t.name: len(t.dims) for t in graph}
    for tensor in tensors:
        message = block.add()
        if tensor.message is not None:
            message.CopyFrom(tensor.message)
        _fill(message, tensor.name, tensor.dtype, tensor.dims)
        if is_batched and full_rank.get(tensor.name) == 1 and not message.HasField("reshape"):
            # Triton has no tensors without dimensions: [rows] is sent as [rows, 1].
            del message.dims[:]
            message.dims.append(1)
            message.reshape.SetInParent()


def _fill(message: Any, name: str, dtype: str, dims: Sequence[int]) -> None:
    message.name = name
    try:
        message.data_type = model_config_pb2.DataType.Value(f"TYPE_{dtype}")
    except ValueError as error:
        raise BadModel(f"{name!r} has the type {dtype}, which Triton cannot carry") from error
    del message.dims[:]
    message.dims.extend(dims)


def _choose_backend(config: Any, kind: Kind, *, runs_here: bool) -> None:
    if runs_here:
        config.ClearField("platform")
        config.backend = "python"
    elif not config.platform and not config.backend and config.WhichOneof("scheduling_choice") != "ensemble_scheduling":
        if kind not in _NATIVE:
            raise BadModel(
                "cannot tell which Triton backend runs this model",
                hint="say it: --aux-config backend=NAME (or platform=…), or upload with --framework",
            )
        attribute, value = _NATIVE[kind]
        setattr(config, attribute, value)
    if kind not in ("python", "folder"):
        config.ClearField("default_model_filename")  # files are stored under the backend's own default name


def _tune_for_cpu(config: Any, tuning: Tuning) -> None:
    if not config.instance_group:
        group = config.instance_group.add()
        group.kind = model_config_pb2.ModelInstanceGroup.KIND_CPU
        group.count = tuning.instances
    if "threads" not in config.parameters:
        config.parameters["threads"].string_value = str(tuning.threads)


def _run_here(config: Any, execution: Execution, pad_token_id: int) -> None:
    """Pass engine and precision to our program. Values that the user sets with ``--aux-config parameters.…`` win."""
    wanted: dict[str, str] = {"engine": execution.engine, "precision": execution.precision}
    of_any_length = [t.name for t in config.input if list(t.dims) == [-1] and not t.HasField("reshape")]
    # Only a model with a mask can tell padding from content.
    if execution.pad_to > 1 and any("mask" in name.lower() for name in of_any_length):
        pads = {name: pad_token_id if _is_token_ids(name) else 0 for name in of_any_length}
        wanted |= {
            "pad_to": str(execution.pad_to), "max_length": str(execution.max_length),
            "pad_values": json.dumps(pads, sort_keys=True),
        }  # fmt: skip
    for name, value in wanted.items():
        if name not in config.parameters:
            config.parameters[name].string_value = value


def _is_token_ids(name: str) -> bool:
    lower = name.lower()
    return lower.endswith("ids") and not any(word in lower for word in ("type", "segment", "position"))


def _sizes(tensor: GraphTensor) -> tuple[int, ...]:
    if tensor.is_scalar:
        return (1,)
    return tuple(d if isinstance(d, int) else -1 for d in tensor.dims)


def _shown(tensor: GraphTensor) -> str:
    return f"{tensor.dtype} [{', '.join('?' if d is None else str(d) for d in tensor.dims)}]"
