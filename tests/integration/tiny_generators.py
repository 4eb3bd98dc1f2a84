"""Small random causal language models as ONNX graphs with a key/value cache, in the form that optimum exports them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

LAYERS, HEADS, SIZE = 2, 2, 32


def gpt2(vocabulary: int, *, positions: int = 128, **config: Any) -> Any:
    """GPT-2's kind: learned positions."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary, n_positions=positions, n_embd=SIZE, n_layer=LAYERS, n_head=HEADS,
            initializer_range=0.5, **config,
        )
    ).eval()  # fmt: skip


def llama(vocabulary: int, **config: Any) -> Any:
    """Llama's kind: rotary positions, fewer heads in the cache."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=SIZE, intermediate_size=64, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=1, max_position_embeddings=128, initializer_range=0.5,
            **config,
        )
    ).eval()  # fmt: skip


class _Cached(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
        cache = DynamicCache(config=self.model.config)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        answer = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        present = [tensor for layer in answer.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return (answer.logits, *present)


def export(model: Any, target: Path) -> None:
    """``input_ids``, ``attention_mask``, ``position_ids`` and the cache in, ``logits`` and the cache out."""
    heads = getattr(model.config, "num_key_value_heads", None) or HEADS
    past = [torch.zeros(2, heads, 3, SIZE // HEADS) for _ in range(2 * LAYERS)]
    names = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    inputs = (
        torch.ones(2, 5, dtype=torch.int64),
        torch.ones(2, 8, dtype=torch.int64),
        torch.arange(3, 8).repeat(2, 1),
        *past,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Cached(model).eval(),  # the exporter brings back the mode it finds
            inputs,
            str(target),
            input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{n}" for n in names)],
            output_names=["logits", *(f"present.{n}" for n in names)],
            dynamic_axes={
                "input_ids": {0: "batch", 1: "sequence"},
                "attention_mask": {0: "batch", 1: "total"},
                "position_ids": {0: "batch", 1: "sequence"},
                **{f"past_key_values.{n}": {0: "batch", 2: "past"} for n in names},
            },
            dynamo=False,
        )
