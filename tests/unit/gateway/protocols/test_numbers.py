"""Numbers arrive at the model as they were sent, or the request is refused: in every protocol, and after code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InputRefused
from gateway.handlers.tensors import TritonCall
from gateway.triton.port import TensorInfo
from gateway.triton.tensors import TO_TRITON, from_lists

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = (*_INTEGERS, "bool", "float32", "float64")
_CHANGED = (
    ("uint8", 256), ("int8", 128), ("int16", 40000), ("uint64", -1), ("int32", 1.5), ("bool", "false"), ("bool", None),
    ("float32", None), ("int64", True), ("bool", 1), ("float64", "1"), ("int32", "7"), ("float32", 1e308),
    ("object", None), ("object", 5), ("object", True), ("int32", {"a": 1}),
)  # fmt: skip
_PREPROCESS = """
import numpy as np


class Preprocess:
    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        return np.array(body["x"], dtype=body.get("dtype"))
"""


async def _plain(stack: Any, dtype: str, source: str = "") -> None:
    (stack.folder / "plain.onnx").write_bytes(b"onnx")
    stack.registry.add_model("plain", stack.folder / "plain.onnx", name="plain")
    layout = {
        "input_name": ["x"], "input_type": [dtype], "input_size": [[-1]], "output_name": ["y"], "output_type": [dtype],
        "output_size": [[-1]],
    }  # fmt: skip
    if source:
        stack.add_hook("t", source, "plain", engine="triton", **layout)
    else:
        stack.registry.add_endpoint("t", "plain", **layout)
    stack.backend.add(stack.triton_name("t"), {"x": dtype}, {"y": dtype}, lambda inputs: {"y": inputs["x"]})
    await stack.served("t")


@pytest.mark.parametrize(("dtype", "value"), _CHANGED)
async def test_a_value_that_the_input_cannot_hold_is_refused_in_every_form(stack: Any, dtype: str, value: Any) -> None:
    """None of them reaches the model as another value."""
    await _plain(stack, dtype)
    datatype = "BYTES" if dtype == "object" else TO_TRITON[np.dtype(dtype)]
    tensor = {"name": "x", "datatype": datatype, "shape": [1, 1], "data": [[value]]}
    asked = (422, "/serve/t", {"x": [[value]]}), (400, "/v2/models/t/infer", {"inputs": [tensor]})
    for status, path, body in asked:
        reply = await stack.client.post(path, json=body)
        assert reply.status_code == status, (path, reply.text)
        assert "input x" in reply.text
    assert stack.backend.calls == []


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
async def test_code_cannot_change_numbers_unseen(stack: Any, dtype: str, made: str | None, value: Any) -> None:
    """What ``preprocess`` returns for an integer input is refused if numpy would make another number of it."""
    await _plain(stack, dtype, _PREPROCESS)
    reply = await stack.client.post("/serve/t", json={"x": value, "dtype": made})
    assert reply.status_code == 422, reply.text
    assert "input x cannot be made into" in reply.text
    assert stack.backend.calls == []


@pytest.mark.parametrize("made", [np.float64([3.0]), np.array([3], dtype=object), [3], np.uint64([3]), np.array([])])
def test_code_may_return_whole_numbers_of_any_type(made: Any) -> None:
    """As in ClearML: the values decide, not their type."""
    call = TritonCall(None, "m", (TensorInfo("x", "int8", (-1,)),), ())  # type: ignore[arg-type]
    assert list(made) == call.tensors(made)["x"].tolist()
