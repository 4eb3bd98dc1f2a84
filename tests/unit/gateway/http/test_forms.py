"""Request forms over a gateway of fakes: what is accepted, and how each wrong request is refused, in its own form."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from gateway.errors import BackendGarbage, BackendRefused, BackendUnavailable, DeadlineExceeded, Overloaded

JSON = {"content-type": "application/json"}
GOOD = json.dumps({"text": "good"}).encode()
OF_CURL = {"content-type": "application/x-www-form-urlencoded"}


# --- what is accepted -------------------------------------------------------------------------------------------------


async def test_json_is_accepted_with_and_without_its_type(served: Any) -> None:
    """Plain or gzip. An id that could break a header or a log line is replaced."""
    for content, headers in (
        (GOOD, {}), (GOOD, {"content-type": "application/json; charset=utf-8"}),
        (GOOD, {"content-type": "application/vnd.api+json"}),
        (gzip.compress(GOOD, mtime=0), {**JSON, "content-encoding": "gzip"}),
    ):  # fmt: skip
        reply = await served.client.post("/serve/e", content=content, headers={**headers, "x-request-id": "a" * 500})
        assert (200, 16) == (reply.status_code, len(reply.headers["x-request-id"]))


async def test_hugging_face_body_gets_hugging_face_answer(served: Any) -> None:
    """A single text is answered with a list of lists, as Hugging Face's servers do; with Infinity's stage times."""
    one = await served.client.post("/serve/e", json={"inputs": "good", "parameters": {"top_k": None}})
    many = await served.client.post("/serve/e", json={"inputs": ["good", "bad"], "parameters": {"top_k": 1}})
    assert [["GOOD", "BAD"]] == [[r["label"] for r in row] for row in one.json()]
    assert [["GOOD"], ["BAD"]] == [[r["label"] for r in row] for row in many.json()]
    only = await served.client.post("/predict", json={"inputs": "good"})
    assert "GOOD" == only.json()[0][0]["label"]
    assert float(only.headers["x-compute-time"]) > 0
    assert "BAD" == (await served.client.post("/predict", json={"text": "bad"})).json()["label"]


async def test_predict_calls_the_canary_over_all_versions(stack: Any) -> None:
    """A canary over all versions counts as one endpoint."""
    for version in "12":
        stack.deploy("e", f"m{version}", version=version)
    stack.registry.canary["e"] = {"endpoint": "e", "weights": [0.5, 0.5], "load_endpoints": ["e/1", "e/2"]}
    await stack.served("e/1", "e/2")
    await stack.until(lambda: "e" in stack.gateway.table.current.canaries)
    assert (await stack.client.post("/predict", json={"inputs": "good"})).headers["x-route"] in ("stable", "canary")


# --- what is refused --------------------------------------------------------------------------------------------------

MALFORMED = (400, "malformed_body")
REFUSED = (422, "input_refused")
TYPE = (415, "unsupported_media")
TIMEOUT = "x-request-timeout-ms"


OWN: list[tuple[Any, dict[str, str], tuple[int, str]]] = [
    (b"{", {}, MALFORMED), (b"", {}, MALFORMED), (b'{"text": "\xff"}', {}, MALFORMED),
    (b'{"text": "\\ud800"}', {}, MALFORMED), (b'{"text": NaN}', {}, MALFORMED), (b"[" * 100_000, {}, MALFORMED),
    (b"not gzip", {"content-encoding": "gzip"}, MALFORMED), (GOOD, {"content-type": "text/plain"}, TYPE),
    ('{"text": "é"}'.encode("latin-1"), {"content-type": "application/json; charset=latin-1"}, MALFORMED),
    (GOOD, OF_CURL, TYPE),
    (GOOD, {"content-encoding": "br"}, TYPE),
    (b"[]", {}, REFUSED), (b"null", {}, REFUSED), (b'"text"', {}, REFUSED), ({}, {}, REFUSED),
    ({"text": 5}, {}, REFUSED), ({"text": None}, {}, REFUSED), ({"text": ""}, {}, REFUSED),
    ({"text": "  \n"}, {}, REFUSED), ({"text": []}, {}, REFUSED), ({"text": ["good", 1]}, {}, REFUSED),
    ({"text": "good", "nonsense": 1}, {}, REFUSED),
    (GOOD, {TIMEOUT: "soon"}, (400, "bad_request")), (GOOD, {TIMEOUT: "-5"}, (400, "bad_request")),
    (GOOD, {TIMEOUT: "9" * 400}, (400, "bad_request")),
]  # fmt: skip


async def test_each_invalid_request_gets_a_4xx_with_its_code(served: Any) -> None:
    """As a JSON body with the request's id, without a traceback."""
    for content, headers, expected in OWN:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        reply = await served.client.post("/serve/e", content=raw, headers={**JSON, **headers})
        body = reply.json()
        assert expected == (reply.status_code, body["code"]), (content, headers)
        assert body["request_id"] == reply.headers["x-request-id"]
        assert body["error"]
        assert "Traceback" not in reply.text


OF_OTHERS: list[tuple[str, Any, int, str]] = [
    ("/serve/e", {"inputs": "good", "parameters": []}, 422, "parameters"),
    ("/v1/embeddings", {"model": "e", "input": "good", "truncate_prompt_tokens": 3}, 400, "truncate_prompt_tokens"),
    ("/v1/models/e:predict", {"inputs": ["good"]}, 400, "field instances"),
    ("/v1/embeddings", {"inputs": "good"}, 400, "field input"),
    ("/v1/completions", {"model": "e", "messages": []}, 400, "field prompt"),
    ("/v1/chat/completions", {"model": "e", "prompt": "good"}, 400, "field messages"),
    ("/v1/rerank", {"model": "e", "query": "good", "texts": ["a"]}, 400, "field documents"),
]


async def test_a_body_of_another_api_is_told_which_field_is_wrong(served: Any) -> None:
    """Wanted and not there, or there and not known."""
    for path, body, status, names in OF_OTHERS:
        reply = await served.client.post(path, json=body)
        assert (status, True) == (reply.status_code, names in reply.text), (path, reply.text)


POSTED = ("/serve/e", "/embed", "/v1/embeddings", "/v1/feedback", "/v2/models/e/infer", "/v2/repository/index")
GOT = ("/v2/models/e", "/v1/models/e", "/info", "/v1/status", "/v1/endpoints/e/lineage", "/readyz", "/")


async def test_a_wrong_method_is_told_the_right_one(served: Any) -> None:
    """In the body and in the header `allow`."""
    for allowed, paths, wrong in (("POST", POSTED, ("GET", "DELETE")), ("GET", GOT, ("POST", "DELETE"))):
        for path in paths:
            for method in wrong:
                reply = await served.client.request(method, path)
                assert (405, allowed) == (reply.status_code, reply.headers["allow"]), (method, path)


async def test_addresses_that_name_nothing_are_refused(served: Any) -> None:
    """With a hint, in the form of the protocol."""
    for path in ("/v1/endpoints/e/nonsense", "/nothing/here", "/v1/responses", "/embeddings"):
        reply = await served.client.post(path, json={})
        assert (404, "endpoint_not_found") == (reply.status_code, reply.json()["code"])
        assert f"nothing is at {path}" == reply.json()["error"]
        assert "ends in /v1" in reply.json()["hint"]
    for path in ("/v2/models/nobody", "/v2/models/e/versions/9", "/v2/models/nobody/ready", "/v1/models/nobody",
                 "/v2/models/e/nothing"):  # fmt: skip
        reply = await served.client.get(path)
        assert (404, True) == (reply.status_code, "error" in reply.json())
    assert 200 == (await served.client.get("/v2/models/e/versions/1")).status_code
    assert 400 == (await served.client.post("/v2/repository/models/e/load")).status_code


async def test_a_caller_bounds_the_time(served: Any) -> None:
    """By its header, or by the protocol's `timeout` (microseconds): 504, in the protocol's error form."""
    served.backend.hold = asyncio.Event()
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}
    timed = {"inputs": [tensor], "parameters": {"timeout": 50_000}}
    for path, body, headers in (("/v2/models/e/infer", timed, {}), ("/serve/e", {"text": "good"}, {TIMEOUT: "50"})):
        reply = await served.client.post(path, json=body, headers=headers)
        assert (504, "deadline_exceeded") == (reply.status_code, reply.json()["code"])
    served.backend.hold.set()


async def test_backend_failures_have_their_status(served: Any) -> None:
    """For a text task, an error of Triton is never a 4xx (except 429, contention) and never a 500."""
    for failure, status in (
        (BackendUnavailable("gone"), 503), (Overloaded("full"), 429), (DeadlineExceeded("late"), 504),
        (BackendGarbage("odd"), 502), (BackendRefused("no"), 502),
    ):  # fmt: skip
        served.backend.fail_with = failure
        reply = await served.client.post("/serve/e", json={"text": "good"})
        assert (status, status in (429, 503, 504)) == (reply.status_code, "retry-after" in reply.headers)
