"""Model folders of a few hundred bytes that the tests write themselves, without downloads or transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests import words

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "good", "bad", "film", "##s", "hello", "world"]
VOCABULARY = {word: i for i, word in enumerate(WORDS)}

CLASSIFIER = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "pad_token_id": 0, "type_vocab_size": 2,
    "id2label": {"0": "NEGATIVE", "1": "NEUTRAL", "2": "POSITIVE"}, "max_position_embeddings": 16,
    "vocab_size": len(WORDS),
}  # fmt: skip
ENCODER = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 4, "max_position_embeddings": 16,
    "type_vocab_size": 2, "vocab_size": len(WORDS),
}  # fmt: skip

MakeFolder = Callable[..., Path]


def word_piece(vocabulary: dict[str, int] = VOCABULARY) -> Tokenizer:
    """Return a BERT tokenizer of thirteen words, with stored truncation and padding as in real folders."""
    tokenizer = words.word_piece(sorted(vocabulary, key=vocabulary.__getitem__))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    return tokenizer


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Write a model folder: the tokenizer above, and the given files."""

    def make(files: dict[str, Any] | None = None, *, tokenizer: Tokenizer | None = None, **config: Any) -> Path:
        folder = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (tokenizer or word_piece()).save(str(folder / "tokenizer.json"))
        for name, content in {"config.json": config or CLASSIFIER, **(files or {})}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return folder

    return make


@pytest.fixture
def classifier(make_folder: MakeFolder) -> Path:
    """A three-label classifier."""
    return make_folder(**CLASSIFIER)
