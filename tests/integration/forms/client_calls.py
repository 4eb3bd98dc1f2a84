"""Calls of other people's clients, made in an environment of their own: prints one JSON object, a list of facts per
client. Argument: URL of the gateway.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

TEXTS = ["good film", "bad"]


def same(found: Any, wanted: Any) -> bool:
    """Equal vectors, as far as float32 goes."""
    return np.allclose(np.asarray(found, float), np.asarray(wanted, float), rtol=1e-5, atol=1e-6)


def raised(call: Callable[[], Any]) -> str:
    """The error's class."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def langchain(url: str) -> dict[str, Any]:
    """`langchain-huggingface` and `langchain-openai`."""
    from huggingface_hub import InferenceClient
    from langchain_huggingface import HuggingFaceEndpointEmbeddings
    from langchain_openai import OpenAIEmbeddings

    endpoint = HuggingFaceEndpointEmbeddings(model="sentence-transformers/any", huggingfacehub_api_token="none")
    endpoint.client = InferenceClient(model=f"{url}/tei/vectors")
    opened = OpenAIEmbeddings(model="vectors", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False)
    by_hub, by_openai = endpoint.embed_documents(TEXTS), opened.embed_documents(TEXTS)
    return {
        "same vectors": same(by_hub, by_openai),
        "query": same(endpoint.embed_query(TEXTS[0]), opened.embed_query(TEXTS[0])),
    }


def llama_index(url: str) -> dict[str, Any]:
    """Its embedding of Text Embeddings Inference, at an endpoint's address."""
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    named = TextEmbeddingsInference(model_name="any", base_url=f"{url}/tei/vectors", timeout=60, embed_batch_size=10)
    found = named.get_text_embedding_batch(TEXTS)
    return {
        "vectors": [len(vector) for vector in found],
        "query": same(named.get_query_embedding(TEXTS[0]), found[0]),
    }


def cohere(url: str) -> dict[str, Any]:
    """Both versions of its rerank."""
    import cohere

    documents = ["bad", "film film", "film"]
    first = cohere.Client(api_key="none", base_url=url)
    second = cohere.ClientV2(api_key="none", base_url=url)
    one = first.rerank(model="rank", query="hello", documents=documents, return_documents=True)
    two = second.rerank(model="rank", query="hello", documents=documents, top_n=2)
    return {
        "first": [[r.index, r.document.text] for r in one.results],
        "second": [r.index for r in two.results],
        "scores": all(0 < r.relevance_score < 1 for r in two.results),
        "wrong model": raised(lambda: second.rerank(model="live", query="a", documents=documents)),
        "no model": raised(lambda: second.rerank(model="nobody", query="a", documents=documents)),
    }


def main() -> None:
    """Every client in turn."""
    clients = (langchain, llama_index, cohere)
    print(json.dumps({client.__name__: client(sys.argv[1]) for client in clients}))


if __name__ == "__main__":
    main()
