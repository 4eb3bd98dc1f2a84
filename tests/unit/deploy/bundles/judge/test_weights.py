"""Weights of a graph, recognised by their numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploy.bundles.judge import weights

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.normal(size=(12, 8)).astype(np.float32)
OTHER = RANDOM.normal(size=(12, 8)).astype(np.float32)
ORIGINAL = {"layer.weight": WEIGHT, "layer.other": OTHER, "layer.bias": np.zeros(64, np.float32)}


def graph(path, *tensors, nodes=()):
    """A graph that holds these tensors by name."""
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    onnx.save(helper.make_model(helper.make_graph(list(nodes), "g", [], [output], initializer=stored)), path)
    return path


def changed(array, index, value):
    """A copy with one number changed."""
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize("value", [WEIGHT, WEIGHT.T, np.ascontiguousarray(WEIGHT.T)])
def test_the_original_passes_whichever_way_it_lies(tmp_path, value):
    """Under any name; a tensor that no weight looks like is the exporter's own."""
    path = graph(tmp_path / "g", ("val_7", value), ("folded", WEIGHT * 3), ("mask", np.ones((8, 12), np.float32)))
    assert [] == weights.faults(ORIGINAL, path)


@pytest.mark.parametrize("turn", [lambda w: w, lambda w: w.T])
def test_one_wrong_number_is_found(tmp_path, turn):
    """And the weight it belongs to is named."""
    path = graph(tmp_path / "g", ("val_7", turn(changed(WEIGHT, (3, 4), 9.0))), ("val_8", OTHER))
    assert ["the weight layer.weight is not the original's: 1 of 96 numbers differ"] == weights.faults(ORIGINAL, path)


def test_a_row_of_zeros_is_found(tmp_path):
    """A token that no text of the gate has."""
    (fault,) = weights.faults(ORIGINAL, graph(tmp_path / "g", ("table", changed(WEIGHT, 11, 0.0))))
    assert "8 of 96 numbers differ" in fault


def test_a_folded_tensor_of_a_pruned_model_is_not_a_weight_that_is_wrong(tmp_path):
    """Most numbers are zero in both, which says nothing; one that is wrong among the others is found."""
    pruned = WEIGHT * (RANDOM.random(WEIGHT.shape) < 0.3)
    pruned[0, 0] = 0.7
    original = {"layer.weight": pruned, "layer.other": OTHER}
    assert [] == weights.faults(original, graph(tmp_path / "g", ("folded", pruned / np.float32(np.sqrt(8)))))
    (fault,) = weights.faults(original, graph(tmp_path / "h", ("val_7", changed(pruned, (0, 0), 0.8))))
    assert "1 of 96 numbers differ" in fault


def test_a_damaged_graph_is_a_fault(tmp_path):
    """Not an error of the gate's."""
    (tmp_path / "g").write_bytes(b"\xff" * 100)
    assert "the weights of the graph cannot be read" in weights.faults(ORIGINAL, tmp_path / "g")[0]
