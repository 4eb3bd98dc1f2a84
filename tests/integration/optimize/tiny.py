"""Whole Hugging Face models of a few thousand random weights, made offline; more kinds of them are in ``families``.

Tokenizers are trained on a few sentences, weights are drawn wide, so that answers differ from text to text and a lost
mask or a rounded weight shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
OFFSET = {**SIZES, "max_position_embeddings": 132, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

Make = Callable[[], tuple[Any, Tokenizer, Mapping[str, str]]]


IS_ALL = bool(os.environ.get("ALL_MODELS"))


def _special(names: list[str]) -> dict[str, str]:
    return dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), names, strict=True))


BERT_TOKENS = _special(BERT)
ROBERTA_TOKENS = {**_special(["<pad>", "<unk>", "<s>", "</s>", "<mask>"]), "bos_token": "<s>", "eos_token": "</s>"}

ARCHITECTURES: Mapping[str, Make] = {
    "Bert": lambda: (transformers.BertConfig(**SIZES), word_piece(), BERT_TOKENS),
    "DistilBert": lambda: (
        transformers.DistilBertConfig(
            vocab_size=VOCABULARY, dim=32, hidden_dim=48, n_layers=2, n_heads=2, max_position_embeddings=130,
            initializer_range=0.3,
        ), word_piece(), BERT_TOKENS,
    ),
    "Roberta": lambda: (transformers.RobertaConfig(**OFFSET), byte_pairs(ROBERTA, "<s>", "</s>"), ROBERTA_TOKENS),
    "ModernBert": lambda: (
        transformers.ModernBertConfig(
            **SIZES, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, local_attention=16,
            global_attn_every_n_layers=2, reference_compile=False,
        ), byte_pairs(BERT, "[CLS]", "[SEP]"), BERT_TOKENS,
    ),
    "Electra": lambda: (
        transformers.ElectraConfig(**SIZES, embedding_size=24), word_piece(), BERT_TOKENS
    ),
}  # fmt: skip


def make(
    name: str, folder: Path, *, task: str = "SequenceClassification", labels: Sequence[str] = LABELS, seed: int = 7
) -> Path:
    """Save the model as transformers and its users do; the same weights for the same ``seed``."""
    torch.manual_seed(seed)
    config, tokenizer, specials = ARCHITECTURES[name]()
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
    kind = f"{name}For{task}" if task else f"{name}Model"
    model = getattr(transformers, kind)(config).eval()
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, **specials})
    )
    return folder
