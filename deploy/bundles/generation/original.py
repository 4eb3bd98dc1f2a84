"""The original causal language model in PyTorch: its greedy texts, and its export with a key/value cache.

The counterpart of ``deploy/bundles/export/original.py``. The export has the form that
``deploy/sync/runtime/generate_model.py`` reads. Inputs: ``input_ids``, ``attention_mask``, ``position_ids`` if the
model takes them, ``past_key_values.LAYER.key`` and ``.value``. Outputs: ``logits``, ``present.LAYER.key`` and
``.value``. Batch, new tokens and past may have any size. ``logits`` are only those of the last token if the model can
leave out the others, as in ``generate``: the head is a third of a small model's work on a long prompt, and its answer
takes 200 kB per token. torch is imported inside the functions that use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.bundles.export.original import load_model, named_numbers, not_exported, quietly
from deploy.tools.errors import ExportFailed, first_line

_MAX_BYTES: Final = 1_500_000_000
"""Most bytes of weights in a graph: a protobuf message ends at 2 GiB, and tied weights may occur twice."""


@dataclass(frozen=True, slots=True)
class Continued:
    """A prompt, its greedy continuation, and the logits that each token was chosen from ([tokens, vocabulary])."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: NDArray[Any]


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """A key or value tensor of the cache: name without prefix, number of attention heads, numbers per head."""

    name: str
    heads: int
    size: int


class CausalOriginal:
    """A transformers causal language model in fp32."""

    def __init__(self, folder: Path) -> None:
        """Load the model. Raises ``ExportFailed`` if transformers cannot load it, or if it has no cache of keys and
        values.
        """
        import torch
        import transformers

        self._torch = torch
        self._model = load_model(folder, "AutoModelForCausalLM")
        own = self._model.generation_config.eos_token_id
        self.eos_ids: frozenset[int] = frozenset([own] if isinstance(own, int) else own or [])
        # Penalties, sampling and early ends are up to the program in Triton: the graph is judged on plain greedy steps.
        self._model.generation_config = transformers.GenerationConfig(pad_token_id=0)
        self._takes = frozenset(inspect.signature(self._model.forward).parameters)
        self.cache = self._find_cache()
        if (size := sum(p.numel() * p.element_size() for p in self._model.parameters())) > _MAX_BYTES:
            raise ExportFailed(
                f"the model has {size / 1e9:.1f} GB of weights, text generation here takes {_MAX_BYTES / 1e9:g}",
                hint="serve it with Triton's vLLM or TensorRT-LLM backend",
            )

    def weights(self) -> dict[str, Any]:
        """Return every number of the loaded model, by name, as arrays that share the model's memory."""
        return named_numbers(self._model)

    def use_threads(self, count: int) -> None:
        """Let torch compute on ``count`` threads."""
        self._torch.set_num_threads(count)

    def generate(self, prompt: Sequence[int], tokens: int) -> Continued:
        """Continue ``prompt`` with ``transformers``' own ``generate``: the best token each time, past any end token."""
        ids = self._torch.tensor([list(prompt)])
        with quietly():
            found = self._model.generate(
                ids, attention_mask=self._torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        logits = np.stack([step[0].float().numpy() for step in found.logits])
        return Continued(tuple(prompt), tuple(found.sequences[0, len(prompt) :].tolist()), logits)

    def export(self, target: Path) -> None:
        """Write the model as one ONNX file. Raises ``ExportFailed`` with the exporter's own reason."""
        torch = self._torch
        # No two sizes are equal and none is 1, because the exporter would take them for one symbol, or for a constant.
        rows, new, past = 2, 5, 3
        inputs: dict[str, Any] = {
            "input_ids": torch.ones(rows, new, dtype=torch.int64),
            "attention_mask": torch.ones(rows, past + new, dtype=torch.int64),
        }
        shapes: dict[str, Any] = {
            "input_ids": {0: "batch", 1: "sequence"},
            "attention_mask": {0: "batch", 1: "total"},
        }
        if "position_ids" in self._takes:
            inputs["position_ids"] = torch.arange(past, past + new).repeat(rows, 1)
            shapes["position_ids"] = {0: "batch", 1: "sequence"}
        names = [*inputs, *(f"past_key_values.{t.name}" for t in self.cache)]
        inputs["past"] = [torch.zeros(rows, t.heads, past, t.size) for t in self.cache]
        shapes["past"] = [{0: "batch", 2: "past"} for _ in self.cache]
        with quietly():
            try:
                torch.onnx.export(
                    _flat(self._model, keeps_last="logits_to_keep" in self._takes),
                    (),
                    str(target),
                    kwargs=inputs,
                    input_names=names,
                    output_names=["logits", *(f"present.{t.name}" for t in self.cache)],
                    dynamic_shapes=shapes,
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
            except Exception as error:
                raise not_exported(error) from error

    def _find_cache(self) -> list[CacheTensor]:
        """Call the model and inspect the cache that it returns."""
        torch, tokens = self._torch, 3
        with quietly(), torch.inference_mode():
            try:
                answer = self._model(input_ids=torch.ones(1, tokens, dtype=torch.int64), use_cache=True)
            except Exception as error:
                raise ExportFailed(f"the model cannot be run: {first_line(error)}") from error
        cache = getattr(answer, "past_key_values", None)
        found: list[CacheTensor] = []
        for number, layer in enumerate(getattr(cache, "layers", None) or ()):
            for part in ("key", "value"):
                tensor = getattr(layer, f"{part}s", None)
                if tensor is None or tensor.ndim != 4 or tensor.shape[2] != tokens:
                    raise _no_cache(f"layer {number} keeps {type(layer).__name__}")
                found.append(CacheTensor(f"{number}.{part}", int(tensor.shape[1]), int(tensor.shape[3])))
        if not found:
            kept = next((name for name in ("cache_params", "state") if getattr(answer, name, None) is not None), "")
            raise _no_cache(f"it keeps {kept or 'nothing'}")
        return found


def _no_cache(what: str) -> ExportFailed:
    return ExportFailed(
        f"the model has no cache of keys and values per layer and token: {what}",
        hint="text generation serves decoders with attention in every layer (GPT-2, Llama, Qwen2, …); is config.json's "
        "architecture a decoder (is_decoder)?",
    )


def _flat(model: Any, *, keeps_last: bool) -> Any:
    import torch
    from transformers.cache_utils import DynamicCache

    class Flat(torch.nn.Module):  # type: ignore[misc]
        """Wraps the model: tensors in, a tuple of tensors out, the cache as a plain list."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self, input_ids: Any, attention_mask: Any, position_ids: Any = None, past: Sequence[Any] = ()
        ) -> Any:
            # Without the configuration: layers with a window would drop what is outside it, while the graph's mask
            # covers all tokens.
            cache = DynamicCache()
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            extra: dict[str, Any] = {} if position_ids is None else {"position_ids": position_ids}
            if keeps_last:
                extra["logits_to_keep"] = 1
            answer = self.model(
                input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True, **extra
            )
            layers = answer.past_key_values.layers
            return (answer.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))

    return Flat().eval()
