"""Schemas of endpoints: tasks, examples of bundles, and one document per swap."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.admin.schemas import of_value, request_schema, response_schema
from preprocessing.heads import HEADS


@pytest.mark.parametrize("task", sorted(HEADS))
def test_every_task_has_schemas(task: str) -> None:
    """A new task needs them too."""
    details = {"task": task, "parameters": ["top_k"], "example_answer": {"label": "GOOD", "tokens": 3}}
    asked, (one, several) = request_schema(details), response_schema(details)["anyOf"]
    assert {*asked["required"], "parameters"} == set(asked["properties"])
    texts = {"ranking": ["query", "documents"], "question-answering": ["question", "context"]}
    assert texts.get(task, ["text"]) == asked["required"]
    parameters = asked["properties"]["parameters"]
    assert (False, False, ["top_k"]) == (
        asked["additionalProperties"], parameters["additionalProperties"], [*parameters["properties"]],
    )  # fmt: skip
    assert ({"type": "number"}, "array") == (
        one["properties"]["tokens"], several["properties"]["tokens"]["type"]
    )  # fmt: skip


def test_schema_of_an_example_has_its_types() -> None:
    """For endpoints that are described only by an example."""
    assert {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "number"}}, "b": {"type": "boolean"}, "c": {}},
    } == of_value({"a": [1], "b": True, "c": None})


async def test_document_is_written_once_per_swap(stack: Any) -> None:
    """The same object is returned until the served versions change."""
    stack.deploy("one", "m1")
    await stack.served("one")
    app = stack.gateway._ops
    first = app.openapi()
    assert first is app.openapi()
    stack.deploy("two", "m2")
    await stack.served("one", "two")
    second = app.openapi()
    assert second is not first
    assert {"/serve/one", "/serve/two"} <= set(second["paths"])


async def test_inference_comes_first_and_refusals_have_one_schema(served: Any) -> None:
    """As a newcomer reads `/docs`. FastAPI's 422 is no answer of any route."""
    document = (await served.client.get("/openapi.json")).json()
    assert "inference" == document["tags"][0]["name"]
    used = {tag for path in document["paths"].values() for one in path.values() for tag in one["tags"]}
    assert used == {tag["name"] for tag in document["tags"]}
    assert ["Error", "Label", "Labels"] == list(document["components"]["schemas"])
    refusals = [
        content["schema"] for path in document["paths"].values() for one in path.values()
        for code, answer in one["responses"].items() if code >= "400"
        for content in answer.get("content", {}).values()
    ]  # fmt: skip
    assert refusals
    assert {"#/components/schemas/Error"} == {schema["$ref"] for schema in refusals if schema}


async def test_example_of_a_task_is_a_sentence_whatever_the_bundles_samples_are(stack: Any) -> None:
    """They are texts that find faults, the shortest first. The version's own answer is shown with the example."""
    sample = {"samples": [{"body": {"text": "?"}}]}
    stack.add_text_model("m1")
    bundle = stack.folder / "with-sample"
    _unzip(stack, "m1", bundle)
    (bundle / "warmup.json").write_text(json.dumps(sample))
    stack.add_package("m3", bundle)
    stack.deploy("e", "m3")
    await stack.served("e")
    operation = (await stack.client.get("/openapi.json")).json()["paths"]["/serve/e"]["post"]
    assert {"text": "I like this very much."} == operation["requestBody"]["content"]["application/json"]["example"]
    answered = operation["responses"]["200"]["content"]["application/json"]
    assert answered["example"]["label"] in ("BAD", "GOOD")
    assert {"type": "string"} == answered["schema"]["anyOf"][0]["properties"]["label"]


def _unzip(stack: Any, model_id: str, folder: Any) -> None:
    import zipfile

    folder.mkdir()
    with zipfile.ZipFile(stack.folder / f"{model_id}.zip") as packed:
        packed.extractall(folder)
