"""The reader agrees with the onnx package and refuses everything else."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from deploy.sync.model_folder.onnx_signature import GraphTensor, OnnxSignature, onnx_signature
from gateway.errors import SpecFault
from tests import tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A graph with a weight among its inputs; in ``e.onnx`` the weight lies beside the graph."""
    file, kinds = tmp_path_factory.mktemp("onnx") / "m.onnx", (TensorProto.FLOAT, TensorProto.STRING)
    inputs = [("x", kinds[0], ["batch", 4]), ("w", kinds[0], [4, 2]), ("t", kinds[1], [None])]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    tiny.saved(file, [node], inputs, [("y", kinds[0], ["batch", 2])], w=np.zeros((4, 2), np.float32))
    onnx.save(onnx.load(file), file.with_name("e.onnx"), save_as_external_data=True, location="w", size_threshold=0)
    return file


def test_names_types_and_dimensions_are_read_and_weights_are_not_inputs(path):
    """Sizes, symbols and unnamed dimensions; an input that is also a weight has its value already.

    Weights stored beside the model are listed: model sync must bring these files, too.
    """
    inputs = GraphTensor("x", "FP32", ("batch", 4)), GraphTensor("t", "STRING", (None,))
    assert OnnxSignature(inputs, (GraphTensor("y", "FP32", ("batch", 2)),)) == onnx_signature(path)
    assert ("w",) == onnx_signature(path.with_name("e.onnx")).external_files


@pytest.mark.parametrize("content", [b"", b"not onnx", b"\x00" * 100, b"PK\x03\x04zip"])
def test_what_is_not_onnx_is_refused_by_name(tmp_path, content):
    """One line that names the file."""
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(SpecFault, match=r"m\.onnx is not a readable ONNX model"):
        onnx_signature(tmp_path / "m.onnx")


@given(data=st.data())
def test_damaged_files_are_read_or_refused_never_worse(path, data):
    """Cut short or with flipped bytes: no hang, no other exception."""
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = path.with_name("d.onnx")
    damaged.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    with contextlib.suppress(SpecFault):
        onnx_signature(damaged)
