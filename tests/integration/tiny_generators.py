"""Small random causal language models as users save theirs, exported in the form that optimum gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders
from transformers import PreTrainedTokenizerFast
from transformers.cache_utils import DynamicCache

from deploy.bundles.export.original import quietly

SIZE = 32


def gpt2(vocabulary: int, **config: Any) -> Any:
    """GPT-2's kind: learned positions, a head tied to the embedding."""
    sizes = {"n_positions": 128, "n_embd": SIZE, "n_layer": 2, "n_head": 2, "initializer_range": 0.5}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocabulary, **sizes, **config)).eval()


def llama(vocabulary: int, **config: Any) -> Any:
    """Llama's kind: rotary positions, fewer heads in the cache than in the queries."""
    sizes = {
        "hidden_size": SIZE, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 128, "initializer_range": 0.5,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=vocabulary, **sizes, **config)).eval()


_KINDS: Mapping[str, Any] = {"gpt2": gpt2, "llama": llama}


def save(
    kind: str, folder: Path, raw: Tokenizer, *, chat_template: str | None = None, **config: Any
) -> tuple[Any, Any]:
    """Save a model of a kind with weights that are always the same; returns model and tokenizer for transformers."""
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=128, chat_template=chat_template)
    torch.manual_seed(3)
    model = _KINDS[kind](len(tokenizer), bos_token_id=None, pad_token_id=0, **{"eos_token_id": 7, **config})
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


class _Flat(torch.nn.Module):  # type: ignore[misc]
    """Wraps a model: tensors in, a tuple of tensors out, the cache as a plain list."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: Sequence[Any]) -> Any:
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        answer = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        layers = answer.past_key_values.layers
        return (answer.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def export(folder: Path) -> None:
    """Make the folder what `optimum-cli export onnx` makes of it: a graph with a cache instead of the weights."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    # No two sizes are equal and none is 1, because the exporter would take them for one symbol, or for a constant.
    rows, new, past = 2, 5, 3
    places = [f"{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")]
    size = config.hidden_size // config.num_attention_heads
    inputs = {
        "input_ids": torch.ones(rows, new, dtype=torch.int64),
        "attention_mask": torch.ones(rows, past + new, dtype=torch.int64),
        "position_ids": torch.arange(past, past + new).repeat(rows, 1),
    }
    shapes = {
        "input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "total"},
        "position_ids": {0: "batch", 1: "sequence"}, "past": [{0: "batch", 2: "past"} for _ in places],
    }  # fmt: skip
    with quietly():
        torch.onnx.export(
            _Flat(model).eval(), (), str(folder / "model.onnx"), dynamic_shapes=shapes, dynamo=True,
            kwargs={**inputs, "past": [torch.zeros(rows, heads, past, size) for _ in places]},
            input_names=[*inputs, *(f"past_key_values.{one}" for one in places)],
            output_names=["logits", *(f"present.{one}" for one in places)], external_data=False, verbose=False,
        )  # fmt: skip
    (folder / "model.safetensors").unlink()
