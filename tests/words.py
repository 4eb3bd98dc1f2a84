"""Model folders whose tokenizer knows a few words: the part of a text model that a gateway reads. Also for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS: Final = ("good", "bad", "film", "hello", "world", "warm", "up")


def word_piece(words: Sequence[str]) -> Tokenizer:
    """Return a BERT tokenizer of ``words``, special ones first. It frames one text or a pair."""
    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, words.index(word)) for word in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return tokenizer


def text_bundle(
    folder: Path, architecture: str = "BertForSequenceClassification", *, words: Sequence[str] = WORDS, **config: Any
) -> Path:
    """Write the folder of a text model. It has no weights, for readers that do not need them."""
    folder.mkdir(parents=True, exist_ok=True)
    known = list(dict.fromkeys((*SPECIAL, *words)))
    word_piece(known).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({
        "architectures": [architecture], "model_type": "bert", "pad_token_id": 0, "max_position_embeddings": 512,
        "id2label": {"0": "BAD", "1": "GOOD"}, "vocab_size": len(known), **config,
    }))  # fmt: skip
    (folder / "model.onnx").write_bytes(b"not read by the gateway")
    return folder
