"""Endpoints of every text task, over a gateway of fakes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

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
