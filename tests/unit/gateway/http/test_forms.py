"""Other APIs' request forms over a gateway of fakes: shapes, their own refusals, and the common pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.gateway.conftest import answering


async def test_hugging_face_body_gets_hugging_face_answer(served: Any) -> None:
    """A single text is answered with a list of lists, as Hugging Face's servers do."""
    one = await served.client.post("/serve/e", json={"inputs": "good", "parameters": {"top_k": None}})
    many = await served.client.post("/serve/e", json={"inputs": ["good", "bad"], "parameters": {"top_k": 1}})
    assert [["GOOD", "BAD"]] == [[r["label"] for r in row] for row in one.json()]
    assert [["GOOD"], ["BAD"]] == [[r["label"] for r in row] for row in many.json()]
    assert "e" == one.headers["x-served-by"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inputs": "good", "nonsense": 1}, "Unknown parameter nonsense"),
        ({"inputs": "good", "parameters": []}, "parameters must be an object"),
        ({"inputs": "good", "options": {"x": 1}}, "unknown field x"),
        ({"inputs": 7}, "text"),
        ({"inputs": "good", "parameters": {"nonsense": 1}}, "Unknown parameter"),
    ],
)
async def test_wrong_hugging_face_bodies_are_refused(served: Any, body: Any, says: str) -> None:
    """With 422 and the reason."""
    reply = await served.client.post("/serve/e", json=body)
    assert 422 == reply.status_code
    assert says in reply.json()["error"]


async def test_a_hook_gets_the_field_inputs_unchanged(stack: Any) -> None:
    """A hook may have a field of that name."""
    stack.add_hook("h", answering("body"))
    await stack.served("h")
    assert {"inputs": [1]} == (await stack.client.post("/serve/h", json={"inputs": [1]})).json()


async def test_predict_answers_for_the_only_endpoint(served: Any) -> None:
    """With the stage times that Hugging Face Infinity had."""
    reply = await served.client.post("/predict", json={"inputs": "good"})
    assert "GOOD" == reply.json()[0][0]["label"]
    assert float(reply.headers["x-compute-time"]) > 0
    ours = await served.client.post("/predict", json={"text": "bad"})
    assert "BAD" == ours.json()["label"]


async def test_predict_calls_the_canary_over_all_versions(stack: Any) -> None:
    """A canary over all versions counts as one endpoint."""
    stack.deploy("e", "m1", version="1")
    stack.deploy("e", "m2", version="2")
    stack.registry.canary["e"] = {"endpoint": "e", "weights": [0.5, 0.5], "load_endpoints": ["e/1", "e/2"]}
    await stack.served("e/1", "e/2")
    await stack.until(lambda: "e" in stack.gateway.table.current.canaries)
    assert (await stack.client.post("/predict", json={"inputs": "good"})).headers["x-route"] in ("stable", "canary")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/repository/models/e/load", 400),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/e/versions/9", 404),
        ("GET", "/v2/models/e/versions/1", 200),
        ("GET", "/v2/models/nobody/ready", 404),
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v2/models/e/nothing", 404),
    ],
)
async def test_paths_and_methods_of_the_protocols(served: Any, method: str, path: str, status: int) -> None:
    """Errors are JSON objects with `error`."""
    reply = await served.client.request(method, path)
    assert status == reply.status_code
    if status >= 400:
        assert "error" in reply.json()


async def test_protocol_parameters_bound_the_time(served: Any) -> None:
    """`timeout` (microseconds) ends a request with 504, in the protocol's error form."""
    served.backend.latency = 1
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["good"]}
    reply = await served.client.post("/v2/models/e/infer", json={"inputs": [tensor], "parameters": {"timeout": 50_000}})
    assert (504, "deadline_exceeded") == (reply.status_code, reply.json()["code"])


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/embeddings", {"model": "e", "input": "good"}), ("/v1/models/e:predict", {"instances": ["good"]})],
)
async def test_unknown_fields_under_v1_are_refused_by_name(served: Any, path: str, body: dict[str, Any]) -> None:
    """They were ignored."""
    reply = await served.client.post(path, json={**body, "truncate_prompt_tokens": 3})
    assert 400 <= reply.status_code < 500
    assert "unknown field truncate_prompt_tokens" in reply.text
