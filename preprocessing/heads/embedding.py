"""Sentence embeddings: one text to one vector, pooled and normalised as the model folder's own sentence-transformers
files say.

Request: `{"text": …, "parameters": {"normalize": true, "prompt_name": "query", "truncate_dim": 256}}`, parameters
optional; no pairs.

Answer for one text: `{"embedding": [x, …], "tokens": n}`, for a list: `{"embeddings": [[x, …], …], "tokens": [n, …]}`;
`"truncated"` (true, or a list of booleans) is present only if a text was cut. Vectors are float32 numpy arrays, because
converting them to Python numbers would cost more than everything else here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from preprocessing.activations import l2_normalize, pool
from preprocessing.config import EMBEDDINGS, TaskConfig
from preprocessing.errors import InvalidOutput
from preprocessing.heads.base import (
    NUMBER_BYTES,
    Head,
    Results,
    counts,
    parse_texts,
    prompt_of,
    refuse_non_finite,
)
from preprocessing.parameters import Count, Parameters
from preprocessing.types import FloatArray, ParsedRequest, Prepared, Tensors

if TYPE_CHECKING:
    from preprocessing.tokenizer import TextTokenizer

_USUAL_SIZE: Final = 1024
"""Components of a vector, if the model's files do not say."""


class _Parameters(Parameters):
    normalize: bool | None = None
    truncate_dim: Count | None = None
    prompt_name: str | None = None


class SentenceEmbedding(Head):
    """The head of sentence-transformers folders and of plain encoders."""

    task = EMBEDDINGS
    parameters = _Parameters
    example: Mapping[str, object] = {"text": ["A man is eating food.", "Someone has a meal."]}
    # Pooled outputs come first: a graph that pools is trusted to follow its own configuration.
    outputs = (
        "sentence_embedding", "sentence_embeddings", "embeddings", "embedding", "last_hidden_state", "token_embeddings",
    )  # fmt: skip

    def __init__(self, config: TaskConfig, vocabulary: TextTokenizer | None = None) -> None:
        super().__init__(config)
        self._vocabulary = None if config.pools_prompt else vocabulary
        self.row_bytes = (self._size() or _USUAL_SIZE) * NUMBER_BYTES

    def parse(self, body: object) -> ParsedRequest:
        """Return single texts as in sentence-transformers: stripped, lower-cased if configured, with prompt."""
        config = self._config
        found, is_batch, parameters = parse_texts(body, config, pairs=False)
        texts = [text.strip() for text in cast("Sequence[str]", found)]
        options = _Parameters.of(parameters).given() if parameters else {}
        prompt = prompt_of(config, options.pop("prompt_name", None), "parameters.prompt_name")
        if prompt:
            texts = [(prompt + text).strip() for text in texts]
        if config.lowercase:
            texts = [text.lower() for text in texts]
        if self._vocabulary is not None and prompt:
            options["skip"] = self._vocabulary.prompt_size(prompt)
        return ParsedRequest(texts, is_batch, options)

    def decode(self, outputs: Tensors, prepared: Prepared) -> FloatArray:
        """Return [texts, size]: rank 2 outputs are pooled already, rank 3 ones are pooled over each text's tokens."""
        config, rows = self._config, prepared.rows
        name, tensor = self.take(outputs)
        if tensor.ndim not in (2, 3) or len(tensor) != len(rows) or tensor.shape[-1] == 0:
            raise InvalidOutput(
                f"Output {name} has shape {list(tensor.shape)} for {len(rows)} rows",
                hint="expected rows × size, or rows × tokens × size",
            )
        if tensor.ndim == 2:
            vectors = tensor.astype(np.float32, copy=False)
        elif not config.pooling:
            raise InvalidOutput(
                f"Output {name} holds token vectors, but this model has layers after pooling (modules.json)",
                hint="export the whole sentence-transformers pipeline, so that the model answers with sentence vectors",
            )
        else:
            lengths = [row.n_tokens for row in rows]
            if tensor.shape[1] < max(lengths) or min(lengths) == 0:
                raise InvalidOutput(f"Output {name} has {tensor.shape[1]} tokens per row, {max(lengths)} were sent")
            skip = prepared.request.options.get("skip", 0)
            vectors = pool(tensor, lengths, config.pooling, padding_side=config.padding_side, skip=skip)
        refuse_non_finite(name, vectors)
        options = prepared.request.options
        normalized = options.get("normalize", config.normalize)
        if normalized:
            vectors = l2_normalize(vectors)
        size = options.get("truncate_dim", config.truncate_dim)
        if size is not None and size < vectors.shape[1]:
            vectors = vectors[:, :size]
            # As in sentence-transformers, the model's own normalisation comes before truncation, the request's after.
            if options.get("normalize"):
                vectors = l2_normalize(vectors)
        return np.ascontiguousarray(vectors)

    def render(self, results: Results, prepared: Prepared) -> dict[str, object]:
        """Return a single text's vector as `embedding`, those of a list as `embeddings`."""
        if not prepared.is_batch:
            return {"embedding": results[0], **counts(prepared)}
        return {"embeddings": results, **counts(prepared)}

    def _size(self) -> int | None:
        config = self._config
        whole = config.embedding_size and config.embedding_size * max(len(config.pooling), 1)
        return min(whole, config.truncate_dim) if whole and config.truncate_dim else whole
