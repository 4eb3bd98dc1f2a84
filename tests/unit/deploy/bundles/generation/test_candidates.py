"""What quantisers are given, and the lines that serve what they make."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from deploy.bundles.generation.candidates import lay_out_weights, make_graph
from deploy.bundles.serving import Tuned
from deploy.tools.errors import ExportFailed


def test_a_transposed_weight_becomes_a_weight_and_one_with_another_use_stays():
    """A tied head: the embedding is still looked up, the head is multiplied by a weight of its own."""
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["hidden"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("Transpose", ["alone"], ["flipped"], perm=[1, 0]),
        helper.make_node("MatMul", ["hidden", "flipped"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "turned"], ["logits"]),
    ]
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(table[:2], "alone")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])], weights,
    )  # fmt: skip
    model = lay_out_weights(helper.make_model(graph))
    found = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    assert {"table", "table_turned", "alone_turned"} == set(found)
    np.testing.assert_array_equal(table.T, found["table_turned"])
    assert ["Gather", "MatMul", "MatMul"] == [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_gemm_becomes_a_product_and_a_sum(is_turned):
    """GPT-2's layers, which blocks of weights would pass by; one with a factor stays."""
    weight, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(is_turned)),
        helper.make_node("Gemm", ["y", "v", "b"], ["z"], alpha=2.0),
    ]
    weights = [
        numpy_helper.from_array(weight.T.copy() if is_turned else weight, "w"),
        numpy_helper.from_array(bias, "b"),
        numpy_helper.from_array(np.eye(3, dtype=np.float32), "v"),
    ]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", size]) for n, size in (("x", 2), ("z", 3))]
    before = helper.make_model(
        helper.make_graph(nodes, "g", shapes[:1], shapes[1:], weights), opset_imports=[helper.make_opsetid("", 17)]
    )
    given = {"x": np.array([[1.0, 2.0]], np.float32)}
    (true,) = ReferenceEvaluator(before).run(None, given)
    after = lay_out_weights(before)
    assert ["MatMul", "Add", "Gemm"] == [node.op_type for node in after.graph.node]
    np.testing.assert_array_equal(true, ReferenceEvaluator(after).run(None, given)[0])


def test_a_graph_that_cannot_be_made_leaves_nothing_behind(tmp_path):
    """With the reason."""
    with pytest.raises(ExportFailed, match="the int8-weights graph cannot be made"):
        make_graph("int8-weights", tmp_path / "nothing", tmp_path / "target")
    assert not list(tmp_path.iterdir())


def test_a_line_names_the_task_that_was_asked_for_and_no_batch_where_the_program_decides():
    """Text generation has no batches; the files of some models do not tell their task."""
    pairs = Tuned(2, 1, 0, task="text-generation").pairs()
    assert "gateway.task=text-generation" == pairs[0]
    assert not [pair for pair in pairs if pair.startswith("max_batch_size")]
    assert "parameters.threads=1" in pairs
    assert not [pair for pair in Tuned(1, 1, 8).pairs() if pair.startswith("gateway.")]
