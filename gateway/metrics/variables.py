"""The built-in drift variables of text tasks: their names in references and metrics, and their meaning.

Public: ``deploy`` may import it, for references and comparisons. Data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.metrics import catalog

TOKENS: Final = "token_length"
UNKNOWN: Final = "unknown_token_ratio"
LANGUAGE: Final = "language"
CASE: Final = "letter_case"
UNUSUAL: Final = "unusual_word_ratio"
LABEL: Final = "predicted_label"
SCORE: Final = "top_score"
COSINE: Final = "embedding_cosine"
BUILT_IN: Final[Mapping[str, str]] = {
    TOKENS: "number of tokens of a text, including special tokens",
    UNKNOWN: "share of a text's tokens that are not in the vocabulary",
    LANGUAGE: "the language of most function words of a text (`en`, `de`, …; `none`: not recognised)",
    CASE: "letter case: `lower`, `upper`, `title` (Every Word), `mixed`, or `none` (letters without case)",
    UNUSUAL: "share of a text's words that are not among the reference's 1,000 most frequent ones",
    LABEL: "the label with the highest score",
    SCORE: "that label's score",
    COSINE: "cosine of an embedding to the mean of the reference's embeddings",
}
"""Variables that text tasks have without declaration, and their meaning."""
BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    TOKENS: catalog.TEXT_TOKEN_BUCKETS,
    UNKNOWN: catalog.RARE_RATIO_BUCKETS,
    UNUSUAL: catalog.WORD_RATIO_BUCKETS,
    SCORE: catalog.RATIO_BUCKETS,
    COSINE: catalog.COSINE_BUCKETS,
}
"""The bounds of those that are numbers."""
