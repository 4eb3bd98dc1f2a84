"""Text Embeddings Inference's API over a gateway of fakes: the shapes, statuses and errors that its clients know."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from gateway.errors import EndpointNotFound
from gateway.path.routing import Snapshot
from gateway.protocols.tei import only
from tests.words import SPECIAL, text_bundle

GOOD, BAD, FILM = 4, 5, 6
"""Ids of words; 2 and 3 are put around a text."""
SIZE = 4


def embed(inputs: dict[str, Any]) -> dict[str, Any]:
    """A model whose vector counts the words good, bad, film and all; its length is not 1."""
    ids = inputs["input_ids"] * inputs["attention_mask"]
    found = [(ids == word).sum(1) for word in (GOOD, BAD, FILM)] + [(ids > 3).sum(1)]
    return {"sentence_embedding": np.stack(found, axis=1).astype(np.float32)}


def rank(inputs: dict[str, Any]) -> dict[str, Any]:
    """A model that gives a higher score for more films."""
    ids = inputs["input_ids"] * inputs["attention_mask"]
    return {"logits": ((ids == FILM).sum(1) - 1.0)[:, None].astype(np.float32)}


def features(inputs: dict[str, Any]) -> dict[str, Any]:
    """A model whose vector for a token is its id, twice."""
    return {"last_hidden_state": np.repeat(inputs["input_ids"][..., None], 2, axis=2).astype(np.float32)}


async def serve_all(stack: Any, *urls: str) -> Any:
    """A classifier, an embedder with prompts, a re-ranker and an encoder; or only those of ``urls``."""
    urls = urls or ("labels", "vectors", "rank", "tokens")
    if "labels" in urls:
        stack.deploy("labels")
    prompts = {"prompts": {"query": "good "}, "default_prompt_name": None}
    for url, run, output, config, auxiliary in (
        ("vectors", embed, "sentence_embedding", {"architecture": "BertModel"}, {}),
        ("rank", rank, "logits", {"id2label": {"0": "LABEL_0"}}, {"task": "ranking"}),
        ("tokens", features, "last_hidden_state", {"architecture": "BertModel"}, {"task": "feature-extraction"}),
    ):
        if url not in urls:
            continue
        bundle = text_bundle(stack.folder / f"bundle-{url}", max_position_embeddings=32, hidden_size=SIZE, **config)
        if url == "vectors":
            tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
            tokenizer.add_special_tokens(list(SPECIAL))
            tokenizer.save(str(bundle / "tokenizer.json"))
            (bundle / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        stack.add_package(f"m-{url}", bundle)
        stack.registry.add_endpoint(url, f"m-{url}", **({"auxiliary_cfg": {"gateway": auxiliary}} if auxiliary else {}))
        stack.backend.add(
            stack.triton_name(url), {"input_ids": "int64", "attention_mask": "int64"}, {output: "float32"}, run
        )
    await stack.served(*urls)
    return stack


@pytest.fixture
async def served(stack: Any) -> Any:
    """See `serve_all`."""
    return await serve_all(stack)


async def ask(stack: Any, path: str, body: object) -> Any:
    """Return the answer of a request that must succeed."""
    reply = await stack.client.post(path, json=body)
    assert 200 == reply.status_code, reply.text
    return reply.json()


async def refused(stack: Any, path: str, body: object) -> tuple[int, str, str]:
    """Return the status, kind and message of a refusal."""
    reply = await stack.client.post(path, json=body)
    found = reply.json()
    assert {"error", "error_type"} == set(found)
    return reply.status_code, found["error_type"], found["error"]


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
    ("labels/predict", {"inputs": "good good", "parameters": {}, **RAW}, LABELS),
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
        assert answer == await ask(served, f"/tei/{path}", body), (path, body)


REFUSED = [
    ("vectors/embed", {"inputs": []}, 400, "Empty", "`inputs` cannot be empty"),
    ("rank/rerank", {"query": "a", "texts": []}, 400, "Empty", "`texts` cannot be empty"),
    ("vectors/decode", {"ids": []}, 400, "Empty", "`ids` cannot be empty"),
    ("vectors/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty", "sentences"),
    ("vectors/embed", {"inputs": ""}, 422, "Validation", "empty"),
    ("vectors/embed", {"inputs": "good", "nonsense": 1}, 422, "Validation", "unknown field nonsense"),
    ("vectors/embed", {}, 422, "Validation", "the field inputs is missing"),
    ("vectors/embed", [], 422, "Validation", "must be an object"),
    ("vectors/embed", {"inputs": 7}, 422, "Validation", "inputs must be a text"),
    ("vectors/embed", {"inputs": ["good", 7]}, 422, "Validation", "not both"),
    ("vectors/embed", {"inputs": [2, 999]}, 422, "Validation", "vocabulary"),
    ("vectors/embed", {"inputs": "good", "normalize": 1}, 422, "Validation", "normalize must be true or false"),
    ("vectors/embed", {"inputs": "good", "dimensions": 0}, 422, "Validation", "dimensions"),
    ("vectors/embed", {"inputs": "good", "dimensions": 5}, 422, "Validation", "have 4 dimensions, not 5"),
    ("vectors/embed", {"inputs": "good", "prompt_name": "x"}, 422, "Validation", "no prompt of that name"),
    ("vectors/embed", {"inputs": "good " * 50, "truncate": False}, 422, "Validation", "longer than the 32 tokens"),
    ("vectors/embed", {"inputs": "good", "truncation_direction": "left"}, 422, "Validation", "keeps the beginning"),
    ("vectors/tokenize", {"inputs": [7]}, 422, "Validation", "inputs[0] must be a string"),
    ("vectors/tokenize", {"inputs": "a", "prompt_name": "x"}, 422, "Validation", "no prompt"),
    ("vectors/tokenize", {"inputs": "a", "prompt_name": ["query"]}, 422, "Validation", "no prompt"),
    ("vectors/decode", {"ids": [-1]}, 422, "Validation", "vocabulary"),
    ("vectors/decode", {"ids": ["a"]}, 422, "Validation", "list of token ids"),
    ("vectors/predict", {"inputs": "good"}, 424, "Backend", "not a classification model"),
    ("vectors/rerank", {"query": "a", "texts": ["b"]}, 424, "Backend", "not a re-ranker model"),
    ("labels/embed", {"inputs": "good"}, 424, "Backend", "not an embedding model"),
    ("vectors/embed_all", {"inputs": "good"}, 424, "Backend", "gateway.task=feature-extraction"),
    ("rank/predict", {"inputs": "good"}, 422, "Validation", "takes pairs"),
    ("labels/predict", {"inputs": [["good"], ["a", "b"]]}, 422, "Validation", "two requests"),
    ("labels/predict", {"inputs": "good", "parameters": {"top_k": 1}}, 422, "Validation", "unknown field top_k"),
    ("labels/predict", {"inputs": "good", "parameters": 7}, 422, "Validation", "parameters must be an object"),
    ("rank/rerank", {"query": "a"}, 422, "Validation", "the field texts is missing"),
    ("nobody/embed", {"inputs": "good"}, 404, "Validation", "does not exist"),
]
"""What is asked, and the status, kind and words of the answer."""


async def test_refusals_have_tei_statuses_and_fields(served: Any) -> None:
    """`{"error", "error_type"}` with the reason."""
    for path, body, status, kind, says in REFUSED:
        found = await refused(served, f"/tei/{path}", body)
        assert (status, kind) == found[:2], (path, body, found)
        assert says in found[2], (path, body, found)


async def test_invalid_json_and_wrong_methods_are_refused_in_tei_form(served: Any) -> None:
    """Like all other refusals of these routes."""
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


@pytest.mark.parametrize(
    ("urls", "defaults", "expected"),
    [
        (["faq/1", "faq/2"], {"faq": "faq/1"}, "faq"),
        (["faq/2"], {"faq": "faq/1"}, "faq"),  # the default version is missing: the bare name still counts
        (["faq/1"], {}, "faq/1"),
        (["faq"], {}, "faq"),
        (["faq/1", "faq/2"], {}, ""),
        (["faq/1", "faq/2", "reviews/1"], {"faq": "faq/1"}, ""),
    ],
)
def test_versions_behind_one_recorded_default_count_as_one_endpoint(
    urls: list[str], defaults: dict[str, str], expected: str
) -> None:
    """A bare route then calls the endpoint by its bare name."""
    snapshot = Snapshot(endpoints=dict.fromkeys(urls, Any), defaults=defaults)
    if expected:
        assert expected == only(snapshot, "/embed")
    else:
        with pytest.raises(EndpointNotFound, match="serves only one endpoint"):
            only(snapshot, "/embed")


async def test_openai_and_rerank_routes_exist_below_an_endpoint(served: Any) -> None:
    """Clients that are given `…/tei/NAME` use them there. The path names the model; the body's `model` is ignored."""
    found = await ask(served, "/tei/vectors/v1/embeddings", {"model": "text-embedding-3", "input": "good"})
    assert "vectors" == found["model"]
    found = await ask(served, "/tei/rank/v1/rerank", {"model": "x", "query": "a", "documents": ["film"]})
    assert 0 == found["results"][0]["index"]
