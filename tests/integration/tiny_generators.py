"""Small random causal language models as users save theirs, exported as `triton-gateway optimize` exports them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders
from transformers import PreTrainedTokenizerFast

from deploy.bundles.generation.original import CausalOriginal

SIZE = 32
_SIZES = {
    "hidden_size": SIZE, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 128, "initializer_range": 0.5,
}  # fmt: skip
_SHARED = {**_SIZES, "num_key_value_heads": 1}
"""Fewer heads in the cache than in the queries."""


def gpt2(vocabulary: int, *, positions: int = 128, **config: Any) -> Any:
    """GPT-2's kind: learned positions, a head tied to the embedding."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocabulary, n_positions=positions, n_embd=SIZE, n_layer=2, n_head=2, initializer_range=0.5,
            **config,
        )
    ).eval()  # fmt: skip


def llama(vocabulary: int, **config: Any) -> Any:
    """Llama's kind: rotary positions, fewer heads in the cache."""
    return _made("Llama", vocabulary, **_SHARED, **config)


def qwen2(vocabulary: int, **config: Any) -> Any:
    """Llama's kind with biases."""
    return _made("Qwen2", vocabulary, **_SHARED, **config)


def mistral(vocabulary: int, **config: Any) -> Any:
    """Llama's kind that looks back 16 tokens only."""
    return _made("Mistral", vocabulary, sliding_window=16, **_SHARED, **config)


def gpt_neox(vocabulary: int, **config: Any) -> Any:
    """Rotary positions for a part of each head."""
    return _made("GPTNeoX", vocabulary, **_SIZES, **config)


def phi3(vocabulary: int, **config: Any) -> Any:
    """Queries, keys and values from one weight."""
    return _made("Phi3", vocabulary, **_SHARED, **config)


def bloom(vocabulary: int, **config: Any) -> Any:
    """No positions: distance is subtracted from the attention."""
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(
            vocab_size=vocabulary, hidden_size=SIZE, n_layer=2, n_head=2, initializer_range=0.5, **config
        )
    ).eval()


def mamba(vocabulary: int, **config: Any) -> Any:
    """No attention at all: a state instead of a cache."""
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 2, "state_size": 8}
    return transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=vocabulary, **sizes, **config)).eval()


def _made(name: str, vocabulary: int, **config: Any) -> Any:
    kind, settings = getattr(transformers, f"{name}ForCausalLM"), getattr(transformers, f"{name}Config")
    return kind(settings(vocab_size=vocabulary, **config)).eval()


_KINDS: Mapping[str, Any] = {f.__name__: f for f in (gpt2, llama, qwen2, mistral, gpt_neox, phi3, bloom, mamba)}


def save(
    kind: str, folder: Path, raw: Tokenizer, *, chat_template: str | None = None, **config: Any
) -> tuple[Any, Any]:
    """Save a model of a kind with weights that are always the same; returns model and tokenizer for transformers."""
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=config.get("positions", 128), chat_template=chat_template
    )
    torch.manual_seed(3)
    model = _KINDS[kind](len(tokenizer), bos_token_id=None, pad_token_id=0, **{"eos_token_id": 7, **config})
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def export(folder: Path) -> None:
    """Make the folder a bundle: the graph instead of the weights."""
    CausalOriginal(folder).export(folder / "model.onnx")
    (folder / "model.safetensors").unlink()
