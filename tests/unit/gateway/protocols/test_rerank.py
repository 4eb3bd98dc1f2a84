"""Cohere's and Jina's rerank requests, over a gateway of fakes."""

from __future__ import annotations

from typing import Any

from tests.unit.gateway.protocols.conftest import serve_all

REFUSED = [
    ({"model": "rank", "query": "a", "documents": []}, 400, "`documents` cannot be empty"),
    ({"model": "rank", "query": "a", "documents": ["b"], "top_n": 0}, 400, "top_n"),
    ({"model": "rank", "query": "a", "documents": ["b"], "max_chunks_per_doc": 10}, 400, "max_chunks_per_doc is not"),
    ({"model": "rank", "query": "a", "documents": ["b"], "max_tokens_per_doc": 8}, 400, "gateway.max_length=8"),
    ({"model": "rank", "query": "a", "documents": [{"title": "b"}]}, 400, "must be a string"),
    ({"model": "labels", "query": "a", "documents": ["b"]}, 400, "labels does text-classification, not ranking"),
    ([], 404, "serves only one endpoint"),
]
"""What is asked of `/v1/rerank`, and the status and words of the answer."""


async def test_one_answer_serves_both_clients(served: Any) -> None:
    """It has Jina's documents and Cohere's ids. Scores are from 0 to 1, the best first."""
    body = {"model": "rank", "query": "hello", "documents": ["bad", {"text": "film film"}, "film"]}
    found = (await served.client.post("/v1/rerank", json=body)).json()
    assert {"id", "model", "results", "usage", "meta"} == set(found)
    assert [1, 2, 0] == [result["index"] for result in found["results"]]
    assert {"text": "film film"} == found["results"][0]["document"]
    assert all(0 < result["relevance_score"] < 1 for result in found["results"])
    assert found["usage"]["total_tokens"] == found["meta"]["tokens"]["input_tokens"] > 0
    second = (await served.client.post("/v2/rerank", json={**body, "top_n": 2, "max_tokens_per_doc": 4096})).json()
    assert [{"index", "relevance_score"}] * 2 == [set(result) for result in second["results"]]
    assert "2" == second["meta"]["api_version"]["version"]


async def test_without_a_model_the_only_endpoint_answers(stack: Any) -> None:
    """Also for a body of Text Embeddings Inference, which has the same route."""
    await serve_all(stack, "rank")
    found = await stack.client.post("/v1/rerank", json={"query": "a", "documents": ["film"]})
    assert ("rank", 0) == (found.json()["model"], found.json()["results"][0]["index"])
    found = await stack.client.post("/v1/rerank", json={"query": "a", "texts": ["film"]})
    assert [{"index", "score"}] == [set(rank) for rank in found.json()]


async def test_refusals_have_coheres_form(served: Any) -> None:
    """`{"id", "message"}`, and Jina's `detail`."""
    for body, status, says in REFUSED:
        reply = await served.client.post("/v1/rerank", json=body)
        assert status == reply.status_code, (body, reply.text)
        assert {"id", "message", "detail"} == set(reply.json())
        assert says in reply.json()["message"], (body, reply.text)
