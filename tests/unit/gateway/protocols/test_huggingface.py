"""Parameters of Hugging Face's pipelines: each is supported, or refused by name with an alternative."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocols import huggingface

DONE = [
    ("text-classification", {"truncation": True, "padding": "max_length"}, {"truncate": True}),
    ("text-classification", {"truncation": "do_not_truncate"}, {"truncate": False}),
    ("text-classification", {"max_length": 512}, {"max_length": 512}),
    ("text-classification", {"function_to_apply": "default", "num_beams": 1}, {}),
    ("text-classification", {"raw_scores": True}, {"function_to_apply": "none"}),
    ("sentence-embeddings", {"truncation_direction": "Right"}, {"truncation_direction": "right"}),
    ("question-answering", {"top_k": 2, "max_question_len": 64}, {"top_k": 2}),
    ("text-generation", {"stop_sequences": ["x"], "num_beams": 1, "use_cache": True, "length_penalty": 1.0, "top_k": 5},
     {"stop": ["x"], "top_k": 5}),
]  # fmt: skip
"""Task, a pipeline's parameters, and ours."""
REFUSED = [
    ("labels", {"num_beams": 4}), ("labels", {"generate_parameters": {"max_length": 5}}), ("labels", {"use_cache": 1}),
    ("labels", {"truncation": "sideways"}), ("labels", {"padding": 1}), ("vectors", {"return_tensors": True}),
    ("vectors", {"function_to_apply": "default "}), ("tokens", {"max_time": 3}),
]  # fmt: skip
"""Endpoint, and a parameter that it does not have."""


@pytest.mark.parametrize(("task", "given", "ours"), DONE)
def test_supported_parameters_are_translated(task: str, given: dict[str, Any], ours: dict[str, Any]) -> None:
    """They get our name. Values that ask for nothing are left out."""
    inputs = {"question": "a", "context": "b"} if task == "question-answering" else "good"
    body, _ = huggingface.read(task, {"inputs": inputs, "parameters": given})
    assert ours == body.get("parameters", {})


async def test_long_texts_are_cut_or_refused_as_the_request_says(served: Any) -> None:
    """`truncation` false refuses a long text. A `max_length` below the endpoint's is refused by name."""
    long = "good " * 50
    for parameters, status, said in (
        ({"truncation": True}, 200, ""), ({"truncation": False}, 422, "longer than the 32 tokens"),
        ({"max_length": 512}, 200, ""), ({"max_length": 8}, 422, "gateway.max_length=8"),
    ):  # fmt: skip
        reply = await served.client.post("/serve/labels", json={"inputs": long, "parameters": parameters})
        assert (status, True) == (reply.status_code, said in reply.text)
    for text, status in (("good", 200), (long, 422)):
        ours = {"text": text, "parameters": {"truncate": False}}
        assert status == (await served.client.post("/serve/labels", json=ours)).status_code


async def test_unsupported_parameters_are_refused_by_name(served: Any) -> None:
    """None is ignored in silence."""
    for endpoint, given in REFUSED:
        reply = await served.client.post(f"/serve/{endpoint}", json={"inputs": "good", "parameters": given})
        assert (422, True) == (reply.status_code, next(iter(given)) in reply.json()["error"])


async def test_a_task_that_the_endpoint_does_not_do_is_refused(served: Any) -> None:
    """Otherwise a request for a summary would be answered with labels: the bodies are the same."""
    asked = "/serve/labels/pipeline/summarization"
    reply = await served.client.post(asked, json={"inputs": "good"})
    assert (422, "this endpoint's task is text-classification, not summarization") == (
        reply.status_code, reply.json()["error"],
    )  # fmt: skip
    for path in ("labels/pipeline/text-classification", "vectors/pipeline/feature-extraction"):
        assert 200 == (await served.client.post(f"/serve/{path}", json={"inputs": "good"})).status_code


async def test_ranking_takes_pairs(served: Any) -> None:
    """A list of pairs gets one score each, in the order of the request, as from a pair classifier."""
    pairs = [{"text": "a", "text_pair": "bad"}, {"text": "a", "text_pair": "film film"}]
    found = (await served.client.post("/serve/rank", json={"inputs": pairs})).json()
    assert [["LABEL_0"], ["LABEL_0"]] == [[p["label"] for p in row] for row in found]
    assert found[0][0]["score"] < found[1][0]["score"]
    assert [found[1]] == (await served.client.post("/serve/rank", json={"inputs": pairs[1]})).json()
    nested = (await served.client.post("/serve/rank", json={"inputs": [["a", "bad"], ["a", "film film"]]})).json()
    assert found == nested
    for inputs in ([{"text": "a"}], [["a"]], [], "a", {"query": "a", "documents": ["b"]}):
        assert 422 == (await served.client.post("/serve/rank", json={"inputs": inputs})).status_code


async def test_the_v1_protocol_ignores_the_content_type(served: Any) -> None:
    """`curl -d` sends a form's content type, and documented examples use it."""
    reply = await served.client.post(
        "/v1/models/labels:predict", content=b'{"instances": ["good"]}',
        headers={"content-type": "application/x-www-form-urlencoded"},
    )  # fmt: skip
    assert (200, "GOOD") == (reply.status_code, reply.json()["predictions"][0]["label"])
