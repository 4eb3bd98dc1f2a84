"""Our python-backend program inside the real Triton: poisoned requests, outputs, declarations."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from gateway.errors import ModelNotReady, SpecFault
from gateway.spec import TensorSpec
from tests.integration.conftest import ask_triton
from tests.tiny import saved

pytestmark = pytest.mark.integration

# Requests wait for each other: they share a call because they must, not because the machine was fast.
TOGETHER = "dynamic_batching { preferred_batch_size: [%d] max_queue_delay_microseconds: 300000000 }"


@pytest.fixture
def infer(embedded_triton):
    """Call a model with named arrays; returns the outputs asked for, or all."""
    return functools.partial(ask_triton, embedded_triton.grpc)


def all_at_once(infer, name, rows, token_inputs):
    """Send every row as a request of its own, at the same time; returns outputs or exceptions, in order."""
    barrier = threading.Barrier(len(rows))

    def one(ids):
        barrier.wait()
        try:
            return infer(name, token_inputs(ids))
        except InferenceServerException as error:
            return error

    with ThreadPoolExecutor(len(rows)) as pool:
        return list(pool.map(one, rows))


def test_a_poisoned_request_fails_alone(embedded_triton, make_token_model, infer, token_inputs, tmp_path):
    """In one call with others, by a batcher of the user's own: they are answered, it gets ONNX Runtime's reason."""
    name = embedded_triton.serve(make_token_model(tmp_path / "model.onnx"), pbtxt=TOGETHER % 3)
    first, poisoned, last = all_at_once(infer, name, [[1, 2], [1, 99], [3, 4]], token_inputs)
    assert ([[3.0]], [[7.0]]) == (first["logits"].tolist(), last["logits"].tolist())
    assert "indices element out of data bounds, idx=99" in str(poisoned)


def test_pbtxt_and_command_line_declarations_are_merged_in_the_loaded_model(
    embedded_triton, make_token_model, infer, token_inputs, tmp_path
):
    """The real server accepts the merged config; one output is declared."""
    name = embedded_triton.serve(
        make_token_model(tmp_path / "model.onnx"),
        inputs=[TensorSpec("input_ids", "int64", (-1,))],
        outputs=[TensorSpec("logits", "float32", (-1, 1))],
        pbtxt='max_batch_size: 4\ninput { name: "attention_mask" data_type: TYPE_INT64 dims: [-1] }',
    )
    assert {"logits": [[6.0]]} == {k: v.tolist() for k, v in infer(name, token_inputs([1, 2, 3])).items()}


@pytest.mark.parametrize("declared", [False, True])
def test_tensors_without_dimensions_are_one_number(embedded_triton, infer, tmp_path, declared):
    """Triton has no such tensors: callers send and get [1]. For numbers and texts."""
    inputs = [("x", TensorProto.FLOAT, ("rows", 2)), ("scale", TensorProto.FLOAT, ()),
              ("name", TensorProto.STRING, ())]  # fmt: skip
    outputs = [("total", TensorProto.FLOAT, ()), ("said", TensorProto.STRING, ())]
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("ReduceSum", ["scaled"], ["total"], keepdims=0),
        helper.make_node("Identity", ["name"], ["said"]),
    ]
    saved(tmp_path / "model.onnx", nodes, inputs, outputs)
    name = embedded_triton.serve(
        tmp_path / "model.onnx",
        inputs=[TensorSpec("scale", "float32", ())] if declared else [],
        outputs=[TensorSpec("total", "float32", (1,)), TensorSpec("said", "object", ())] if declared else [],
    )
    feeds = {
        "x": np.array([[1, 2], [3, 4]], dtype=np.float32), "scale": np.array([0.5], dtype=np.float32),
        "name": np.array([b"good"], dtype=object),
    }  # fmt: skip
    answer = infer(name, feeds)
    assert ([5.0], [b"good"]) == (answer["total"].tolist(), answer["said"].tolist())


def test_weights_in_a_second_file_are_found(embedded_triton, make_token_model, infer, token_inputs, tmp_path):
    """External data lies beside the model in Triton's folder; without it the reason is told before the load."""
    model = onnx.load(make_token_model(tmp_path / "plain" / "model.onnx", rows=1000))
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(model, folder / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=1024)
    name = embedded_triton.serve(folder)
    assert [[3.0]] == infer(name, token_inputs([1, 2]))["logits"].tolist()
    (folder / "net.data").unlink()
    with pytest.raises(SpecFault, match=r"net\.data', which is not among the uploaded files"):
        embedded_triton.serve(folder)


def test_a_model_onnx_runtime_refuses_is_told_with_its_reason(embedded_triton, tmp_path):
    """Readable as a file, not loadable as a model: Triton's error carries ONNX Runtime's words."""
    x, y = ((name, TensorProto.FLOAT, ("batch", 3)) for name in "xy")
    saved(tmp_path / "model.onnx", [helper.make_node("NoSuchOperator", ["x"], ["y"])], [x], [y])
    with pytest.raises(ModelNotReady, match=r"ONNX Runtime cannot load the model: .*NoSuchOperator"):
        embedded_triton.serve(tmp_path / "model.onnx")
