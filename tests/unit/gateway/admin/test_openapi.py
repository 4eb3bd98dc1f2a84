"""The OpenAPI document, with an example of each endpoint."""

from __future__ import annotations

import json
from typing import Any

from tests.words import text_bundle


async def test_inference_comes_first_and_refusals_have_one_schema(served: Any) -> None:
    """As a newcomer reads `/docs`. FastAPI's 422 is no answer of any route."""
    document = (await served.client.get("/openapi.json")).json()
    assert "inference" == document["tags"][0]["name"]
    assert ["Error"] == list(document["components"]["schemas"])
    refusals = [
        content["schema"] for path in document["paths"].values() for one in path.values()
        for code, answer in one["responses"].items() if code == "default" or code >= "400"
        for content in answer.get("content", {}).values()
    ]  # fmt: skip
    assert {"#/components/schemas/Error"} == {schema["$ref"] for schema in refusals if schema}


async def test_example_of_a_task_is_a_sentence_whatever_the_bundles_samples_are(stack: Any) -> None:
    """They are texts that find faults, the shortest first."""
    bundle = text_bundle(stack.folder / "bundle", max_position_embeddings=32)
    (bundle / "warmup.json").write_text(json.dumps({"samples": [{"body": {"text": "?"}}]}))
    stack.add_package("m3", bundle)
    stack.deploy("e", "m3")
    await stack.served("e")
    operation = (await stack.client.get("/openapi.json")).json()["paths"]["/serve/e"]["post"]
    assert {"text": "I like this very much."} == operation["requestBody"]["content"]["application/json"]["example"]
