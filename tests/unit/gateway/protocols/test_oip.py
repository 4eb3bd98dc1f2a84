"""The Open Inference Protocol: one or several texts, as JSON or binary data, give the same tensors."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.protocols.oip import InferCall
from gateway.protocols.tensors import DTYPES, read_request
from gateway.triton.tensors import unpack_bytes
from tests.unit.gateway.protocols.test_tei import serve_all


@pytest.fixture
async def served(stack: Any) -> Any:
    """A classifier, an embedder, a re-ranker and an encoder."""
    return await serve_all(stack)


async def _asked(served: Any, name: str, texts: list[str], **more: Any) -> dict[str, list[Any]]:
    """Return the answer's tensors as nested lists."""
    text = {"name": "text", "datatype": "BYTES", "shape": [len(texts), 1], "data": texts}
    reply = await served.client.post(f"/v2/models/{name}/infer", json={"inputs": [text], **more})
    assert 200 == reply.status_code, reply.text
    size = int(reply.headers.get("inference-header-content-length", len(reply.content)))
    found, tail = {}, reply.content[size:]
    for tensor in json.loads(reply.content[:size])["outputs"]:
        datatype, shape = tensor["datatype"], tensor["shape"]
        if "data" in tensor:
            array = np.array(tensor["data"], DTYPES[datatype])
        else:
            data, tail = np.split(np.frombuffer(tail, np.uint8), [tensor["parameters"]["binary_data_size"]])
            own, tail = data.tobytes(), tail.tobytes()
            array = unpack_bytes(own) if datatype == "BYTES" else np.frombuffer(own, DTYPES[datatype])
            array = np.array([i.decode() for i in array], object) if datatype == "BYTES" else array
        found[tensor["name"]] = array.reshape(shape).tolist()
    assert b"" == tail
    return found


@pytest.mark.parametrize("name", ["labels", "vectors", "tokens"])
async def test_a_single_text_is_answered_as_in_a_batch(served: Any, name: str) -> None:
    """Each tensor's row is the same, and so is the shape except for the number of rows."""
    one, other = await _asked(served, name, ["good film"]), await _asked(served, name, ["bad"])
    both = await _asked(served, name, ["good film", "bad"])
    assert one.keys() == both.keys()
    assert {tensor: one[tensor] + other[tensor] for tensor in one} == both


@pytest.mark.parametrize("texts", [["good film"], ["good film", "bad"]])
@pytest.mark.parametrize("name", ["labels", "vectors"])
async def test_binary_outputs_equal_json_outputs(served: Any, name: str, texts: list[str]) -> None:
    """For all outputs or the requested ones. Numbers are FP32."""
    plain = await _asked(served, name, texts)
    assert plain == await _asked(served, name, texts, parameters={"binary_data_output": True})
    for tensor in plain:
        asked = [{"name": tensor, "parameters": {"binary_data": True}}]
        assert {tensor: plain[tensor]} == await _asked(served, name, texts, outputs=asked)
    last = list(plain)[-1]
    rest = [{"name": tensor, "parameters": {"binary_data": tensor != last}} for tensor in plain]
    assert plain == await _asked(served, name, texts, outputs=rest, parameters={"binary_data_output": True})


async def test_probabilities_cover_all_labels_even_if_few_are_requested(served: Any) -> None:
    """In JSON they are the same numbers, to FP32's last digit."""
    every = await _asked(served, "labels", ["good", "bad"])
    best = await _asked(served, "labels", ["good", "bad"], parameters={"top_k": 1})
    assert np.allclose(every["probabilities"], best["probabilities"], rtol=1e-6)
    assert every["label"] == best["label"]


@pytest.mark.parametrize("shape", [[1], [1, 1], [1, 1, 1], [2], [True], [1.0, 1], [-1], "1", None, [1, -1]])
async def test_shapes_of_texts_that_are_accepted(served: Any, shape: Any) -> None:
    """``[n]`` or ``[n, 1]``, of whole numbers."""
    text = {"name": "text", "datatype": "BYTES", "shape": shape, "data": ["good"]}
    reply = await served.client.post("/v2/models/labels/infer", json={"inputs": [text]})
    assert (200 if shape in ([1], [1, 1]) and all(type(size) is int for size in shape) else 400) == reply.status_code


_ODD = st.none() | st.booleans() | st.integers(-1, 3) | st.floats(0, 2) | st.text(max_size=3)
_SHAPE = st.sampled_from([[1, 1], [1], [True, 1], [1.0, 1], [2, 1], [1, 1, 1], []]) | _ODD
_DATA = st.lists(st.text(max_size=3) | _ODD | st.lists(st.text(max_size=3), max_size=2), max_size=2) | _ODD


def _read(body: Any) -> Any:
    """Return the question for the endpoint, or the reason of the refusal."""
    call = InferCall("n")
    handler = SimpleNamespace(processor=SimpleNamespace(text_fields=("text", "text_pair"), input_names=("input_ids",)))
    endpoint: Any = SimpleNamespace(task="text-classification", text=handler)
    try:
        read_request(json.dumps(body).encode(), b"", call)
        question = call.question(endpoint)
    except GatewayError as error:
        return error.message
    return question if isinstance(question, dict) else "the model's own tensors"


@given(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["text", "text_pair", "input_ids", ""]), "shape": _SHAPE, "data": _DATA,
         "datatype": st.sampled_from(["BYTES", "INT64", "X"])},
        optional={"parameters": st.sampled_from([{}, {"binary_data_size": 1}, None])},
    )
)  # fmt: skip
def test_the_fast_reader_of_one_text_agrees_with_the_general_reader(tensor: dict[str, Any]) -> None:
    """Most requests take the fast reader; an id leads to the general one."""
    assert _read({"inputs": [tensor], "id": ""}) == _read({"inputs": [tensor]})


def test_the_fast_reader_accepts_fields_in_any_order() -> None:
    """In whatever order its fields come."""
    tensor = {"data": ["good"], "shape": [1, 1], "datatype": "BYTES", "name": "text"}
    assert {"text": "good"} == _read({"inputs": [tensor]}) == _read({"inputs": [tensor], "id": "a"})
