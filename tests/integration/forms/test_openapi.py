"""The OpenAPI document against the real gateway: every example is answered."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.texts]


def test_every_example_is_answered(stack: Any) -> None:
    """Requests to all deployed endpoints and canaries."""
    with httpx.Client(base_url=stack.url) as client:
        document = client.get("/openapi.json").json()
        tried = set()
        for path, item in document["paths"].items():
            operation = item.get("post")
            if not path.startswith("/serve/") or operation is None or "{" in path:
                continue
            content = operation["requestBody"]["content"]["application/json"]
            if "example" not in content:
                assert path in ("/serve/tokens", "/serve/team/identity"), path
                continue
            reply = client.post(path, json=content["example"])
            assert 200 == reply.status_code, (path, reply.text)
            tried.add(path)
        deployed = ("live", "sentiment/1", "sentiment/2", "vectors", "story", "ner", "qa", "mask", "zero", "rank")
        assert {f"/serve/{name}" for name in deployed} == tried
