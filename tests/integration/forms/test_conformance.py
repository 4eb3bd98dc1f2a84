"""The Open Inference Protocol v2, asked of the gateway and of the real Triton behind it: the same questions, the same
answers.

A case names a request; what Triton answers is what the gateway has to answer. Where Triton answers a body that it
cannot parse with 500, the gateway says 400: that is the only difference between the two.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.waiting import until

from .conftest import Stack

pytestmark = [pytest.mark.integration, pytest.mark.texts]

TOKENS, IDENTITY = "tokens", "team/identity"


@dataclass(frozen=True)
class Ask:
    """A request over HTTP; a body that is no bytes is sent as JSON. ``model`` is in the path in place of ``MODEL``."""

    path: str = "/v2/models/MODEL/infer"
    body: Any = None
    headers: Any = None
    method: str = "POST"
    model: str = TOKENS


@dataclass(frozen=True)
class Target:
    """A server that speaks the protocol; ``names`` are what it calls the two models."""

    http: str
    grpc: str
    names: dict[str, str]

    def send(self, ask: Ask) -> httpx.Response:
        """Ask over HTTP."""
        path = ask.path.replace("MODEL", self.names.get(ask.model, ask.model))
        content = ask.body if isinstance(ask.body, bytes) or ask.body is None else json.dumps(ask.body).encode()
        return httpx.request(ask.method, f"http://{self.http}{path}", content=content, headers=ask.headers or {})

    def said(self, ask: Ask) -> Any:
        """The status, and what a good answer says: its JSON, with the gateway's names, and the bytes behind it."""
        reply = self.send(ask)
        if reply.status_code != 200:
            assert reply.status_code in (404, 405) or reply.json()["error"]
            return reply.status_code
        size = int(reply.headers.get("inference-header-content-length", len(reply.content)))
        return json.loads(self.renamed(reply.content[:size].decode() or "null")), reply.content[size:]

    def renamed(self, text: str) -> str:
        """A text with the gateway's names of the models in place of this server's."""
        for name, own in self.names.items():
            text = text.replace(f'"{own}"', f'"{name}"')
        return text

    def rpc(self, call: str, message: Any) -> dict[str, Any] | str:
        """The answer over gRPC, or the name of the code it is refused with."""
        for at in ("model_name", "name"):
            if at in message.DESCRIPTOR.fields_by_name and getattr(message, at):
                setattr(message, at, self.names.get(getattr(message, at), getattr(message, at)))
        with grpc.insecure_channel(self.grpc) as channel:
            try:
                answer = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call)(message, timeout=60)
            except grpc.RpcError as refused:
                return str(refused.code().name)
        found: dict[str, Any] = json.loads(self.renamed(json.dumps(json_format.MessageToDict(answer))))
        return found


@pytest.fixture
def gateway(stack: Stack) -> Target:
    """The gateway."""
    return Target(stack.http, stack.grpc, {name: name for name in (TOKENS, IDENTITY)})


@pytest.fixture
def triton(stack: Stack) -> Target:
    """The server behind it."""
    return Target(stack.triton_http, stack.triton_grpc, {name: stack.triton_names[name] for name in (TOKENS, IDENTITY)})


def ids(*rows: list[int], **changed: Any) -> dict[str, Any]:
    """The tensor `input_ids` in JSON, with fields changed (None: left out)."""
    data = [number for row in rows for number in row]
    shape = [len(rows), len(rows[0]) if rows else 0]
    tensor = {"name": "input_ids", "datatype": "INT64", "shape": shape, "data": data, **changed}
    return {key: value for key, value in tensor.items() if value is not None}


def mask(rows: int = 1, columns: int = 2) -> dict[str, Any]:
    """The tensor `attention_mask`, all ones."""
    return ids(*[[1] * columns for _ in range(rows)], name="attention_mask")


def int64(*numbers: int) -> bytes:
    """Numbers as bytes."""
    return np.array(numbers, np.int64).tobytes()


def packed(
    *tensors: tuple[str, str, bytes] | dict[str, Any], extra: bytes = b"", length: Any = None, model: str = TOKENS,
    **body: Any,
) -> Ask:  # fmt: skip
    """A request with tensors of one row of two, as bytes behind the JSON, and others in it."""
    inputs = [
        one if isinstance(one, dict) else {
            "name": one[0], "datatype": one[1], "shape": [1, 2], "parameters": {"binary_data_size": len(one[2])},
        } for one in tensors
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, **body}).encode()
    data = b"".join(one[2] for one in tensors if not isinstance(one, dict))
    headers = {"inference-header-content-length": str(len(head) if length is None else length)}
    return Ask(body=head + data + extra, headers=headers, model=model)


EXTENSIONS = {"binary_tensor_data", "model_configuration", "statistics", "model_repository"}
PLAIN = [ids([1, 2]), mask()]
BINARY = (("input_ids", "INT64", int64(1, 2)), ("attention_mask", "INT64", int64(1, 1)))
HALF = ("HALF", "FP16", np.array([[1.5, -2]], np.float16).tobytes())
VALUES: dict[str, tuple[str, Any]] = {
    "I64": ("INT64", [-(2**62), 3]), "U8": ("UINT8", [0, 255]), "F64": ("FP64", [1.5, -2.25]),
    "FLAG": ("BOOL", [True, False]), "F32": ("FP32", [1.5, 1024.0]), "I8": ("INT8", [-128, 127]),
    "TEXT": ("BYTES", ["a", "ü 😀"]),
}  # fmt: skip


def identity(*wanted: str, binary: bool = False, half: Any = HALF, **changed: Any) -> Ask:
    """A request to the model that gives its inputs back: FP16 as bytes, the rest in JSON."""
    rest = [
        {"name": name, "datatype": kind, "shape": [1, 2], "data": changed.get(name, data)}
        for name, (kind, data) in VALUES.items()
    ]
    outputs = [{"name": f"{name}_OUT", "parameters": {"binary_data": binary}} for name in wanted]
    return packed(half, *rest, model=IDENTITY, outputs=outputs)


READY: dict[str, tuple[int, ...]] = {
    "/v2/health/live": (200,), "/v2/health/ready": (200,), "/v2/models/MODEL/ready": (200,),
    "/v2/models/MODEL/versions/1/ready": (200,), "/v2/models/nobody/ready": (400, 404),
    "/v2/models/MODEL/versions/7/ready": (400, 404),
}  # fmt: skip
ANSWERED: dict[str, Ask] = {
    "a model": Ask("/v2/models/MODEL", method="GET"),
    "a version": Ask("/v2/models/MODEL/versions/1", method="GET"),
    "a model of every type": Ask("/v2/models/MODEL", method="GET", model=IDENTITY),
    "several rows": Ask(body={"inputs": [ids([1, 2], [3, 4]), mask(2)]}),
    "of a version": Ask("/v2/models/MODEL/versions/1/infer", {"inputs": [ids([1, 2], [3, 4]), mask(2)]}),
    "some outputs, with an id": Ask(
        body={"id": "x-7", "inputs": PLAIN, "outputs": [{"name": "logits"}, {"name": "longest"}]}),
    "nested": Ask(body={"inputs": [ids([1, 2], data=[[1, 2]]), mask()]}),
    "nested further": Ask(body={"inputs": [ids([1, 2], data=[[[1], [2]]]), mask()]}),
    "in another order": Ask(body={"inputs": PLAIN[::-1]}),
    "compressed": Ask(
        body=gzip.compress(json.dumps({"inputs": PLAIN}).encode()), headers={"content-encoding": "gzip"}),
    "binary": packed(*BINARY),
    "binary and JSON": packed(BINARY[0], mask()),
    "one output binary": Ask(body={
        "inputs": PLAIN, "outputs": [{"name": "logits", "parameters": {"binary_data": True}}, {"name": "longest"}]}),
    "all outputs binary": packed(*BINARY, parameters={"binary_data_output": True}),
    "every type": identity(*VALUES),
    "every type as bytes": identity("HALF", *VALUES, binary=True),
    "whole numbers for floats": identity("F32", F32=[1, 2]),
}  # fmt: skip
REFUSED: dict[str, tuple[int, Ask]] = {
    **{f"{path} of nobody": (404, Ask(f"/v2/models/nobody{path}", method="GET")) for path in ("", "/config")},
    "of no such version": (404, Ask("/v2/models/MODEL/versions/9", method="GET")),
    "asked as POST": (405, Ask("/v2/models/MODEL")),
    "asked as GET": (405, Ask(method="GET")),
    "no such model": (404, Ask(body={"inputs": PLAIN}, model="nobody")),
    "no such version": (404, Ask("/v2/models/MODEL/versions/9/infer", {"inputs": PLAIN})),
    "no such output": (400, Ask(body={"inputs": PLAIN, "outputs": [{"name": "nope"}]})),
    **{f"inputs: {name}": (400, Ask(body={"inputs": inputs})) for name, inputs in {
        "one is missing": PLAIN[:1], "none": [], "one too many": [*PLAIN, ids([1, 2], name="extra")],
        "one twice": [*PLAIN, PLAIN[0]], "another type": [ids([1, 2], datatype="INT32"), mask()],
        "no such type": [ids([1, 2], datatype="NONSENSE"), mask()], "wrong rank": [ids([1, 2], shape=[2]), mask()],
        "rows disagree": [ids([1, 2]), mask(2)], "no data": [ids([1, 2], data=None), mask()], "no object": [1],
        "no rows": [ids(shape=[0, 2], data=[]), ids(name="attention_mask", shape=[0, 2], data=[])],
    }.items()},
    **{f"a head of another length: {wrong}": (400, packed(*BINARY, **wrong)) for wrong in (
        {"extra": b"xx"}, {"length": 99999}, {"length": -1}, {"length": 0}, {"length": "abc"},
    )},
    "a tensor of another length": (400, packed(("input_ids", "INT64", int64(1)), BINARY[1])),
    "FP16 in JSON": (400, identity("F32", half={"name": "HALF", "datatype": "FP16", "shape": [1, 2], "data": [1, 2]})),
    "FP16 wanted in JSON": (400, identity("HALF")),
}  # fmt: skip
UNPARSABLE: dict[str, Ask] = {
    **{name: Ask(body=body) for name, body in {
        "not JSON": b"{", "a list": b"[1]", "no inputs": {}, "inputs an object": {"inputs": {}},
        "id a number": {"id": 7, "inputs": PLAIN},
    }.items()},
    **{name: Ask(body={"inputs": [ids([1, 2], **wrong), mask()]}) for name, wrong in {
        "too few numbers": {"shape": [1, 3]}, "negative shape": {"shape": [-1, 2]},
        "texts for numbers": {"data": ["a", "b"]}, "fractions for whole numbers": {"data": [1.5, 2]},
        "no shape": {"shape": None}, "no datatype": {"datatype": None}, "no name": {"name": None},
    }.items()},
    "numbers for texts": identity("F32", TEXT=[1, 2]),
    "numbers for truths": identity("F32", FLAG=[1, 0]),
    "a number too small": identity("F32", U8=[-1, 2]),
}  # fmt: skip
"""Triton says 500 to these, which are the caller's fault all the same."""


@pytest.mark.parametrize("case", ANSWERED)
def test_what_triton_answers_the_gateway_answers(gateway: Target, triton: Target, case: str) -> None:
    """Names, types, shapes, numbers and bytes of every tensor; the id, if there was one."""

    def told(target: Target) -> Any:
        found, tail = target.said(ANSWERED[case])
        if isinstance(found, dict):
            found.pop("platform", None)
        return found, tail

    assert told(triton) == told(gateway)


@pytest.mark.parametrize("case", [*REFUSED, *UNPARSABLE])
def test_what_triton_refuses_the_gateway_refuses(gateway: Target, triton: Target, case: str) -> None:
    """With the same status, and a reason."""
    status, ask = REFUSED[case] if case in REFUSED else (400, UNPARSABLE[case])
    assert (500 if case in UNPARSABLE else status, status) == (triton.said(ask), gateway.said(ask))


def test_what_differs_by_server_has_what_clients_read(gateway: Target, triton: Target) -> None:
    """Extensions, the configuration that perf_analyzer reads, an index; who is ready, and what is not there is not."""
    for target in (gateway, triton):
        (found, _) = target.said(Ask("/v2", method="GET"))
        assert EXTENSIONS <= set(found["extensions"])
        (found, _) = target.said(Ask("/v2/models/MODEL/config", method="GET"))
        assert found["max_batch_size"] > 0
        assert [("input_ids", "TYPE_INT64", [-1]), ("attention_mask", "TYPE_INT64", [-1])] == [
            (tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in found["input"]
        ]
        assert {"logits": ("TYPE_FP32", [1]), "tokens": ("TYPE_FP32", [-1]), "longest": ("TYPE_INT64", [1])} == {
            tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in found["output"]
        }
        for body in (b"", b'{"ready": true}'):
            (found, _) = target.said(Ask("/v2/repository/index", body))
            states = {one["name"]: (one.get("version"), one.get("state")) for one in found}
            assert {("1", "READY")} == {states[TOKENS], states[IDENTITY]}
        for path, status in READY.items():
            assert target.send(Ask(path, method="GET")).status_code in status
        assert 405 == target.said(Ask("/v2/repository/index", method="GET"))


@pytest.mark.parametrize("server", ["gateway", "triton"])
def test_statistics_count_requests_and_rows(server: str, request: pytest.FixtureRequest) -> None:
    """Triton counts a request after it has answered it."""
    target = request.getfixturevalue(server)

    def count() -> tuple[int, int]:
        row = target.send(Ask("/v2/models/MODEL/stats", method="GET")).json()["model_stats"][0]
        assert {"queue", "compute_infer"} <= set(row["inference_stats"])
        return row["inference_stats"]["success"]["count"], row["inference_count"]

    def grown(rows: int) -> tuple[int, int]:
        """By how much one request has raised both counts; an earlier one may be counted with it."""
        before = count()
        target.send(Ask(body={"inputs": [ids(*[[1, 2]] * rows), mask(rows)]}))
        after = until(lambda: (now := count())[0] > before[0] and now, what="the count of a request")
        return after[0] - before[0], after[1] - before[1]

    until(lambda: (1, 1) == grown(1), what="the count of a request of one row")
    until(lambda: (1, 2) == grown(2), what="the count of a request of two rows")


def message(*, raw: bool = True, outputs: tuple[str, ...] = ()) -> Any:
    """A `ModelInferRequest` of the token model."""
    request = pb.ModelInferRequest(model_name=TOKENS, id="r1")
    for name, numbers in (("input_ids", [1, 2]), ("attention_mask", [1, 1])):
        tensor = request.inputs.add(name=name, datatype="INT64", shape=[1, 2])
        if raw:
            request.raw_input_contents.append(int64(*numbers))
        else:
            tensor.contents.int64_contents.extend(numbers)
    for name in outputs:
        request.outputs.add(name=name)
    return request


RPC: dict[str, tuple[str, Callable[[], Any]]] = {
    "raw": ("ModelInfer", message),
    "typed": ("ModelInfer", lambda: message(raw=False)),
    "one output": ("ModelInfer", lambda: message(outputs=("logits",))),
    "live": ("ServerLive", pb.ServerLiveRequest),
    "ready": ("ServerReady", pb.ServerReadyRequest),
    "model ready": ("ModelReady", lambda: pb.ModelReadyRequest(name=TOKENS)),
    "metadata": ("ModelMetadata", lambda: pb.ModelMetadataRequest(name=TOKENS)),
}


@pytest.mark.parametrize("case", RPC)
def test_rpc_answers_what_triton_answers(gateway: Target, triton: Target, case: str) -> None:
    """Raw and typed contents alike."""
    call, asked = RPC[case]
    ours: Any
    theirs: Any
    ours, theirs = gateway.rpc(call, asked()), triton.rpc(call, asked())
    assert {**theirs, "platform": ""} == {**ours, "platform": ""}


WRONG: dict[str, tuple[str, Callable[[Any], object]]] = {
    "wrong type": ("INVALID_ARGUMENT", lambda r: setattr(r.inputs[0], "datatype", "INT32")),
    "wrong shape": ("INVALID_ARGUMENT", lambda r: r.inputs[0].shape.__setitem__(1, 3)),
    "missing": ("INVALID_ARGUMENT", lambda r: (r.raw_input_contents.pop(), r.inputs.pop())),
    "twice": ("INVALID_ARGUMENT", lambda r: setattr(r.inputs[1], "name", "input_ids")),
    "unknown output": ("INVALID_ARGUMENT", lambda r: r.outputs.add(name="nope")),
    "raw missing": ("INVALID_ARGUMENT", lambda r: r.raw_input_contents.pop()),
    "unknown model": ("NOT_FOUND", lambda r: setattr(r, "model_name", "nobody")),
    "unknown version": ("NOT_FOUND", lambda r: setattr(r, "model_version", "9")),
}


@pytest.mark.parametrize("case", WRONG)
def test_rpc_refuses_with_the_code_of_triton(gateway: Target, triton: Target, case: str) -> None:
    """GRPC refuses with the same codes."""
    code, spoil = WRONG[case]
    for target in (gateway, triton):
        request = message()
        spoil(request)
        assert code == target.rpc("ModelInfer", request)
