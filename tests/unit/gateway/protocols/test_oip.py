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
from gateway.handlers.endpoint import Identity
from gateway.protocols.oip import InferCall
from gateway.protocols.tensors import DTYPES, read_request, write_answer
from gateway.trace import Trace
from gateway.triton.tensors import unpack_bytes
from preprocessing.config import TaskConfig
from preprocessing.heads.embedding import SentenceEmbedding
from preprocessing.heads.sequence_classification import SequenceClassification
from preprocessing.types import Encoded, Prepared
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


_LABEL = st.text(min_size=1, max_size=6) | st.sampled_from(["%b", "%%", '"', "],[", "é%s"])
_ODD = st.none() | st.booleans() | st.integers(-1, 3) | st.floats(0, 2) | st.text(max_size=3)
_SHAPE = st.sampled_from([[1, 1], [1], [True, 1], [1.0, 1], [2, 1], [1, 1, 1], []]) | _ODD
_DATA = st.lists(st.text(max_size=3) | _ODD | st.lists(st.text(max_size=3), max_size=2), max_size=2) | _ODD


@st.composite
def _answered(draw: st.DrawFn) -> tuple[Any, Any, dict[str, Any]]:
    """Return a version of a text task, a request's trace with its model's outputs, and its answer."""
    rows, is_batch = draw(st.integers(1, 3)), draw(st.booleans())
    labels = tuple(draw(st.lists(_LABEL, min_size=1, max_size=20, unique=True)))
    activation: Any = draw(st.sampled_from(["softmax", "sigmoid", "none"]))
    config = TaskConfig(task="text-classification", labels=labels, activation=activation)
    head: Any = SequenceClassification(config)
    width = len(labels)
    if draw(st.booleans()):
        config = TaskConfig(task="sentence-embeddings", pooling=())
        head = SentenceEmbedding(config)
    parameters = draw(st.sampled_from([{}, {"top_k": 1}])) if width > 1 and config.task != "sentence-embeddings" else {}
    body = {"text": ["a"] * rows if is_batch else "a", "parameters": parameters}
    prepared = Prepared([Encoded(np.arange(4)) for _ in range(rows if is_batch else 1)], head.parse(body))
    floats = st.floats(-50, 50, width=32)
    numbers = draw(st.lists(floats, min_size=len(prepared.rows) * width, max_size=len(prepared.rows) * width))
    outputs = {head.select_outputs(["logits"])[0]: np.array(numbers, np.float32).reshape(len(prepared.rows), width)}
    identity = Identity("n/1", draw(_LABEL), draw(st.sampled_from(["", "1", "%b"])))
    handler = SimpleNamespace(processor=SimpleNamespace(config=config, text_fields=head.text_fields))
    endpoint = SimpleNamespace(identity=identity, task=config.task, text=handler)
    trace = Trace("r")
    trace.prepared, trace.outputs = prepared, outputs
    return endpoint, trace, head.render(head.decode(outputs, prepared), prepared)


@given(_answered(), st.text(max_size=4))
def test_an_answer_is_the_json_of_its_tensors(answered: Any, request_id: str) -> None:
    """To the byte, with any names and labels. Parts that all answers of a version share are written only once."""
    endpoint, trace, answer = answered
    call = InferCall("n/1")
    call.id = request_id
    tensors = call.tensors(answer, endpoint, trace)
    identity = endpoint.identity
    _, content = write_answer(call, tensors, model=identity.endpoint, version=identity.version or "1")
    assert content == call.render(answer, endpoint, trace)


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
