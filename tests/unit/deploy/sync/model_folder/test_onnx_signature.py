"""The reader agrees with the onnx package and refuses everything else."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from deploy.sync.model_folder.onnx_signature import GraphTensor, OnnxSignature, onnx_signature
from gateway.errors import SpecFault


def model():
    """Make a graph with a weight among its inputs."""
    weights = numpy_helper.from_array(np.zeros((4, 2), dtype=np.float32), "w")
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
                helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2]),
                helper.make_tensor_value_info("t", TensorProto.STRING, [None]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
            [weights],
        )
    )


def test_names_types_and_dimensions_are_read_and_weights_are_not_inputs(tmp_path):
    """Sizes, symbols and unnamed dimensions; an input that is also a weight has its value already."""
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    assert OnnxSignature(
        inputs=(GraphTensor("x", "FP32", ("batch", 4)), GraphTensor("t", "STRING", (None,))),
        outputs=(GraphTensor("y", "FP32", ("batch", 2)),),
    ) == onnx_signature(path)


def test_weights_stored_beside_the_model_are_listed(tmp_path):
    """Model sync must bring these files too."""
    path = tmp_path / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    assert ("m.onnx.data",) == onnx_signature(path).external_files


@pytest.mark.parametrize("content", [b"", b"not onnx", b"\x00" * 100, b"PK\x03\x04zip"])
def test_what_is_not_onnx_is_refused_by_name(tmp_path, content):
    """One line that names the file."""
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(SpecFault, match=r"m\.onnx is not a readable ONNX model"):
        onnx_signature(path)


@given(data=st.data())
def test_damaged_files_are_read_or_refused_never_worse(tmp_path_factory, data):
    """Cut short or with flipped bytes: no hang, no other exception."""
    content = bytearray(model().SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    with contextlib.suppress(SpecFault):
        onnx_signature(path)
