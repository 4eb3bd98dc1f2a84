"""Text Embeddings Inference's API over a gateway of fakes: the shapes, statuses and errors that its clients know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.path.routing import Snapshot
from gateway.protocols.tei import only
from tests.unit.gateway.protocols.conftest import BAD, FILM, GOOD

LABELS = [{"label": "GOOD", "score": 2}, {"label": "BAD", "score": 0}]
OF_BAD = [{"label": "BAD", "score": 1}, {"label": "GOOD", "score": 0}]
SPECIALS = {"special": True, "start": None, "stop": None}
RAW = {"raw_scores": True}
ORDER = {"query": "hello", "texts": ["bad", "film film", "film"], **RAW}
ANSWERED: list[tuple[str, Any, Any]] = [
    ("vectors/embed", {"inputs": "good film", "normalize": False}, [[1, 0, 1, 2]]),
    ("vectors/embed", {"inputs": "good film", "dimensions": 2}, [[1, 0]]),
    ("vectors/embed", {"inputs": "good film", "dimensions": 3, "normalize": False, "truncation_direction": "Right"},
     [[1, 0, 1]]),
    ("vectors/embed", {"inputs": ["film"], "prompt_name": "query", "normalize": False}, [[1, 0, 1, 2]]),
    ("vectors/embed", {"inputs": [[2, GOOD, FILM, 3], [2, 3]], "normalize": False}, [[1, 0, 1, 2], [0, 0, 0, 0]]),
    ("vectors/embed", {"inputs": [2, BAD, 3]}, [[0, pytest.approx(0.5**0.5), 0, pytest.approx(0.5**0.5)]]),
    ("tokens/embed_all", {"inputs": "good"}, [[[2, 2], [GOOD, GOOD], [3, 3]]]),
    ("rank/rerank", ORDER, [{"index": 1, "score": 1}, {"index": 2, "score": 0}, {"index": 0, "score": -1}]),
    ("rank/rerank", {"query": "a", "texts": ["film film"], "return_text": True},
     [{"index": 0, "text": "film film", "score": pytest.approx(1 / (1 + np.exp(-1)))}]),
    # Here a list of two texts is a pair. At our own `/predict` it is two texts.
    ("labels/predict", {"inputs": "good good", **RAW}, LABELS),
    ("labels/predict", {"inputs": ["good", "good"], **RAW}, LABELS),
    ("labels/predict", {"inputs": [["good good"], ["bad"]], **RAW}, [LABELS, OF_BAD]),
    ("labels/predict", {"inputs": [["good", "good"]], **RAW}, [LABELS]),
    ("rank/predict", {"inputs": ["hello", "film film"], **RAW}, [{"label": "LABEL_0", "score": 1}]),
    # Hugging Face's client sends an object beside the inputs, often empty, to the root path, which does the task.
    ("labels", {"inputs": "good good", "parameters": {"raw_scores": True, "truncate": None}}, LABELS),
    ("vectors/", {"inputs": ["good film"], "normalize": False}, [[1, 0, 1, 2]]),
    ("rank", {"query": "a", "texts": ["film"], **RAW}, [{"index": 0, "score": 0}]),
    ("vectors", {"inputs": {"source_sentence": "good film", "sentences": ["film good", "bad"]}},
     [pytest.approx(1), pytest.approx(2 / 12**0.5)]),
    ("vectors/similarity", {"inputs": {"source_sentence": "good", "sentences": ["film"]},
                            "parameters": {"prompt_name": "query", "truncate": True}}, [pytest.approx(0.75**0.5)]),
    # Tokens beyond the model's length, too; positions are byte offsets in UTF-8.
    ("vectors/tokenize", {"inputs": "good film"}, [[
        {"id": 2, "text": "[CLS]", **SPECIALS}, {"id": GOOD, "text": "good", "special": False, "start": 0, "stop": 4},
        {"id": FILM, "text": "film", "special": False, "start": 5, "stop": 9}, {"id": 3, "text": "[SEP]", **SPECIALS},
    ]]),
    ("vectors/tokenize", {"inputs": "中 film", "add_special_tokens": False}, [[
        {"id": 1, "text": "中", "special": False, "start": 0, "stop": 3},
        {"id": FILM, "text": "film", "special": False, "start": 4, "stop": 8},
    ]]),
    ("vectors/tokenize", {"inputs": ["good " * 100], "add_special_tokens": False}, [[
        {"id": GOOD, "text": "good", "special": False, "start": 5 * i, "stop": 5 * i + 4} for i in range(100)
    ]]),
    ("vectors/decode", {"ids": [2, GOOD, FILM, 3]}, ["good film"]),
    ("vectors/decode", {"ids": [[2, GOOD], [FILM]], "skip_special_tokens": False}, ["[CLS] good", "film"]),
]  # fmt: skip
"""What is asked, and the answer."""


async def test_every_route_answers_as_text_embeddings_inference(served: Any) -> None:
    """Texts, pairs, token ids and their batches."""
    for path, body, answer in ANSWERED:
        reply = await served.client.post(f"/tei/{path}", json=body)
        assert (200, answer) == (reply.status_code, reply.json()), (path, body)


REFUSED = [
    ("vectors/embed", {"inputs": []}, 400, "Empty", "`inputs` cannot be empty"),
    ("vectors/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty", "sentences"),
    ("vectors/embed", {"inputs": "good", "nonsense": 1}, 422, "Validation", "unknown field nonsense"),
    ("vectors/embed", [], 422, "Validation", "must be an object"),
    ("vectors/embed", {"inputs": ["good", 7]}, 422, "Validation", "not both"),
    ("vectors/embed", {"inputs": [2, 999]}, 422, "Validation", "vocabulary"),
    ("vectors/embed", {"inputs": "good", "dimensions": 5}, 422, "Validation", "have 4 dimensions, not 5"),
    ("vectors/embed", {"inputs": "good", "prompt_name": "x"}, 422, "Validation", "no prompt of that name"),
    ("vectors/embed", {"inputs": "good " * 50, "truncate": False}, 422, "Validation", "longer than the 32 tokens"),
    ("vectors/embed", {"inputs": "good", "truncation_direction": "left"}, 422, "Validation", "keeps the beginning"),
    ("vectors/tokenize", {"inputs": [7]}, 422, "Validation", "inputs[0] must be a string"),
    ("vectors/decode", {"ids": ["a"]}, 422, "Validation", "list of token ids"),
    ("vectors/predict", {"inputs": "good"}, 424, "Backend", "not a classification model"),
    ("labels/embed", {"inputs": "good"}, 424, "Backend", "not an embedding model"),
    ("vectors/embed_all", {"inputs": "good"}, 424, "Backend", "gateway.task=feature-extraction"),
    ("rank/predict", {"inputs": "good"}, 422, "Validation", "takes pairs"),
    ("labels/predict", {"inputs": [["good"], ["a", "b"]]}, 422, "Validation", "two requests"),
    ("rank/rerank", {"query": "a"}, 422, "Validation", "the field texts is missing"),
    ("nobody/embed", {"inputs": "good"}, 404, "Validation", "does not exist"),
]
"""What is asked, and the status, kind and words of the answer."""


async def test_refusals_have_tei_statuses_and_fields(served: Any) -> None:
    """`{"error", "error_type"}` with the reason; also for invalid JSON and wrong methods."""
    for path, body, status, kind, says in REFUSED:
        reply = await served.client.post(f"/tei/{path}", json=body)
        found = reply.json()
        assert {"error", "error_type"} == set(found)
        assert (status, kind, True) == (reply.status_code, found["error_type"], says in found["error"]), (path, found)
    reply = await served.client.post("/tei/vectors/embed", content=b"{", headers={"content-type": "application/json"})
    assert (400, "Validation") == (reply.status_code, reply.json()["error_type"])
    reply = await served.client.get("/tei/vectors/embed")
    assert (405, "Validation") == (reply.status_code, reply.json()["error_type"])


async def test_a_list_of_tokens_has_a_limit(served: Any) -> None:
    """An answer that would list too many tokens is refused before it is made."""
    from preprocessing.processor import TextProcessor

    processor: TextProcessor = served.gateway.table.current.endpoints["vectors"].text.processor
    with pytest.raises(Exception, match="more than 262144 tokens, which is the most that one answer lists"):
        processor.tokens_of(["good " * 200_000, "good " * 100_000])
    with pytest.raises(Exception, match="more than 1000000 ids"):
        processor.text_of([[2] * 1_000_001])


async def test_info_describes_the_model(served: Any) -> None:
    """It has the fields that clients read."""
    vectors = (await served.client.get("/tei/vectors/info")).json()
    assert ({"embedding": {"pooling": "mean"}}, 32, "vectors") == (
        vectors["model_type"], vectors["max_input_length"], vectors["served_model_name"],
    )  # fmt: skip
    assert {"0": "BAD", "1": "GOOD"} == (await served.client.get("/tei/labels/info")).json()["model_type"][
        "classifier"
    ]["id2label"]
    assert "reranker" in (await served.client.get("/tei/rank/info")).json()["model_type"]
    missing = await served.client.get("/tei/nobody/info")
    assert (404, "Validation") == (missing.status_code, missing.json()["error_type"])


async def test_bare_routes_call_the_only_endpoint(stack: Any) -> None:
    """With several endpoints, the refusal names them and says how to choose."""
    stack.deploy("labels")
    await stack.served("labels")
    assert 200 == (await stack.client.post("/tokenize", json={"inputs": "good"})).status_code
    assert "labels" == (await stack.client.get("/info")).json()["served_model_name"]
    stack.deploy("more")
    await stack.served("labels", "more")
    reply = await stack.client.post("/embed", json={"inputs": "good"})
    assert (404, True) == (reply.status_code, "labels, more" in reply.json()["error"])
    assert 404 == (await stack.client.get("/info")).status_code


def test_versions_behind_one_recorded_default_count_as_one_endpoint() -> None:
    """A bare route then calls the endpoint by its bare name."""
    snapshot = Snapshot(endpoints=dict.fromkeys(["faq/1", "faq/2"], Any), defaults={"faq": "faq/1"})
    assert "faq" == only(snapshot, "/embed")


async def test_openai_and_rerank_routes_exist_below_an_endpoint(served: Any) -> None:
    """Clients that are given `…/tei/NAME` use them there. The path names the model; the body's `model` is ignored."""
    for path, body in (
        ("vectors/v1/embeddings", {"model": "text-embedding-3", "input": "good"}),
        ("rank/v1/rerank", {"model": "x", "query": "a", "documents": ["film"]}),
    ):
        assert path.partition("/")[0] == (await served.client.post(f"/tei/{path}", json=body)).json()["model"]
