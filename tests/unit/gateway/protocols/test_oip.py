"""The Open Inference Protocol: one or several texts, as JSON or binary data, give the same tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.protocols.tensors import DTYPES
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
