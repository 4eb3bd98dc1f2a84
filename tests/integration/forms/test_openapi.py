"""The OpenAPI document against the real gateway: every example is answered, and every answer fits its schema."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.texts]


def plain(schema: Any) -> Any:
    """OpenAPI 3.0's dialect as JSON Schema: `nullable` as a type of its own."""
    if isinstance(schema, list):
        return [plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: plain(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [found, {"type": "null"}]} if schema.get("nullable") is True else found


def test_every_example_is_answered_as_its_schema_says(stack: Any) -> None:
    """Requests and answers of all deployed endpoints and canaries; examples of answers too."""
    with httpx.Client(base_url=stack.url) as client:
        document = client.get("/openapi.json").json()
        tried = set()
        for path, item in document["paths"].items():
            operation = item.get("post")
            if not path.startswith("/serve/") or operation is None or "{" in path:
                continue
            content = operation["requestBody"]["content"]["application/json"]
            answered = operation["responses"]["200"]["content"]["application/json"]
            assert content["schema"], path
            if "example" not in content:
                assert path in ("/serve/tokens", "/serve/team/identity"), path
                continue
            jsonschema.validate(content["example"], plain(content["schema"]))
            reply = client.post(path, json=content["example"])
            assert 200 == reply.status_code, (path, reply.text)
            for answer in (reply.json(), answered["example"]):
                jsonschema.validate(answer, plain(answered["schema"]))
            tried.add(path)
        deployed = ("live", "sentiment/1", "sentiment/2", "vectors", "story", "ner", "qa", "mask", "zero", "rank")
        assert {f"/serve/{name}" for name in deployed} == tried


@pytest.mark.parametrize(
    ("path", "body", "fits"),
    [
        ("/serve/live", {"text": ["a", "b"], "parameters": {"top_k": 1}}, True),
        ("/serve/live", {"text": "a", "text_pair": "b"}, True),
        ("/serve/live", {"text": "a", "parameters": {"nonsense": 1}}, False),
        ("/serve/live", {"texts": "a"}, False),
        ("/serve/vectors", {"text": [], "parameters": {}}, False),
        ("/serve/vectors", {"text": ["a"], "parameters": {"normalize": False}}, True),
        ("/serve/story", {"text": "a", "stream": False, "parameters": {"max_new_tokens": 2}}, True),
        ("/serve/story", {"text": "a", "parameters": {"top": 0}}, False),
    ],
)
def test_schema_and_endpoint_agree_on_what_is_taken(stack: Any, path: str, body: Any, fits: bool) -> None:
    """What the schema takes is answered, and fits the answer's schema; what it does not is refused."""
    operation = httpx.get(f"{stack.url}/openapi.json").json()["paths"][path]["post"]
    schema = plain(operation["requestBody"]["content"]["application/json"]["schema"])
    assert fits is jsonschema.Draft7Validator(schema).is_valid(body)
    reply = httpx.post(stack.url + path, json=body)
    assert (200 if fits else 422) == reply.status_code
    if fits:
        answered = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(reply.json(), plain(answered))
