"""Numbers arrive at the model as they were sent, or the request is refused: in every protocol, and after code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InputRefused
from gateway.handlers.tensors import TritonCall
from gateway.triton.port import ModelInfo, TensorInfo
from gateway.triton.tensors import from_lists

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = (*_INTEGERS, "bool", "float32", "float64")
_CHANGED = (
    ("uint8", 256), ("int8", 128), ("int16", 40000), ("uint64", -1), ("int32", 1.5), ("bool", "false"), ("bool", None),
    ("float32", None), ("int64", True), ("bool", 1), ("float64", "1"), ("int32", "7"), ("float32", 1e308),
    ("object", None), ("object", 5), ("object", True), ("int32", {"a": 1}),
)  # fmt: skip


async def test_a_value_that_the_input_cannot_hold_is_refused_in_every_form(stack: Any) -> None:
    """None reaches the model as another value."""
    (stack.folder / "plain.onnx").write_bytes(b"onnx")
    stack.registry.add_model("plain", stack.folder / "plain.onnx", name="plain")
    stack.registry.add_endpoint(
        "t", "plain", input_name=["x"], input_type=["uint8"], input_size=[[-1]], output_name=["y"],
        output_type=["uint8"], output_size=[[-1]],
    )  # fmt: skip
    stack.backend.add(stack.triton_name("t"), {"x": "uint8"}, {"y": "uint8"}, lambda inputs: {"y": inputs["x"]})
    await stack.served("t")
    tensor = {"name": "x", "datatype": "UINT8", "shape": [1, 1], "data": [[256]]}
    asked = (422, "/serve/t", {"x": [[256]]}), (400, "/v2/models/t/infer", {"inputs": [tensor]})
    for status, path, body in asked:
        reply = await stack.client.post(path, json=body)
        assert (status, True) == (reply.status_code, "input x" in reply.text), reply.text
    assert stack.backend.calls == []
    assert [[255]] == (await stack.client.post("/serve/t", json={"x": [[255]]})).json()["y"]


@pytest.mark.parametrize(("dtype", "value"), _CHANGED)
def test_a_changed_value_is_refused(dtype: str, value: Any) -> None:
    """Whatever type the input has."""
    with pytest.raises(InputRefused, match="input x"):
        from_lists("x", np.dtype(dtype), [[value]])


@given(st.sampled_from(_DTYPES), st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, width=32) | st.text(),
    lambda inner: st.lists(inner, max_size=3), max_leaves=6,
))  # fmt: skip
def test_what_becomes_an_array_is_what_was_sent(dtype: str, value: Any) -> None:
    """For every value and type: refused, or equal."""
    try:
        array = from_lists("x", np.dtype(dtype), value)
    except InputRefused:
        return
    assert array.dtype == dtype
    assert value == array.tolist() or np.allclose(value, array, rtol=1e-6)  # a large integer in a float input


@pytest.mark.parametrize(
    ("dtype", "made", "value"),
    [
        ("uint8", None, [[256]]), ("int8", "int64", [[128]]), ("uint64", None, [[-1]]), ("int16", "uint64", [[2**63]]),
        ("int32", None, [[1.5]]), ("int64", None, [["7"]]), ("int64", "object", [["7"]]), ("int64", "object", [[1.5]]),
        ("int8", "object", [[300]]), ("int64", "float64", [[1e30]]), ("int64", "float32", [["nan"]]),
    ],
)  # fmt: skip
def test_code_cannot_change_numbers_unseen(dtype: str, made: str | None, value: Any) -> None:
    """What ``preprocess`` returns for an integer input is refused if numpy would make another number of it."""
    with pytest.raises(InputRefused, match="input x cannot be made into"):
        call_of(dtype).tensors(np.array(value, dtype=made))


@pytest.mark.parametrize("made", [np.float64([3.0]), np.array([3], dtype=object), [3], np.uint64([3]), np.array([])])
def test_code_may_return_whole_numbers_of_any_type(made: Any) -> None:
    """As in ClearML: the values decide, not their type."""
    assert list(made) == call_of("int8").tensors(made)["x"].tolist()


def call_of(dtype: str) -> TritonCall:
    """Return calls of a model with one input."""
    return TritonCall(None, ModelInfo("m", (TensorInfo("x", dtype, (-1,)),), (), 0), ())  # type: ignore[arg-type]
