"""Malformed input, in any protocol, is a client error: 4xx or INVALID_ARGUMENT, never a 500 or INTERNAL."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.errors import BackendRefused, GatewayError, InputRefused, MalformedBody, PayloadTooLarge
from gateway.grpc.server import SERVICE
from gateway.protocols.json_body import MAX_WEIGHT, loads
from gateway.protocols.tei import ROUTES
from tests.unit.gateway.conftest import answering
from tests.unit.gateway.grpc.test_server import channel_to
from tests.waiting import LIMIT_S

_HOOK = answering("body")
_PATHS = (
    *("/serve/e", "/serve/h", "/serve/t", "/predict", "/v1/embeddings", "/v1/completions", "/v1/chat/completions"),
    *("/tei/e", "/tei/h/embed", "/v1/rerank", "/tei/e/v2/rerank", *(f"/tei/e{route}" for route in ROUTES)),
    *("/v1/models/e:predict", "/v1/models/h:predict", "/v2/models/e/infer", "/v2/models/h/infer", "/v2/models/t/infer"),
)
_SAMPLES: tuple[Any, ...] = (
    {"text": "good", "text_pair": "bad", "parameters": {"top_k": 1}},
    {"inputs": ["good", "bad"], "parameters": {"top_k": 2}, "options": {"use_cache": True}},
    {"model": "e", "input": ["good", [1, 2]], "dimensions": 3, "encoding_format": "base64"},
    {"model": "e", "prompt": ["a"], "stop": ["b"], "n": 1, "stream_options": {"include_usage": True}},
    {"model": "e", "messages": [{"role": "user", "content": [{"type": "text", "text": "good"}]}]},
    {"instances": ["good", {"text": "bad"}], "parameters": {}},
    {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [["good"]]}], "id": "7"},
    {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [2, 3]},
                {"name": "attention_mask", "datatype": "INT64", "shape": [1, 2], "data": [[1], [1]]}],
     "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]},
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.5, 2]}], "parameters": {"timeout": 5000000}},
    {"x": [[1.0, 2.0]]},
    {"inputs": [["good", "bad"], ["good"]], "truncate": True, "raw_scores": False, "normalize": True, "dimensions": 2},
    {"model": "e", "query": "good", "texts": ["bad"], "documents": [{"text": "good"}], "top_n": 1},
    {"ids": [[2, 4], [5]], "skip_special_tokens": True, "parameters": {"truncate": False, "max_length": 9}},
)  # fmt: skip
_WORDS = (
    "text", "inputs", "name", "datatype", "shape", "data", "parameters", "model", "input", "", "BYTES", "INT8", "FP16",
    "UINT64", "BOOL", "text_pair", "binary_data_size", "x",
)  # fmt: skip


def _nested(depth: int, inner: Any) -> Any:
    for level in range(depth):
        inner = {"text": inner} if level % 10 == 9 else [inner]
    return inner


_ODD: tuple[Any, ...] = (
    *_WORDS, None, True, False, 0, 1, -1, 1.5, 2**31, 2**63, -(2**63), 2**64 - 1, 1e300, "x\u0000y", [], [0, 1, 2],
    [1] * 40, [10**9, 0], [2**40, 2**40, 0], ["x" * 50, 1, True, None], {"text": "data"}, {"shape": "BYTES"},
    _nested(40, 1), _nested(240, "good"), _nested(900, []),
)  # fmt: skip


def _mutated(value: Any, rng: random.Random) -> Any:
    """Return the value with a random part replaced, dropped or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        changed = {k: v for k, v in value.items() if k != key or rng.random() < 0.9}
        changed[key if rng.random() < 0.9 else rng.choice(_WORDS)] = _mutated(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], _mutated(value[at], rng), *value[at + (rng.random() < 0.8) :]]
    return rng.choice(_ODD)


def _dumped(value: Any, rng: random.Random) -> bytes:
    raw = json.dumps(value).encode()
    if rng.random() < 0.1:  # numbers that no 64 bits hold
        raw = raw.replace(b"1", b"1" + b"0" * rng.choice((20, 400)), 1)
    if rng.random() < 0.1:
        raw = raw[: rng.randrange(len(raw))]
    return raw


def _classify(inputs: dict[str, Any]) -> dict[str, Any]:
    """Refuse inputs that the model does not have, as Triton does."""
    arrays = list(inputs.values())
    if set(inputs) != {"input_ids", "attention_mask"} or any(
        array.ndim != 2 or array.dtype != np.int64 or array.shape != arrays[0].shape for array in arrays
    ):
        raise BackendRefused("unexpected inputs")
    return {"logits": np.zeros((len(arrays[0]), 2), np.float32)}


def _echo(inputs: dict[str, Any]) -> dict[str, Any]:
    if set(inputs) != {"x"} or inputs["x"].dtype != np.float32:
        raise BackendRefused("unexpected inputs")
    return {"y": inputs["x"]}


@pytest.fixture
async def served(stack: Any) -> Any:
    """A text task, a hook and a model of plain tensors."""
    stack.deploy("e")
    stack.add_hook("h", _HOOK)
    stack.registry.add_model("plain", stack.folder / "plain.onnx", name="plain")
    (stack.folder / "plain.onnx").write_bytes(b"onnx")
    stack.registry.add_endpoint(
        "t", "plain", input_name=["x"], input_type=["float32"], input_size=[[-1]], output_name=["y"],
        output_type=["float32"], output_size=[[-1]],
    )  # fmt: skip
    stack.backend.add(stack.triton_name("t"), {"x": "float32"}, {"y": "float32"}, _echo)
    stack.load("e", _classify)
    await stack.served("e", "h", "t")
    return stack


@pytest.mark.parametrize("seed", range(6))
async def test_no_json_causes_a_server_error(served: Any, seed: int) -> None:
    """Five hundred bodies per seed, through every protocol."""
    rng = random.Random(seed)
    for _ in range(500):
        path = rng.choice(_PATHS)
        body = rng.choice(_SAMPLES)
        for _ in range(rng.randrange(4)):
            body = _mutated(body, rng)
        raw = _dumped(body, rng)
        reply = await served.client.post(path, content=raw, headers={"content-type": "application/json"})
        assert 200 <= reply.status_code < 500, (path, raw[:300], reply.text)
        assert reply.status_code == 200 or {"error", "message"} & set(reply.json()), (path, raw[:300], reply.text)


@pytest.mark.parametrize(
    "shape",
    [[1] * 33, [1] * 70, [10**9, 0], [0, 2**62], [2**64 - 1], [2**40, 2**40, 0], [-1], [True], [1.0], "2", None],
)
async def test_impossible_shapes_are_client_errors(served: Any, shape: Any) -> None:
    """More than 32 dimensions, more elements than sent, or no elements times a billion (a billion empty lists)."""
    for name, endpoint in (("text", "e"), ("x", "h"), ("x", "t")):
        data: list[str] = [] if isinstance(shape, list) and 0 in shape else ["good"]
        tensor = {"name": name, "datatype": "BYTES", "shape": shape, "data": data}
        reply = await served.client.post(f"/v2/models/{endpoint}/infer", json={"inputs": [tensor]})
        assert 400 == reply.status_code, reply.text
        assert "shape" in reply.json()["error"]


@pytest.mark.parametrize(
    "shapes", [[[65_000, 0]] * 2, [[1] * 30 + [65_000, 0]] * 2, [[40_000, *[1] * 8]], [[100] * 2 + [1] * 30]]
)
async def test_dimensions_do_not_multiply_lists(served: Any, shapes: Any) -> None:
    """A hook gets nested lists. Shapes of some 60 kB could become 65 million of them."""
    inputs = [
        {"name": f"x{i}", "datatype": "FP32", "shape": shape, "data": [1] * int(np.prod(shape))}
        for i, shape in enumerate(shapes)
    ]
    reply = await served.client.post("/v2/models/h/infer", json={"inputs": inputs})
    assert 400 == reply.status_code
    assert "nested lists" in reply.json()["error"]


# --- protobuf ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def channel(served: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A client of the gRPC edge over the same gateway. It sends raw bytes."""
    async with channel_to(served) as channel:
        yield channel


def _message(rng: random.Random) -> bytes:
    request = pb.ModelInferRequest(model_name=rng.choice(("e", "h", "t", "e/1", "", "nothing")))
    for _ in range(rng.randrange(3)):
        tensor = request.inputs.add(
            name=rng.choice(_WORDS), datatype=rng.choice(_WORDS),
            shape=rng.choice(([1], [1, 1], [2], [], [0, 10**9], [2**62, 4], [-1], [1] * 40, [2**62, 0])),
        )  # fmt: skip
        contents = tensor.contents
        contents.bytes_contents.extend(rng.choice(([], [b"good"], [b"\xff", b""])))
        contents.int_contents.extend(rng.choice(([], [1], [-(2**31), 300])))
        contents.uint64_contents.extend(rng.choice(([], [2**64 - 1])))
        contents.bool_contents.extend(rng.choice(([], [True])))
    if rng.random() < 0.3:
        request.raw_input_contents.extend(rng.randbytes(rng.randrange(9)) for _ in range(rng.randrange(3)))
    if rng.random() < 0.2:
        request.parameters["timeout"].int64_param = rng.choice((0, -1, 2**62, 10**7))
    for name in rng.sample(_WORDS, rng.randrange(2)):
        request.outputs.add(name=name)
    raw = bytearray(request.SerializeToString())
    for _ in range(rng.randrange(4)):
        if raw:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw[: rng.randrange(len(raw) + 1)] if rng.random() < 0.2 else raw)


_SECOND_TEXT_ALONE = pb.ModelInferRequest(model_name="e")
_SECOND_TEXT_ALONE.inputs.add(name="text_pair", datatype="BYTES", shape=[0])
_CALLERS_FAULT = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


@pytest.mark.parametrize("seed", range(4))
async def test_no_message_causes_a_server_error(channel: grpc.aio.Channel, seed: int) -> None:
    """Five hundred messages per seed. Half of them are not valid protobuf of this type."""
    rng = random.Random(seed)
    ask = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    failures: list[tuple[bytes, grpc.aio.AioRpcError]] = []
    for raw in (_SECOND_TEXT_ALONE.SerializeToString(), *(_message(rng) for _ in range(500))):
        try:
            await ask(raw, timeout=LIMIT_S)
        except grpc.aio.AioRpcError as error:
            failures.append((raw, error))
    assert failures
    assert [] == [(raw, e.code(), e.details()) for raw, e in failures if e.code() not in _CALLERS_FAULT]


@pytest.mark.parametrize(
    "method",
    ["ModelInfer", "ModelMetadata", "ModelConfig", "ModelReady", "ModelStatistics", "RepositoryIndex",
     "ModelStreamInfer"],
)  # fmt: skip
async def test_every_method_refuses_invalid_protobuf(channel: grpc.aio.Channel, method: str) -> None:
    """The caller gets a message, and the log no traceback. A stream ends: later boundaries cannot be trusted."""
    path, raw = f"/{SERVICE}/{method}", b"\xff\xff\xff"
    is_stream = method == "ModelStreamInfer"
    asked = channel.stream_stream(path)(iter([raw])).read() if is_stream else channel.unary_unary(path)(raw)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code()
    assert "not a" in str(caught.value.details())


def _many(values: str) -> bytes:
    """Return a list of one more of ``values`` than is read."""
    weight = values.count(",") + 10 * (values.count("[") + values.count("{")) + 9 * values.count('":')
    return f"[{values * (MAX_WEIGHT // weight + 1)}0]".encode()


UNREADABLE = [
    *((b"[" * depth + b"]" * depth, MalformedBody, "nested too deep") for depth in (231, 900, 1023)),
    # Parsing blocks all requests of a worker, so one body may not take long.
    *((_many(values), PayloadTooLarge, "too many values") for values in ("{},", "[[]],", "1,", '{"a":1},')),
    # A text that was cut in the middle of a character.
    (rb'{"text":"\ud83d"}', MalformedBody, "surrogate in string: line 1 column 10"),
    (rb'{"text":"\ude00"}', MalformedBody, "surrogate in string: line 1 column 10"),
    (b'{"text":"\xff"}', MalformedBody, "not valid UTF-8"),
]


@pytest.mark.parametrize(("raw", "error", "said"), UNREADABLE, ids=range(len(UNREADABLE)))
async def test_json_that_is_not_read(served: Any, raw: bytes, error: type[GatewayError], said: str) -> None:
    """An answer that repeats a value could not be written, or reading it would take too long. In all protocols."""
    with pytest.raises(error, match=said):
        loads(raw, hint="")
    for path in ("/serve/h", "/v1/models/h:predict", "/v2/models/h/infer", "/v1/embeddings"):
        assert error.status == (await served.client.post(path, content=raw)).status_code


def _object(keys: int, colon: str) -> bytes:
    return ("{" + ",".join(f'"{i}"{colon}1' for i in range(keys)) + "}").encode()


@pytest.mark.parametrize("colon", [":", " :", "\n:", "\t \r: "])
def test_a_key_counts_more_than_the_item_of_a_list(colon: str) -> None:
    """A distinct key takes the parser several times as long as a number in a list, however it is written."""
    assert 95_000 == len(loads(_object(95_000, colon), hint=""))
    with pytest.raises(PayloadTooLarge, match="too many values"):
        loads(_object(105_000, colon), hint="")


@pytest.mark.parametrize("text", ["12:34:56 ", "fe80::1:2:3 ", ": "])
def test_colons_in_texts_are_no_keys_and_a_byte_order_mark_is_accepted(text: str) -> None:
    """Logs and addresses are full of them; some editors and PowerShell write one."""
    for body in ({"text": [text * 10_000] * 60}, {"text": text}):
        assert body == loads(b"\xef\xbb\xbf" + json.dumps(body).encode(), hint="")


@pytest.mark.parametrize("path", ["/serve/h", "/v1/models/h:predict"])
async def test_the_deepest_accepted_body_can_be_answered(served: Any, path: str) -> None:
    """An answer can repeat every value that is accepted."""
    body = {"instances": _nested(228, 1)}
    reply = await served.client.post(path, json=body)
    assert (200, True) == (reply.status_code, body == reply.json() or body == reply.json()["predictions"])


_PARTS = st.sampled_from(("1", "12345678901234567890", "9" * 18, "9" * 19, "9" * 20, "18446744073709551615", "0", ".",
                          "e", "E", "-", "+", '"', "\\", "x", "é", " ", ",", ":", "u"))  # fmt: skip
_TEXTS = st.lists(_PARTS, max_size=12).map("".join)
_NUMBERS = st.integers(-(10**25), 10**25) | st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    _TEXTS | _NUMBERS | st.sampled_from((0.1, 1e300, -(2**63), 2**64 - 1, -(2**63) - 1, 2**64)) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4), max_leaves=12,
)  # fmt: skip


@given(_JSON, st.booleans(), st.sampled_from((0, 2, None)), st.sampled_from((0, 3000)))
def test_integers_beyond_64_bits_are_refused_and_nothing_else_is(
    value: Any, is_ascii: bool, indent: int | None, padding: int
) -> None:
    """Digits in texts and keys, and floats of any length, are read as they are. A body of any length."""
    value = [value, "y" * padding]
    raw = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    beyond: list[int] = []
    json.loads(raw, parse_int=lambda text: beyond.append(int(text)) if not -(2**63) <= int(text) < 2**64 else None)
    if beyond:
        with pytest.raises(InputRefused, match=f"the integer {str(beyond[0])[:40]}.* does not fit 64 bits"):
            loads(raw, hint="")
    else:
        assert value == loads(raw, hint="")


_MIB = 1 << 20


@pytest.mark.parametrize(
    ("path", "type_", "most"),
    [
        ("/serve/e", "application/json", 2), ("/v1/models/h:predict", "image/png", 2), ("/v1/embeddings", "", 8),
        ("/tei/e/embed", "", 8), ("/v2/models/t/infer", "", 16), ("/serve/h", "application/octet-stream", 16),
    ],
)  # fmt: skip
async def test_bodies_are_limited_by_their_kind(served: Any, path: str, type_: str, most: int) -> None:
    """JSON is parsed at one go, so it may have what texts need; batches more, and tensors and bytes most."""
    for size, is_refused in ((most * _MIB + 1, True), (most * _MIB, False)):
        raw = b'{"text":"' + b"a" * (size - 11) + b'"}'
        reply = await served.client.post(path, content=raw, headers={"content-type": type_})
        assert is_refused == (reply.status_code == 413), reply.text
        if is_refused:
            assert f"the body is larger than {most * _MIB} bytes" in reply.text
