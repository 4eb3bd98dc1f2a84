"""config.pbtxt: every source stated once, conflicts named, the result always what Triton parses."""

from __future__ import annotations

import json

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.sync.model_folder.model_config import Tuning, build_config, cpu_instances
from deploy.sync.model_folder.onnx_signature import GraphTensor, OnnxSignature
from gateway.errors import SpecFault
from gateway.spec import EndpointSpec, TensorSpec

BERT = OnnxSignature(
    inputs=(
        GraphTensor("input_ids", "INT64", ("batch", "sequence")),
        GraphTensor("attention_mask", "INT64", ("batch", "sequence")),
    ),
    outputs=(GraphTensor("logits", "FP32", ("batch", 2)),),
)


def endpoint(*, inputs=(), outputs=(), pbtxt="", pairs=None):
    """Declare an endpoint as the CLI would."""
    return EndpointSpec(
        url="a/1",
        endpoint="a",
        version="1",
        engine="triton",
        model_id="m",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        auxiliary_pbtxt=pbtxt,
        auxiliary_json=json.dumps(pairs) if pairs else "",
    )


def build(spec=None, *, signature=BERT, kind="onnx", engine="python", **more):
    """Build and parse config.pbtxt."""
    text = build_config(
        name="a-1-x", endpoint=spec or endpoint(), kind=kind, engine=engine, signature=signature, **more
    )
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def shapes(block):
    """Type and shape of each tensor by name."""
    return {t.name: (model_config_pb2.DataType.Name(t.data_type), list(t.dims)) for t in block}


def test_a_tensor_without_dimensions_has_one_in_triton():
    """Triton refuses dims [], and an empty reshape of a model without batches. An unknown shape is none."""
    scalar = OnnxSignature(
        (GraphTensor("x", "FP32", (4,)), GraphTensor("t", "FP32", ())), (GraphTensor("y", "FP32", ()),)
    )
    for declared in ([], [TensorSpec("y", "float32", ())], [TensorSpec("y", "float32", (1,))]):
        for engine in ("python", "native"):
            config = build(endpoint(outputs=declared), signature=scalar, engine=engine)
            assert {"x": ("TYPE_FP32", [4]), "t": ("TYPE_FP32", [1])} == shapes(config.input)
            assert {"y": ("TYPE_FP32", [1])} == shapes(config.output)
            assert not any(tensor.HasField("reshape") for tensor in (*config.input, *config.output))
    with pytest.raises(SpecFault, match=r"declared \[2\]"):
        build(endpoint(outputs=[TensorSpec("y", "float32", (2,))]), signature=scalar)
    unknown = OnnxSignature((GraphTensor("x", "FP32", (4,)),), (GraphTensor("y", "FP32", (), has_shape=False),))
    assert {"y": ("TYPE_FP32", [])} == shapes(build(signature=unknown).output)
    declared = build(endpoint(outputs=[TensorSpec("y", "float32", (-1, 2))]), signature=unknown)
    assert {"y": ("TYPE_FP32", [-1, 2])} == shapes(declared.output)


def test_an_undeclared_onnx_model_is_described_by_its_graph():
    """Names, types and shapes come from the file; the dynamic first dimension becomes Triton's batch."""
    config = build()
    assert {"input_ids": ("TYPE_INT64", [-1]), "attention_mask": ("TYPE_INT64", [-1])} == shapes(config.input)
    assert {"logits": ("TYPE_FP32", [2])} == shapes(config.output)
    assert ("a-1-x", 64, None) == (config.name, config.max_batch_size, config.WhichOneof("scheduling_choice"))


def test_the_embedded_server_gets_threads_and_cpu_instances():
    """What our python-backend program needs is in its config."""
    config = build(tuning=Tuning(instances=2, threads=3))
    assert ("python", "3") == (config.backend, config.parameters["threads"].string_value)
    assert [(2, model_config_pb2.ModelInstanceGroup.KIND_CPU)] == [(g.count, g.kind) for g in config.instance_group]
    assert 2 == cpu_instances(text_format.MessageToString(config))


def test_a_full_triton_gets_its_onnxruntime_backend():
    """No python program, instances left to Triton; it may join calls of several gateways."""
    config = build(engine="native")
    assert ("onnxruntime", 0) == (config.backend, len(config.instance_group))
    assert "dynamic_batching" == config.WhichOneof("scheduling_choice")


def test_another_framework_on_the_embedded_server_is_refused_with_the_way_out():
    """The wheel's server runs ONNX only, and says so before anything is loaded."""
    with pytest.raises(SpecFault, match="the embedded Triton runs ONNX models only, this one is pytorch"):
        build(kind="pytorch", signature=None)


def test_a_fixed_first_dimension_means_no_batching():
    """A graph exported for one row is served as it is, its whole shape declared."""
    fixed = OnnxSignature((GraphTensor("x", "FP32", (1, 4)),), (GraphTensor("y", "FP32", (1, 2)),))
    config = build(signature=fixed)
    assert (0, {"x": ("TYPE_FP32", [1, 4])}, None) == (
        config.max_batch_size,
        shapes(config.input),
        config.WhichOneof("scheduling_choice"),
    )


def test_an_output_of_one_number_per_row_gets_a_reshape():
    """Triton knows no tensor without dimensions behind the batch."""
    graph = OnnxSignature(BERT.inputs, (GraphTensor("label", "INT64", ("batch",)),))
    output = build(signature=graph).output[0]
    assert ([1], True, []) == (list(output.dims), output.HasField("reshape"), list(output.reshape.shape))


@pytest.mark.parametrize("shape", [(-1, -1), (-1,), (1, -1), (8, -1)])
def test_a_declared_shape_may_hold_the_batch_dimension_or_not(shape):
    """clearml-serving's users write both; the graph tells which it is."""
    config = build(endpoint(inputs=[TensorSpec("input_ids", "int64", shape)]))
    assert ("TYPE_INT64", [-1]) == shapes(config.input)["input_ids"]


def test_inputs_the_user_forgot_are_added_from_the_graph():
    """A model needs all of its inputs, whoever declares them; outputs may be a choice."""
    graph = OnnxSignature(BERT.inputs, (*BERT.outputs, GraphTensor("hidden", "FP32", ("batch", "sequence", 8))))
    config = build(
        endpoint(inputs=[TensorSpec("input_ids", "int64", (-1,))], outputs=[TensorSpec("logits", "float32", (2,))]),
        signature=graph,
    )
    assert (["input_ids", "attention_mask"], ["logits"]) == (
        [t.name for t in config.input],
        [t.name for t in config.output],
    )


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorSpec("ids", "int64", (-1,)), "input 'ids' is declared, but the model has input_ids, attention_mask"),
        (TensorSpec("input_ids", "int32", (-1,)), "is declared INT32, the model has INT64"),
        (
            TensorSpec("input_ids", "int64", (1, 2, 3)),
            r"is declared \[1, 2, 3\], the model has INT64 \[batch, sequence\]",
        ),
        (TensorSpec("input_ids", "int65", (-1,)), "type 'int65' of 'input_ids' is not a numpy type"),
    ],
)
def test_a_declaration_that_contradicts_the_graph_is_refused(tensor, message):
    """Before Triton refuses it less clearly."""
    with pytest.raises(SpecFault, match=message):
        build(endpoint(inputs=[tensor]))


def test_command_line_and_pbtxt_are_merged_by_tensor_name():
    """Equal twice is once; what only one of them has is kept, with every field the pbtxt sets."""
    spec = endpoint(
        inputs=[TensorSpec("input_ids", "int64", (-1,))],
        pbtxt='input [{ name: "input_ids" data_type: TYPE_INT64 dims: [-1] optional: true }]\n'
        'input [{ name: "attention_mask" data_type: TYPE_INT64 dims: [-1] }]\nmax_batch_size: 8',
    )
    config = build(spec)
    assert ([("input_ids", True), ("attention_mask", False)], 8) == (
        [(t.name, t.optional) for t in config.input],
        config.max_batch_size,
    )


def test_command_line_and_pbtxt_in_conflict_say_which_to_remove():
    """Never one of them in silence."""
    spec = endpoint(
        inputs=[TensorSpec("input_ids", "int64", (-1,))],
        pbtxt='input { name: "input_ids" data_type: TYPE_FP32 dims: 4 }',
    )
    with pytest.raises(SpecFault, match="remove --input-name input_ids from the command or its input block"):
        build(spec)


def test_the_users_pbtxt_wins_for_everything_but_the_name():
    """Instances, batching, parameters: theirs; the name is ours, because gateways compute it."""
    config = build(
        endpoint(
            pbtxt="""
        name: "mine"
        platform: "onnxruntime_onnx"
        max_batch_size: 4
        default_model_filename: "model.bin"
        instance_group [{ kind: KIND_CPU count: 3 }]
        dynamic_batching { max_queue_delay_microseconds: 500 }
        parameters { key: "threads" value { string_value: "5" } }
    """
        )
    )
    assert ("a-1-x", 4, 3, 500, "5") == (
        config.name,
        config.max_batch_size,
        config.instance_group[0].count,
        config.dynamic_batching.max_queue_delay_microseconds,
        config.parameters["threads"].string_value,
    )
    assert ("python", "", "") == (config.backend, config.platform, config.default_model_filename)


def test_a_user_can_switch_batching_off():
    """``max_batch_size: 0`` is an answer, not an absence."""
    config = build(endpoint(pbtxt="max_batch_size: 0"))
    assert (0, [-1, -1]) == (config.max_batch_size, list(config.input[0].dims))


def test_batching_a_graph_without_a_batch_dimension_is_refused():
    """It would fail at the first request of two rows."""
    fixed = OnnxSignature((GraphTensor("x", "FP32", (1, 4)),), (GraphTensor("y", "FP32", (None, 2)),))
    with pytest.raises(SpecFault, match=r"the first dimension of 'x' is not dynamic \(FP32 \[1, 4\]\)"):
        build(endpoint(pairs={"max_batch_size": 8}), signature=fixed)


def test_the_cli_helps_own_example_works():
    """``--aux-config input.0.format=FORMAT_NCHW``, which clearml-serving's CLI shows and refuses."""
    graph = OnnxSignature((GraphTensor("x", "FP32", (None, 3, 8, 8)),), (GraphTensor("y", "FP32", (None, 2)),))
    config = build(
        endpoint(inputs=[TensorSpec("x", "float32", (3, 8, 8))], pairs={"input": {"0": {"format": "FORMAT_NCHW"}}}),
        signature=graph,
    )
    assert ("x", model_config_pb2.ModelInput.FORMAT_NCHW, [3, 8, 8]) == (
        config.input[0].name,
        config.input[0].format,
        list(config.input[0].dims),
    )


def test_other_frameworks_keep_clearml_servings_meaning_of_shapes():
    """Whole shapes, batched when all start with −1; ``max_batch_size`` says otherwise."""
    spec = {"inputs": [TensorSpec("x", "float32", (-1, 784))], "outputs": [TensorSpec("y", "float32", (-1, 10))]}
    config = build(endpoint(**spec), kind="pytorch", engine="native", signature=None)
    assert (64, [784], [10]) == (config.max_batch_size, list(config.input[0].dims), list(config.output[0].dims))
    fixed = build(
        endpoint(inputs=[TensorSpec("x", "float32", (1, 784))]), kind="pytorch", engine="native", signature=None
    )
    assert (0, [1, 784]) == (fixed.max_batch_size, list(fixed.input[0].dims))


def test_an_unknown_kind_asks_for_the_backend():
    """A folder of anything cannot be guessed."""
    with pytest.raises(SpecFault, match="cannot tell which Triton backend"):
        build(kind="folder", engine="native", signature=None)
    assert "fil" == build(endpoint(pairs={"backend": "fil"}), kind="folder", engine="native", signature=None).backend


@pytest.mark.parametrize("missing", ["inputs", "outputs"])
def test_a_program_of_ones_own_declares_its_tensors_where_the_embedded_server_does_not_ask_it(missing):
    """A full Triton asks the program (``auto_complete_config``); a block of config.pbtxt is a declaration too."""
    tensors = {"inputs": [TensorSpec("x", "float32", (-1, 4))], "outputs": [TensorSpec("y", "float32", (-1, 2))]}
    declared = {side: given for side, given in tensors.items() if side != missing}
    with pytest.raises(SpecFault, match=f"the model's program declares no {missing}") as refused:
        build(endpoint(**declared), kind="python", signature=None)
    assert f"--{missing.removesuffix('s')}-name" in refused.value.hint
    block = f'{missing.removesuffix("s")} {{ name: "z" data_type: TYPE_FP32 dims: [ -1, 2 ] }}'
    assert "python" == build(endpoint(**declared, pbtxt=block), kind="python", signature=None).backend
    assert "python" == build(endpoint(**tensors), kind="python", signature=None).backend
    assert "python" == build(endpoint(**declared), kind="python", engine="native", signature=None).backend
