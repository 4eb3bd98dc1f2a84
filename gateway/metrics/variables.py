"""The built-in drift variables of text tasks: their names in references and metrics, and their meaning.

Public: ``deploy`` may import it, to write references of bundles. Data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TOKENS: Final = "token_length"
UNKNOWN: Final = "unknown_token_ratio"
TRUNCATED: Final = "truncated"
SCRIPT: Final = "script"
LANGUAGE: Final = "language"
CASE: Final = "letter_case"
DUPLICATE: Final = "duplicate"
UNUSUAL: Final = "unusual_word_ratio"
RISEN: Final = "risen_word"
LABEL: Final = "predicted_label"
SCORE: Final = "top_score"
ENTROPY: Final = "entropy"
COSINE: Final = "embedding_cosine"
BUILT_IN: Final[Mapping[str, str]] = {
    TOKENS: "number of tokens of a text, including special tokens",
    UNKNOWN: "share of a text's tokens that are not in the vocabulary",
    TRUNCATED: "whether a text was truncated at the model's maximum length (`true`, `false`)",
    SCRIPT: "the script of most letters of a text (`latin`, `cyrillic`, …; `none`: no letters)",
    LANGUAGE: "the language of most function words of a text (`en`, `de`, …; `none`: not recognised)",
    CASE: "letter case: `lower`, `upper`, `title` (Every Word), `mixed`, or `none` (letters without case)",
    DUPLICATE: "whether the same text came among the last few hundred (`true`, `false`)",
    UNUSUAL: "share of a text's words that are not among the reference's 1,000 most frequent ones",
    RISEN: "whether the text has a word that became four times as frequent (`more`: a usual word, `new`: another one), "
    "or a never seen word that came for the fourth time recently (`unseen`); else `none`",
    LABEL: "the label with the highest score",
    SCORE: "that label's score",
    ENTROPY: "entropy of all labels' scores, as a share of the highest possible (0: certain, 1: all scores are equal)",
    COSINE: "cosine of an embedding to the mean of the reference's embeddings",
}
"""Variables that text tasks have without declaration, and their meaning."""
KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys((SCRIPT, LANGUAGE, CASE), "texts"),
    **dict.fromkeys((TOKENS, UNKNOWN, TRUNCATED), "tokens"),
    **dict.fromkeys((LABEL, SCORE, ENTROPY, COSINE), "answers"),
}
"""What a variable depends on: the texts alone, texts and tokenizer, or the model's answers."""
OF_WORDS: Final = frozenset({UNUSUAL, RISEN})
"""Variables that can be compared only if they were counted with the same words."""
LEARNED: Final = OF_WORDS | {COSINE}
"""Variables that can be compared only if they were counted with the same words, or the same mean."""
