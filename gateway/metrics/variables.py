"""The drift variables that text tasks have without any declaration: their names, as references and metrics have them.

Public: ``deploy`` may import it, to write references of bundles. Data, no code.
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
EMBEDDING: Final = ("embedding_1", "embedding_2", "embedding_3", "embedding_4")
BUILT_IN: Final[Mapping[str, str]] = {
    TOKENS: "tokens of a text, special tokens included",
    UNKNOWN: "share of a text's tokens that the vocabulary does not know",
    TRUNCATED: "whether a text was cut at the model's maximum length (`true`, `false`)",
    SCRIPT: "the script that most letters of a text are in (`latin`, `cyrillic`, …; `none`: no letters)",
    LANGUAGE: "the language whose function words a text has most of (`en`, `de`, …; `none`: of no language known)",
    CASE: "its letters: `lower`, `upper`, `title` (Every Word), `mixed`, or `none` where there is no case",
    DUPLICATE: "whether the same text was among the last few hundred (`true`, `false`)",
    UNUSUAL: "share of a text's words that are not among the reference's 1,000 most frequent ones",
    RISEN: "whether it has a word that has become four times as frequent (`new`, or `more`: a usual one), or one that "
    "nobody had ever seen, for the fourth time lately (`unseen`); `none` otherwise",
    LABEL: "the label with the highest score",
    SCORE: "that label's score",
    ENTROPY: "entropy of all labels' scores, as a share of the highest possible (1: the model does not know at all)",
    **dict.fromkeys(EMBEDDING, "where an embedding points: one of four fixed random components of its direction"),
}
"""Variables that text tasks have without any declaration, and what they mean."""
KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys((SCRIPT, LANGUAGE, CASE), "texts"),
    **dict.fromkeys((TOKENS, UNKNOWN, TRUNCATED), "tokens"),
    **dict.fromkeys((LABEL, SCORE, ENTROPY, *EMBEDDING), "answers"),
}
"""What tells of texts alone, of texts and the tokenizer, and of the model's answers."""
OF_WORDS: Final = frozenset({UNUSUAL, RISEN})
"""Those that mean something only beside the words they were counted with."""
