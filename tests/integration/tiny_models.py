"""Small random models of transformers with tokenizers trained offline, saved as users save theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from preprocessing.processor import TextProcessor
from tests.unit.preprocessing import tokenizer_families as families

MAX_LENGTH = 128
ROBERTA = ["<unk>", "<s>", "</s>", "<pad>", AddedToken("<mask>", lstrip=True)]
NAMES: dict[str, Any] = {
    "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
    "unk_token": "<unk>", "mask_token": "<mask>", "model_input_names": ["input_ids", "attention_mask"],
}  # fmt: skip


def word_piece() -> tuple[Tokenizer, dict[str, Any]]:
    """BERT's kind: WordPiece, two types, right padding."""
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return families.bert(), {**names, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


def byte_level() -> tuple[Tokenizer, dict[str, Any]]:
    """RoBERTa's kind: byte-level BPE, no types, offsets without the space in front."""
    tokenizer = families.trained(
        "BPE", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), specials=ROBERTA
    )
    ids = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ids, add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, NAMES


def unigram(*, left: bool = False) -> tuple[Tokenizer, dict[str, Any]]:
    """XLM-R's kind: Unigram over metaspaces; padded on the left where wanted."""
    tokenizer = families.trained(
        "Unigram",
        normalizer=normalizers.NFKC(),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        specials=ROBERTA,
    )
    tokenizer.post_processor = families.template(
        "<s>", "</s>", tokenizer, single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>"
    )
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, {**NAMES, **({"padding_side": "left"} if left else {})}


FAMILIES: Mapping[str, Callable[[], tuple[Tokenizer, dict[str, Any]]]] = {
    "WordPiece": word_piece,
    "byte-level BPE": byte_level,
    "Unigram": unigram,
    "Unigram, left padding": lambda: unigram(left=True),
}


def save(folder: Path, family: str, model_class: Any, *, max_length: int = MAX_LENGTH, **config: Any) -> Any:
    """Save a random model of a BERT class and its tokenizer; returns both, for a pipeline."""
    raw, names = FAMILIES[family]()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=max_length, **names)
    torch.manual_seed(1)
    # A left-padded BERT needs positions that padding does not shift; relative ones are gone from transformers 5, so
    # the reference runs texts alone and only our side pads.
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    settings = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=max_length,
        initializer_range=0.6,
        pad_token_id=tokenizer.pad_token_id,
        type_vocab_size=2,
        **sizes,
        **config,
    )
    model = model_class(settings).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def logits_of(ids: Any) -> tuple[Any, Any]:
    """Start and end logits of each token: the formula that the recorded pipeline had for a model."""
    ids, places = np.asarray(ids, np.float64), np.arange(len(ids), dtype=np.float64)
    return (
        (4 * np.sin(ids * 0.7 + places * 0.37)).astype(np.float32),
        (4 * np.sin(ids * 1.3 + places * 0.53 + 1)).astype(np.float32),
    )


class TorchBackend:
    """PyTorch where Triton would be: runs each row alone, as the pipelines do, so that padding is not in question."""

    def __init__(self, processor: TextProcessor, model: Any) -> None:
        self.processor = processor
        self._model = model

    def ask(self, body: Any) -> Any:
        """Our answer."""
        prepared = self.processor.prepare(body)
        parts: list[dict[str, Any]] = []
        for row in prepared.rows:
            inputs = {name: torch.from_numpy(t) for name, t in self.processor.collate_rows([row]).items()}
            with torch.no_grad():
                outputs = self._model(**inputs)
            parts.append({name: value.numpy()[0] for name, value in outputs.items() if torch.is_tensor(value)})
        return self.processor.finish({name: self._padded([p[name] for p in parts]) for name in parts[0]}, prepared)

    def _padded(self, arrays: list[Any]) -> Any:
        if arrays[0].ndim == 0 or len({a.shape for a in arrays}) == 1:
            return np.stack(arrays)
        longest = max(len(a) for a in arrays)
        left = self.processor.config.padding_side == "left"
        # Rubbish in the padding: nobody may look at it.
        padded = np.full((len(arrays), longest, *arrays[0].shape[1:]), 1e4, np.float32)
        for whole, own in zip(padded, arrays, strict=True):
            whole[longest - len(own) if left else 0 :][: len(own)] = own
        return padded
