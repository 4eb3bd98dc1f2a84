"""The Open Inference Protocol v2, asked of the gateway and of the real Triton behind it: the same questions, the same
answers.

A case names a request and what must come back; every case runs against both. Where Triton answers a body that it cannot
parse with 500, the gateway says 400 (``UNPARSABLE``): that is the only difference between the two.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.texts]

TOKENS, IDENTITY = "tokens", "team/identity"


@dataclass(frozen=True)
class Target:
    """A server that speaks the protocol; ``names`` are what it calls the two models."""

    kind: str
    client: httpx.Client
    grpc: str
    names: dict[str, str]

    def post(self, body: Any, model: str = TOKENS, *, version: str = "", **headers: str) -> httpx.Response:
        """Infer; a dict is sent as JSON."""
        path = f"/v2/models/{self.names.get(model, model)}" + (f"/versions/{version}" if version else "")
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.client.post(f"{path}/infer", content=content, headers=named)

    def get(self, path: str, model: str = TOKENS) -> httpx.Response:
        """GET something of a model."""
        return self.client.get(f"/v2/models/{self.names.get(model, model)}{path}")


@pytest.fixture(params=["gateway", "triton"])
def target(request: pytest.FixtureRequest, stack: Any) -> Any:
    """Both servers in turn."""
    names = {name: name if request.param == "gateway" else stack.triton_names[name] for name in (TOKENS, IDENTITY)}
    http, grpc = (stack.http, stack.grpc) if request.param == "gateway" else (stack.triton_http, stack.triton_grpc)
    with httpx.Client(base_url=f"http://{http}") as client:
        yield Target(request.param, client, grpc, names)


def ids(*rows: list[int], **changed: Any) -> dict[str, Any]:
    """The tensor `input_ids` in JSON, with fields changed (None: left out)."""
    data = [number for row in rows for number in row]
    shape = [len(rows), len(rows[0]) if rows else 0]
    tensor = {"name": "input_ids", "datatype": "INT64", "shape": shape, "data": data, **changed}
    return {key: value for key, value in tensor.items() if value is not None}


def mask(rows: int = 1, columns: int = 2) -> dict[str, Any]:
    """The tensor `attention_mask`, all ones."""
    return ids(*[[1] * columns for _ in range(rows)], name="attention_mask")


def outputs(reply: httpx.Response) -> dict[str, Any]:
    """Outputs by name, of an answer in JSON."""
    assert 200 == reply.status_code, reply.text
    return {output["name"]: output for output in reply.json()["outputs"]}


# --- what there is ----------------------------------------------------------------------------------------------------


def test_server_metadata_names_its_extensions(target: Target) -> None:
    """Server metadata names its extensions."""
    found = target.client.get("/v2").json()
    assert {"name", "version", "extensions"} <= set(found)
    assert {"binary_tensor_data", "model_configuration", "statistics", "model_repository"} <= set(found["extensions"])


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_model_metadata(target: Target, version: str) -> None:
    """Names, types and shapes of all tensors; batch and free dimensions are −1."""
    found = target.get(version).json()
    assert {"name", "versions", "platform", "inputs", "outputs"} <= set(found)
    assert (target.names[TOKENS], ["1"]) == (found["name"], found["versions"])
    assert [
        {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "attention_mask", "datatype": "INT64", "shape": [-1, -1]},
    ] == found["inputs"]
    assert {"logits": ("FP32", [-1, 1]), "tokens": ("FP32", [-1, -1]), "longest": ("INT64", [-1, 1])} == {
        output["name"]: (output["datatype"], output["shape"]) for output in found["outputs"]
    }
    kinds = [tensor["datatype"] for tensor in target.get("", IDENTITY).json()["inputs"]]
    assert ["BYTES", "FP16", "INT64", "UINT8", "FP64", "BOOL", "FP32", "INT8"] == kinds


def test_config_has_what_clients_read(target: Target) -> None:
    """Names, types and dimensions without the batch, as perf_analyzer wants them."""
    found = target.get("/config").json()
    assert found["max_batch_size"] > 0
    assert [("input_ids", "TYPE_INT64", [-1]), ("attention_mask", "TYPE_INT64", [-1])] == [
        (tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in found["input"]
    ]
    assert {"logits": ("TYPE_FP32", [1]), "tokens": ("TYPE_FP32", [-1]), "longest": ("TYPE_INT64", [1])} == {
        tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in found["output"]
    }


def test_statistics_count_requests_and_rows(target: Target) -> None:
    """Statistics count requests and rows; Triton counts a request after it has answered it."""

    def count() -> tuple[int, int]:
        row = target.get("/stats").json()["model_stats"][0]
        assert "queue" in row["inference_stats"]
        assert "compute_infer" in row["inference_stats"]
        return row["inference_stats"]["success"]["count"], row["inference_count"]

    def grown(*texts: list[int]) -> tuple[int, int]:
        """By how much one request of these rows has raised both counts; an earlier one may be counted with it."""
        before = count()
        target.post({"inputs": [ids(*texts), mask(len(texts))]})
        after = until(lambda: (now := count())[0] > before[0] and now, what="the count of a request")
        return after[0] - before[0], after[1] - before[1]

    until(lambda: (1, 1) == grown([1, 2]), what="the count of a request of one row")
    until(lambda: (1, 2) == grown([1, 2], [3, 4]), what="the count of a request of two rows")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready": true}'])
def test_repository_index(target: Target, body: bytes) -> None:
    """Repository index."""
    entries = {e["name"]: e for e in target.client.post("/v2/repository/index", content=body).json()}
    for name in target.names.values():
        assert ("1", "READY") == (entries[name]["version"], entries[name]["state"])


MODEL = f"/v2/models/{TOKENS}"
STATUSES = [
    *((200, "GET", path) for path in ("/v2/health/live", "/v2/health/ready", f"{MODEL}/ready",
                                      f"{MODEL}/versions/1/ready", "/v2/models/stats")),
    *((404, "GET", path) for path in ("/v2/models/nobody", f"{MODEL}/versions/9", "/v2/models/nobody/config")),
    # Triton: 400
    *((4, "GET", path) for path in ("/v2/models/nobody/ready", f"{MODEL}/versions/7/ready")),
    (405, "GET", f"{MODEL}/infer"), (405, "POST", MODEL), (405, "GET", "/v2/repository/index"),
]  # fmt: skip
"""Status (4: of a client's error), method, address."""


@pytest.mark.parametrize(("status", "method", "path"), STATUSES)
def test_an_address_has_its_status(target: Target, status: int, method: str, path: str) -> None:
    """What there is, what there is not, and how it is not asked."""
    reply = target.client.request(method, path.replace(TOKENS, target.names[TOKENS]))
    assert status in (reply.status_code, reply.status_code // 100)
    assert status != 404 or isinstance(json.loads(reply.text)["error"], str)


# --- inference --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["", "1"])
def test_inference_answers_all_outputs(target: Target, version: str) -> None:
    """Inference answers all outputs."""
    found = outputs(target.post({"inputs": [ids([1, 2], [3, 4]), mask(2)]}, version=version))
    assert {
        "logits": ("FP32", [2, 1], [3.0, 7.0]),
        "tokens": ("FP32", [2, 2], [1.0, 2.0, 3.0, 4.0]),
        "longest": ("INT64", [2, 1], [2, 2]),
    } == {name: (o["datatype"], o["shape"], o["data"]) for name, o in found.items()}


def test_only_requested_outputs_come_and_the_id_and_names(target: Target) -> None:
    """Without an id there is none in the answer."""
    inputs = [ids([1, 2]), mask()]
    reply = target.post({"id": "x-7", "inputs": inputs, "outputs": [{"name": "logits"}, {"name": "longest"}]})
    assert {"logits", "longest"} == set(outputs(reply))
    answer = reply.json()
    assert ("x-7", target.names[TOKENS], "1") == (answer["id"], answer["model_name"], answer["model_version"])
    assert "id" not in target.post({"inputs": inputs}).json()


REFUSED: dict[str, Any] = {
    "missing": {"inputs": [ids([1, 2])]},
    "none": {"inputs": []},
    "extra": {"inputs": [ids([1, 2]), mask(), ids([1, 2], name="extra")]},
    "twice": {"inputs": [ids([1, 2]), ids([1, 2]), mask()]},
    "wrong type": {"inputs": [ids([1, 2], datatype="INT32"), mask()]},
    "no such type": {"inputs": [ids([1, 2], datatype="NONSENSE"), mask()]},
    "wrong rank": {"inputs": [ids([1, 2], shape=[2]), mask()]},
    "rows disagree": {"inputs": [ids([1, 2]), mask(2)]},
    "no data": {"inputs": [ids([1, 2], data=None), mask()]},
    "not an object": {"inputs": [1]},
    "no rows": {"inputs": [ids(shape=[0, 2], data=[]), ids(name="attention_mask", shape=[0, 2], data=[])]},
}
UNPARSABLE: dict[str, Any] = {
    "not JSON": b"{",
    "a list": b"[1]",
    "no inputs": {},
    "inputs an object": {"inputs": {}},
    "id a number": {"id": 7, "inputs": [ids([1, 2]), mask()]},
    "too few numbers": {"inputs": [ids([1, 2], shape=[1, 3]), mask()]},
    "negative shape": {"inputs": [ids([1, 2], shape=[-1, 2]), mask()]},
    "texts for numbers": {"inputs": [ids([1, 2], data=["a", "b"]), mask()]},
    "fractions for whole numbers": {"inputs": [ids([1, 2], data=[1.5, 2]), mask()]},
    "no shape": {"inputs": [ids([1, 2], shape=None), mask()]},
    "no datatype": {"inputs": [ids([1, 2], datatype=None), mask()]},
    "no name": {"inputs": [ids([1, 2], name=None), mask()]},
}


@pytest.mark.parametrize("case", [*REFUSED, *UNPARSABLE])
def test_what_does_not_fit_or_cannot_be_parsed_is_refused(target: Target, case: str) -> None:
    """400; Triton says 500 to what it cannot parse, which is the caller's fault all the same."""
    reply = target.post({**REFUSED, **UNPARSABLE}[case])
    assert (500 if case in UNPARSABLE and target.kind == "triton" else 400) == reply.status_code, reply.text
    assert reply.json()["error"]


@pytest.mark.parametrize(
    ("status", "said", "model", "version", "wanted"),
    [(404, "", "nobody", "", "logits"), (404, "", TOKENS, "9", "logits"), (400, "nope", TOKENS, "", "nope")],
)
def test_what_does_not_exist_is_refused(
    target: Target, status: int, said: str, model: str, version: str, wanted: str
) -> None:
    """A model, a version, an output."""
    body = {"inputs": [ids([1, 2]), mask()], "outputs": [{"name": wanted}]}
    reply = target.post(body, model, version=version)
    assert status == reply.status_code
    assert said in json.loads(reply.text)["error"] != ""


# --- binary tensors ---------------------------------------------------------------------------------------------------


def packed(*tensors: tuple[str, str, list[int], bytes], extra: bytes = b"", length: Any = None, **body: Any) -> Any:
    """Body and headers of a request with binary tensors."""
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, kind, shape, data in tensors
    ]
    head = json.dumps({"inputs": inputs, **body}).encode()
    headers = {"inference_header_content_length": str(len(head) if length is None else length)}
    return head + b"".join(data for *_, data in tensors) + extra, headers


def int64(*numbers: int) -> bytes:
    """Numbers as bytes."""
    return np.array(numbers, np.int64).tobytes()


def both(data: bytes = int64(1, 2)) -> list[Any]:
    """The two inputs of the token model."""
    return [("input_ids", "INT64", [1, 2], data), ("attention_mask", "INT64", [1, 2], int64(1, 1))]


def unpack(reply: httpx.Response) -> tuple[dict[str, Any], bytes]:
    """JSON and tail of an answer."""
    assert 200 == reply.status_code, reply.text
    size = int(reply.headers["inference-header-content-length"])
    return json.loads(reply.content[:size]), reply.content[size:]


def test_binary_out_for_one_output(target: Target) -> None:
    """Binary out for one output."""
    wanted = [{"name": "logits", "parameters": {"binary_data": True}}, {"name": "longest"}]
    answer, tail = unpack(target.post({"inputs": [ids([1, 2]), mask()], "outputs": wanted}))
    found = {output["name"]: output for output in answer["outputs"]}
    assert {"binary_data_size": 4} == found["logits"]["parameters"]
    assert "data" not in found["logits"]
    assert [2] == found["longest"]["data"]
    assert struct.pack("<f", 3) == tail


def test_binary_out_for_all_outputs_in_the_order_told(target: Target) -> None:
    """Binary out for all outputs in the order told."""
    body, headers = packed(*both(), parameters={"binary_data_output": True})
    answer, tail = unpack(target.post(body, **headers))
    at, found = 0, {}
    for output in answer["outputs"]:
        size = output["parameters"]["binary_data_size"]
        kind = {"FP32": np.float32, "INT64": np.int64}[output["datatype"]]
        found[output["name"]] = np.frombuffer(tail[at : at + size], kind).reshape(output["shape"]).tolist()
        at += size
    assert {"logits": [[3.0]], "tokens": [[1.0, 2.0]], "longest": [[2]]} == found
    assert at == len(tail)


MIXED = json.dumps({"inputs": [
    {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "parameters": {"binary_data_size": 16}}, mask(),
]}).encode()  # fmt: skip
WAYS: dict[str, tuple[Any, dict[str, str]]] = {
    "flat": ({"inputs": [ids([1, 2]), mask()]}, {}),
    "nested": ({"inputs": [ids([1, 2], data=[[1, 2]]), mask()]}, {}),
    "nested further": ({"inputs": [ids([1, 2], data=[[[1], [2]]]), mask()]}, {}),
    "in another order": ({"inputs": [mask(), ids([1, 2])]}, {}),
    "packed": (
        gzip.compress(json.dumps({"inputs": [ids([1, 2]), mask()]}).encode()), {"content_encoding": "gzip"}
    ),
    "binary": packed(*both()),
    "binary and JSON": (MIXED + int64(1, 2), {"inference_header_content_length": str(len(MIXED))}),
}  # fmt: skip
"""One request, sent in so many ways."""


@pytest.mark.parametrize("way", WAYS)
def test_a_request_may_be_sent_so(target: Target, way: str) -> None:
    """The answer is the same."""
    body, headers = WAYS[way]
    assert [3.0] == outputs(target.post(body, **headers))["logits"]["data"]


@pytest.mark.parametrize(
    ("tensors", "wrong"),
    [*((both(), wrong) for wrong in ({"extra": b"xx"}, {"length": 99999}, {"length": -1}, {"length": 0},
                                     {"length": "abc"})), (both(int64(1)), {})],
)  # fmt: skip
def test_wrong_lengths_are_400(target: Target, tensors: Any, wrong: dict[str, Any]) -> None:
    """Of the head, or of a tensor."""
    body, headers = packed(*tensors, **wrong)
    assert 400 == target.post(body, **headers).status_code


# --- datatypes --------------------------------------------------------------------------------------------------------

VALUES: dict[str, tuple[str, Any]] = {
    "I64": ("INT64", [-(2**62), 3]), "U8": ("UINT8", [0, 255]), "F64": ("FP64", [1.5, -2.25]),
    "FLAG": ("BOOL", [True, False]), "F32": ("FP32", [1.5, 1024.0]), "I8": ("INT8", [-128, 127]),
    "TEXT": ("BYTES", ["a", "ü 😀"]),
}  # fmt: skip
HALF = np.array([[1.5, -2]], np.float16).tobytes()


def identity(**changed: Any) -> list[dict[str, Any]]:
    """All JSON inputs of the identity model."""
    return [
        {"name": name, "datatype": kind, "shape": [1, 2], "data": changed.get(name, data)}
        for name, (kind, data) in VALUES.items()
    ]


def ask_identity(target: Target, rest: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> httpx.Response:
    """Call the identity model: FP16 as binary data, the rest as given."""
    half = {"name": "HALF", "datatype": "FP16", "shape": [1, 2], "parameters": {"binary_data_size": 4}}
    head = json.dumps({"inputs": [half, *rest], "outputs": wanted}).encode()
    return target.post(head + HALF, IDENTITY, inference_header_content_length=str(len(head)))


@pytest.mark.parametrize("name", VALUES)
def test_every_datatype_goes_round_in_json(target: Target, name: str) -> None:
    """Whole numbers are fine for floats."""
    found = outputs(ask_identity(target, identity(), [{"name": f"{name}_OUT"}]))[f"{name}_OUT"]
    assert (VALUES[name][0], [1, 2], VALUES[name][1]) == (found["datatype"], found["shape"], found["data"])
    if name == "F32":
        found = outputs(ask_identity(target, identity(F32=[1, 2]), [{"name": "F32_OUT"}]))
        assert [1.0, 2.0] == found["F32_OUT"]["data"]


TEXTS = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in VALUES["TEXT"][1])


@pytest.mark.parametrize(("name", "kind", "content"), [("HALF", "FP16", HALF), ("TEXT", "BYTES", TEXTS)])
def test_half_precision_and_texts_go_round_as_binary_data(target: Target, name: str, kind: str, content: bytes) -> None:
    """Texts with their lengths in front."""
    wanted = [{"name": f"{name}_OUT", "parameters": {"binary_data": True}}]
    answer, tail = unpack(ask_identity(target, identity(), wanted))
    assert (kind, content) == (answer["outputs"][0]["datatype"], tail)


def test_half_precision_in_json_is_400(target: Target) -> None:
    """Half precision in JSON is 400."""
    half = {"name": "HALF", "datatype": "FP16", "shape": [1, 2], "data": [1, 2]}
    assert 400 == target.post({"inputs": [half, *identity()]}, IDENTITY).status_code
    assert 400 == ask_identity(target, identity(), [{"name": "HALF_OUT"}]).status_code


@pytest.mark.parametrize("changed", [{"TEXT": [1, 2]}, {"FLAG": [1, 0]}, {"U8": [-1, 2]}])
def test_values_of_another_type_are_refused(target: Target, changed: dict[str, Any]) -> None:
    """As with the unparsable ones: Triton 500, the gateway 400."""
    reply = ask_identity(target, identity(**changed), [{"name": "F32_OUT"}])
    assert (400 if target.kind == "gateway" else 500) == reply.status_code


# --- gRPC -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def rpc(target: Target) -> Any:
    """The service's stub of the target."""
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    with grpc.insecure_channel(target.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def message(target: Target, *, raw: bool = True, **changed: Any) -> Any:
    """A `ModelInferRequest` of the token model."""
    from tritonclient.grpc import service_pb2 as pb

    request = pb.ModelInferRequest(model_name=target.names[TOKENS], id="r1", **changed)
    for name, numbers in (("input_ids", [1, 2]), ("attention_mask", [1, 1])):
        tensor = request.inputs.add(name=name, datatype="INT64", shape=[1, 2])
        if raw:
            request.raw_input_contents.append(int64(*numbers))
        else:
            tensor.contents.int64_contents.extend(numbers)
    return request


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_rpc_inference(target: Target, rpc: Any, raw: bool) -> None:
    """GRPC answers raw and typed contents alike."""
    answer = rpc.ModelInfer(message(target, raw=raw), timeout=60)
    assert (target.names[TOKENS], "1", "r1") == (answer.model_name, answer.model_version, answer.id)
    found = dict(zip([o.name for o in answer.outputs], answer.raw_output_contents, strict=True))
    assert struct.pack("<f", 3) == found["logits"]
    assert {"logits": [1, 1], "tokens": [1, 2], "longest": [1, 1]} == {o.name: list(o.shape) for o in answer.outputs}
    request = message(target, raw=raw)
    request.outputs.add(name="logits")
    assert ["logits"] == [output.name for output in rpc.ModelInfer(request, timeout=60).outputs]


def _less(request: Any, *, inputs: bool) -> None:
    """Leave out what the second tensor has."""
    del request.raw_input_contents[1]
    if inputs:
        del request.inputs[1]


WRONG: dict[str, tuple[str, Callable[[Any], object]]] = {
    "wrong type": ("INVALID_ARGUMENT", lambda r: setattr(r.inputs[0], "datatype", "INT32")),
    "wrong shape": ("INVALID_ARGUMENT", lambda r: r.inputs[0].shape.__setitem__(1, 3)),
    "missing": ("INVALID_ARGUMENT", lambda r: _less(r, inputs=True)),
    "twice": ("INVALID_ARGUMENT", lambda r: setattr(r.inputs[1], "name", "input_ids")),
    "unknown output": ("INVALID_ARGUMENT", lambda r: r.outputs.add(name="nope")),
    "raw missing": ("INVALID_ARGUMENT", lambda r: _less(r, inputs=False)),
    "unknown model": ("NOT_FOUND", lambda r: setattr(r, "model_name", "nobody")),
    "unknown version": ("NOT_FOUND", lambda r: setattr(r, "model_version", "9")),
}


@pytest.mark.parametrize("case", WRONG)
def test_rpc_refusals(target: Target, rpc: Any, case: str) -> None:
    """GRPC refuses with the same codes."""
    import grpc

    code, spoil = WRONG[case]
    request = message(target)
    spoil(request)
    with pytest.raises(grpc.RpcError) as refused:
        rpc.ModelInfer(request, timeout=60)
    assert code == refused.value.code().name, refused.value.details()


def test_rpc_tells_what_there_is(target: Target, rpc: Any) -> None:
    """GRPC tells what REST tells."""
    from tritonclient.grpc import service_pb2 as pb

    name = target.names[TOKENS]
    assert rpc.ServerLive(pb.ServerLiveRequest(), timeout=60).live
    assert rpc.ServerReady(pb.ServerReadyRequest(), timeout=60).ready
    assert rpc.ModelReady(pb.ModelReadyRequest(name=name), timeout=60).ready
    metadata = rpc.ModelMetadata(pb.ModelMetadataRequest(name=name), timeout=60)
    assert [("input_ids", "INT64", [-1, -1]), ("attention_mask", "INT64", [-1, -1])] == [
        (t.name, t.datatype, list(t.shape)) for t in metadata.inputs
    ]
    config = rpc.ModelConfig(pb.ModelConfigRequest(name=name), timeout=60).config
    assert {"input_ids", "attention_mask"} == {t.name for t in config.input}
    index = rpc.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=60)
    assert "READY" == {m.name: m.state for m in index.models}[name]
    stats = rpc.ModelStatistics(pb.ModelStatisticsRequest(name=name), timeout=60).model_stats
    assert name == stats[0].name
