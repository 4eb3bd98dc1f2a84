"""Feature extraction: a text to one vector per token, special tokens included, as `transformers`' feature-extraction
pipeline returns them.

Request: `{"text": …}`; no parameters, no pairs. Answer for one text: `{"features": [[x, …], …], "tokens": n}`, one
vector per token; for a list: `{"results": [{"features": […]}, …], "tokens": [n, …]}`. Vectors are float32 numpy arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from preprocessing.config import FEATURES
from preprocessing.heads.base import NUMBER_BYTES, Head, own_tokens, parse_texts, refuse_non_finite
from preprocessing.types import ParsedRequest, Prepared, Tensors


class FeatureExtraction(Head):
    """The head of encoders whose token vectors are requested themselves."""

    task = FEATURES
    outputs = ("last_hidden_state", "token_embeddings", "hidden_states")

    def parse(self, body: object) -> ParsedRequest:
        """Single texts."""
        texts, is_batch, parameters = parse_texts(body, self._config, pairs=False)
        self.parameters.of(parameters)
        return ParsedRequest(texts, is_batch)

    def answer_bytes(self, prepared: Prepared, output_bytes: int) -> int:
        """Estimate: all numbers of the output."""
        del prepared
        return output_bytes // 4 * NUMBER_BYTES

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Return the vectors of each text's own tokens, without padding."""
        rows = prepared.rows
        name, tensor = self.take_tokens(outputs, rows, "size")
        own = [own_tokens(tensor, i, row.n_tokens, self._config.padding_side) for i, row in enumerate(rows)]
        for values in own:  # values in the padding may be anything
            refuse_non_finite(name, values)
        return [{"features": np.ascontiguousarray(values, dtype=np.float32)} for values in own]
