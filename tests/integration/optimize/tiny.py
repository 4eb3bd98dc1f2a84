"""Whole BERTs of a few thousand random weights, made offline; other kinds of models are in ``families``.

Tokenizers are trained on a few sentences, weights are drawn wide, so that answers differ from text to text and a lost
mask or a rounded weight shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from deploy.bundles.sentences import SENTENCES

LABELS = ("negative", "neutral", "positive")
VOCABULARY = 600
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def word_piece(*, lowercase: bool = True) -> Tokenizer:
    """A tokenizer as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=BERT, show_progress=False))  # fmt: skip
    return framed(tokenizer, "[CLS]", "[SEP]")


def byte_pairs(specials: list[str], start: str, end: str) -> Tokenizer:
    """A byte-level tokenizer as RoBERTa and ModernBERT have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    return framed(tokenizer, start, end)


def framed(tokenizer: Tokenizer, start: str, end: str) -> Tokenizer:
    """The start and end tokens around every text."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in (start, end)],
    )  # fmt: skip
    return tokenizer


SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 130, "initializer_range": 0.3, "vocab_size": VOCABULARY, "pad_token_id": 0,
}  # fmt: skip
IS_ALL = bool(os.environ.get("ALL_MODELS"))


def _special(names: list[str]) -> dict[str, str]:
    return dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True))


BERT_TOKENS = _special(BERT)
ROBERTA_TOKENS = {**_special(["<pad>", "<unk>", "<s>", "</s>", "<mask>"]), "bos_token": "<s>", "eos_token": "</s>"}


def make(folder: Path, *, task: str = "SequenceClassification", labels: Sequence[str] = LABELS, seed: int = 7) -> Path:
    """Save a BERT as transformers and its users do; the same weights for the same ``seed``."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(**SIZES)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
    kind = f"BertFor{task}" if task else "BertModel"
    model = getattr(transformers, kind)(config).eval()
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    word_piece().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, **BERT_TOKENS})
    )
    return folder
