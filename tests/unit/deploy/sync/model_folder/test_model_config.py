"""config.pbtxt: the graph, then the user's configuration, then the command line; always what Triton parses."""

from __future__ import annotations

import json

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.sync.model_folder.execution import Tuning
from deploy.sync.model_folder.model_config import build_config, cpu_instances
from deploy.sync.model_folder.onnx_signature import GraphTensor, OnnxSignature
from gateway.errors import SpecFault
from gateway.spec import EndpointSpec, TensorSpec

IDS = GraphTensor("input_ids", "INT64", ("batch", "sequence"))
MASK = GraphTensor("attention_mask", "INT64", ("batch", "sequence"))
LOGITS = GraphTensor("logits", "FP32", ("batch", 2))
BERT = OnnxSignature((IDS, MASK), (LOGITS,))
FIXED = OnnxSignature((GraphTensor("x", "FP32", (1, 4)),), (GraphTensor("y", "FP32", (None, 2)),))
SCALAR = OnnxSignature((GraphTensor("x", "FP32", (4,)), GraphTensor("t", "FP32", ())), (GraphTensor("y", "FP32", ()),))
SHAPELESS = OnnxSignature((GraphTensor("x", "FP32", (4,)),), (GraphTensor("y", "FP32", (), has_shape=False),))
PYTORCH = {"kind": "pytorch", "engine": "native", "signature": None}
X, Y = TensorSpec("x", "float32", (-1, 784)), TensorSpec("y", "float32", (-1, 10))
DECLARED = TensorSpec("input_ids", "int64", (-1,))
MINE = """
    name: "mine"
    platform: "onnxruntime_onnx"
    max_batch_size: 4
    default_model_filename: "model.bin"
    instance_group [{ kind: KIND_CPU count: 3 }]
    dynamic_batching { max_queue_delay_microseconds: 500 }
    parameters { key: "threads" value { string_value: "5" } }
"""


def endpoint(*, inputs=(), outputs=(), pbtxt="", pairs=None):
    """Declare an endpoint as the CLI would."""
    return EndpointSpec("a/1", "a", "1", "triton", "m", inputs=tuple(inputs), outputs=tuple(outputs),
                        auxiliary_pbtxt=pbtxt, auxiliary_json=json.dumps(pairs) if pairs else "")  # fmt: skip


def build(*, signature=BERT, kind="onnx", engine="python", tuning=None, **declared):
    """Build and parse config.pbtxt."""
    text = build_config(
        name="a-1-x", endpoint=endpoint(**declared), kind=kind, engine=engine, signature=signature, tuning=tuning
    )
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def facts(config):
    """What a configuration says, without what it leaves to Triton."""
    found = {
        "name": config.name, "backend": config.backend, "platform": config.platform, "batch": config.max_batch_size,
        "file": config.default_model_filename, "joins": config.WhichOneof("scheduling_choice"),
        "delay": config.dynamic_batching.max_queue_delay_microseconds,
        "instances": [(g.count, g.kind) for g in config.instance_group],
        "parameters": {name: value.string_value for name, value in config.parameters.items()},
        "optional": [t.name for t in config.input if t.optional],
        "format": [t.format for t in config.input if t.format],
        "reshaped": [t.name for t in (*config.input, *config.output) if t.HasField("reshape")],
    }  # fmt: skip
    for side in ("input", "output"):
        found[side] = {
            t.name: (model_config_pb2.DataType.Name(t.data_type), list(t.dims)) for t in getattr(config, side)
        }
    return {name: value for name, value in found.items() if value}


ROWS = ("TYPE_INT64", [-1])
BOTH = {"input_ids": ROWS, "attention_mask": ROWS}
CASES = {
    "names, types and shapes are the graph's; its dynamic first dimension is Triton's batch; the embedded server's "
    "program needs threads and instances": (
        {"tuning": Tuning(instances=2, threads=3)},
        {"name": "a-1-x", "backend": "python", "batch": 64, "instances": [(2, 2)], "parameters": {"threads": "3"},
         "input": BOTH, "output": {"logits": ("TYPE_FP32", [2])}},
    ),
    "a full Triton has its own backend and instances, and may join the calls of several gateways": (
        {"engine": "native"},
        {"name": "a-1-x", "backend": "onnxruntime", "batch": 64, "joins": "dynamic_batching", "input": BOTH,
         "output": {"logits": ("TYPE_FP32", [2])}},
    ),
    "a fixed first dimension means no batching": (
        {"signature": FIXED}, {"batch": None, "joins": None, "input": {"x": ("TYPE_FP32", [1, 4])}},
    ),
    "one number per row gets a reshape": (
        {"signature": OnnxSignature((IDS, MASK), (GraphTensor("label", "INT64", ("batch",)),))},
        {"output": {"label": ("TYPE_INT64", [1])}, "reshaped": ["label"]},
    ),
    "Triton has no tensors without dimensions": (
        {"signature": SCALAR, "outputs": [TensorSpec("y", "float32", ())]},
        {"input": {"x": ("TYPE_FP32", [4]), "t": ("TYPE_FP32", [1])}, "output": {"y": ("TYPE_FP32", [1])},
         "reshaped": None},
    ),
    "of a shape that the graph does not state, the declared one counts": (
        {"signature": SHAPELESS, "outputs": [TensorSpec("y", "float32", (-1, 2))]},
        {"output": {"y": ("TYPE_FP32", [-1, 2])}},
    ),
    "without one, there is none": ({"signature": SHAPELESS}, {"output": {"y": ("TYPE_FP32", [])}}),
    **{
        f"a shape that was declared as {shape} is the graph's": (
            {"inputs": [TensorSpec("input_ids", kind, shape)]}, {"input": BOTH},
        )
        for kind, shape in (("int64", (-1, -1)), ("int64", (-1,)), ("int64", (8, -1)), ("int32", (1, 2, 3)))
    },
    "the user may choose among the outputs; the model needs all of its inputs": (
        {"inputs": [DECLARED], "outputs": [TensorSpec("logits", "float32", (2,))],
         "signature": OnnxSignature((IDS, MASK), (LOGITS, GraphTensor("hidden", "FP32", ("batch", "sequence", 8))))},
        {"input": BOTH, "output": {"logits": ("TYPE_FP32", [2])}},
    ),
    "command line and config.pbtxt are one declaration": (
        {"inputs": [DECLARED], "pbtxt": 'input { name: "input_ids" dims: [-1] optional: true } max_batch_size: 8'},
        {"batch": 8, "optional": ["input_ids"], "input": BOTH},
    ),
    "the user's own configuration counts for all but the name, which gateways compute": (
        {"pbtxt": MINE},
        {"name": "a-1-x", "backend": "python", "platform": None, "file": None, "batch": 4, "instances": [(3, 2)],
         "delay": 500, "parameters": {"threads": "5"}},
    ),
    "max_batch_size 0 is an answer, not an absence": (
        {"pbtxt": "max_batch_size: 0"}, {"batch": None, "output": {"logits": ("TYPE_FP32", [-1, 2])}},
    ),
    "what the CLI's own help shows, and refuses": (
        {"inputs": [TensorSpec("x", "float32", (3, 8, 8))], "pairs": {"input": {"0": {"format": "FORMAT_NCHW"}}},
         "signature": OnnxSignature((GraphTensor("x", "FP32", (None, 3, 8, 8)),), BERT.outputs)},
        {"format": [model_config_pb2.ModelInput.FORMAT_NCHW], "input": {"x": ("TYPE_FP32", [3, 8, 8])}},
    ),
    "without a graph shapes are whole, as in clearml-serving: batched if all start with -1": (
        {**PYTORCH, "inputs": [X], "outputs": [Y]},
        {"batch": 64, "input": {"x": ("TYPE_FP32", [784])}, "output": {"y": ("TYPE_FP32", [10])}},
    ),
    "and else not": (
        {**PYTORCH, "inputs": [TensorSpec("x", "float32", (1, 784))]},
        {"batch": None, "backend": "pytorch", "input": {"x": ("TYPE_FP32", [1, 784])}},
    ),
    "what config.pbtxt says of a tensor counts": (
        {**PYTORCH, "inputs": [X], "pbtxt": 'input { name: "x" data_type: TYPE_FP16 dims: [-1, 9] }'},
        {"input": {"x": ("TYPE_FP16", [9])}},
    ),
    "a folder of any backend": ({**PYTORCH, "kind": "folder", "pairs": {"backend": "fil"}}, {"backend": "fil"}),
    "a program of one's own declares its tensors": (
        {"kind": "python", "signature": None, "inputs": [X], "pbtxt": 'output { name: "z" dims: [ -1, 2 ] }'},
        {"backend": "python"},
    ),
    "a full Triton asks the program": (
        {"kind": "python", "signature": None, "engine": "native", "inputs": [X]}, {"backend": "python"},
    ),
}  # fmt: skip
"""What is so → how the model was declared, and facts of its configuration (None: not set)."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_written(case):
    """As Triton parses it."""
    declared, expected = CASES[case]
    found = facts(build(**declared))
    assert expected == {name: found.get(name) for name in expected}


REFUSED = {
    "input 'ids' is declared, but the model has input_ids, attention_mask": {
        "inputs": [TensorSpec("ids", "int64", (-1,))]},
    "type 'int65' of 'input_ids' is not a numpy type": {"inputs": [TensorSpec("input_ids", "int65", (-1,))]},
    r"the first dimension of 'x' is not dynamic \(FP32 \[1, 4\]\)": {
        "pairs": {"max_batch_size": 8}, "signature": FIXED},
    "the embedded Triton runs ONNX models only, this one is pytorch": {**PYTORCH, "engine": "python"},
    "cannot tell which Triton backend": {**PYTORCH, "kind": "folder"},
    "the model's program declares no inputs": {"kind": "python", "signature": None, "outputs": [Y]},
    "the model's program declares no outputs": {"kind": "python", "signature": None, "inputs": [X]},
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_triton_could_not_use_is_refused(said):
    """Before Triton refuses it less clearly, or at the first request of two rows."""
    with pytest.raises(SpecFault, match=said):
        build(**REFUSED[said])


def test_instances_are_counted():
    """Those that a configuration of ours sets; 0 where Triton decides."""
    on_gpu = "instance_group [{ kind: KIND_GPU count: 2 }]"
    for count, declared in ((2, {"tuning": Tuning(instances=2)}), (0, {"engine": "native"}), (0, {"pbtxt": on_gpu})):
        assert count == cpu_instances(text_format.MessageToString(build(**declared)))
