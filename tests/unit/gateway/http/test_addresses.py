"""Wrong addresses, methods, content types and bodies: each refusal says what to do, in the form of the API."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("path", ["/v1/endpoints/e/nonsense", "/nothing/here", "/v1/responses", "/embeddings"])
async def test_unknown_addresses_are_refused_with_a_hint(stack: Any, path: str) -> None:
    """Where the endpoints are listed, and what the base URL of an OpenAI client is."""
    reply = await stack.client.post(path, json={})
    assert (404, "endpoint_not_found") == (reply.status_code, reply.json()["code"])
    assert f"nothing is at {path}" == reply.json()["error"]
    assert "ends in /v1" in reply.json()["hint"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/serve/e", "POST"),
        ("DELETE", "/serve/e", "POST"),
        ("GET", "/predict", "POST"),
        ("GET", "/embed", "POST"),
        ("GET", "/tei/e/embed", "POST"),
        ("GET", "/v1/embeddings", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("GET", "/v1/rerank", "POST"),
        ("GET", "/v1/feedback", "POST"),
        ("GET", "/v1/models/e:predict", "POST"),
        ("GET", "/v2/models/e/infer", "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("POST", "/v2/models/e", "GET"),
        ("POST", "/v1/models", "GET"),
        ("DELETE", "/v1/models/e", "GET"),
        ("POST", "/info", "GET"),
        ("POST", "/v1/status", "GET"),
        ("POST", "/v1/endpoints/e/lineage", "GET"),
        ("POST", "/metrics", "GET"),
        ("POST", "/v2", "GET"),
        ("POST", "/readyz", "GET"),
        ("DELETE", "/", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(served: Any, method: str, path: str, allowed: str) -> None:
    """In the body and in the header `allow`."""
    reply = await served.client.request(method, path)
    assert (405, allowed) == (reply.status_code, reply.headers["allow"])
    assert f"use {allowed}" in reply.text


FORMS = [
    ("/serve/e", '{"text": '),
    ("/predict", '{"text": '),
    ("/embed", '{"inputs": '),
    ("/rerank", '{"query": '),
    ("/similarity", '{"inputs": {'),
    ("/decode", '{"ids": '),
    ("/tei/e", '{"inputs": '),
    ("/tei/e/rerank", '{"query": '),
    ("/tei/e/v1/embeddings", '{"model": "NAME", "input": '),
    ("/v1/embeddings", '{"model": "NAME", "input": '),
    ("/v1/completions", '{"model": "NAME", "prompt": '),
    ("/v1/chat/completions", '{"model": "NAME", "messages": '),
    ("/serve/e/v1/chat/completions", '{"model": "NAME", "messages": '),
    ("/v1/rerank", '{"model": "NAME", "query": '),
    ("/tei/e/v2/rerank", '{"model": "NAME", "query": '),
]


def said(reply: Any) -> str:
    """Return what a refusal says, in any form."""
    body = reply.json()
    error = body.get("error", body.get("message"))
    return f"{error['message'] if isinstance(error, dict) else error} {body.get('hint', '')}"


@pytest.mark.parametrize(("path", "form"), FORMS)
async def test_a_wrong_content_type_is_told_a_body_of_the_address(served: Any, path: str, form: str) -> None:
    """Each address shows its own form, also for an empty body."""
    of_curl = {"content-type": "application/x-www-form-urlencoded"}
    reply = await served.client.post(path, content=b"a=b", headers=of_curl)
    assert 415 == reply.status_code
    assert "content-type: application/json" in said(reply)
    assert form in said(reply)
    assert form in said(await served.client.post(path, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    ("path", "body", "wanted", "unread"),
    [
        ("/v1/embeddings", {"inputs": "good"}, "input", "inputs"),
        ("/v1/embeddings", {"model": "e", "text": "good"}, "input", "text"),
        ("/v1/completions", {"model": "e", "inputs": "good"}, "prompt", "inputs"),
        ("/v1/completions", {"model": "e", "messages": []}, "prompt", "messages"),
        ("/v1/chat/completions", {"model": "e", "prompt": "good"}, "messages", "prompt"),
        ("/v1/rerank", {"model": "e", "query": "good", "texts": ["a"]}, "documents", "texts"),
        ("/v1/models/e:predict", {"inputs": ["good"]}, "instances", "inputs"),
        ("/embed", {"input": "good"}, "inputs", "input"),
        ("/embed", {"text": "good"}, "inputs", "text"),
        ("/tei/e/predict", {"text": "good"}, "inputs", "text"),
        ("/rerank", {"query": "good", "documents": ["a"]}, "texts", "documents"),
        ("/decode", {"inputs": "good"}, "ids", "inputs"),
    ],
)
async def test_a_body_of_another_api_is_told_which_field_is_wanted(
    served: Any, path: str, body: Any, wanted: str, unread: str
) -> None:
    """And which of its fields is not read there."""
    reply = await served.client.post(path, json=body)
    assert reply.status_code in (400, 422)
    assert f"the field {wanted} is missing; this address does not read {unread}" in said(reply)
    assert f'"{wanted}": ' in said(reply)
