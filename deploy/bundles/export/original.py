"""The original in PyTorch: runs it unchanged, and exports it to ONNX with a dynamic batch and length.

Only ``Original`` loads weights into torch; the accuracy gate gets the truth from it, and the speed table the time to
beat. Every architecture uses ``transformers``' own class for its task, so it answers what the model's author sees.
torch is imported inside the functions that use it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.bundles.export import custom_code
from deploy.tools.errors import ExportFailed, first_line
from preprocessing.config import (
    CLASSIFICATION,
    EMBEDDINGS,
    FEATURES,
    FILL_MASK,
    QUESTION_ANSWERING,
    RANKING,
    TOKENS,
    ZERO_SHOT,
    TaskConfig,
)

Arrays = Mapping[str, Any]

_CLASSES: Final[Mapping[str, str]] = {
    EMBEDDINGS: "AutoModel",
    FEATURES: "AutoModel",
    CLASSIFICATION: "AutoModelForSequenceClassification",
    RANKING: "AutoModelForSequenceClassification",
    ZERO_SHOT: "AutoModelForSequenceClassification",
    TOKENS: "AutoModelForTokenClassification",
    QUESTION_ANSWERING: "AutoModelForQuestionAnswering",
    FILL_MASK: "AutoModelForMaskedLM",
}
_POOLED: Final = ("cls", "mean", "max")
"""Pooling modes that are added to the graph, which then answers one vector per text instead of one per token."""


class Original:
    """A transformers model in fp32, called with numpy arrays."""

    def __init__(self, folder: Path, config: TaskConfig) -> None:
        """Load the model. Raises ``ExportFailed`` if transformers cannot load it, or if its files lack some weights."""
        import torch

        if config.task not in _CLASSES:
            raise ExportFailed(
                f"models for {config.task} cannot be exported", hint=f"known tasks: {', '.join(_CLASSES)}"
            )
        self.config = config
        self._torch = torch
        model = load_model(folder, _class_for(config))
        self._model = model
        self._attention = getattr(model.config, "_attn_implementation", "")
        self.module = _flat(model, config)
        self._exported = _exportable(model, config) or self.module
        self.output_names: tuple[str, ...] = self.module.names

    def run(self, feeds: Arrays) -> dict[str, Any]:
        """Answer one batch: output name → array. Raises ``ExportFailed`` with the model's own reason."""
        try:
            with self._torch.inference_mode():
                outputs = self.module(**{name: self._torch.from_numpy(value) for name, value in feeds.items()})
        except Exception as error:
            shapes = " × ".join(map(str, feeds["input_ids"].shape))
            raise ExportFailed(
                f"PyTorch cannot run the model on {shapes} tokens: {first_line(error)}",
                hint="does transformers' own pipeline run it? its tokenizer and config.json may not belong together",
            ) from error
        return {name: value.numpy() for name, value in zip(self.output_names, outputs, strict=True)}

    def use_threads(self, count: int) -> None:
        """Let torch compute on ``count`` threads."""
        self._torch.set_num_threads(count)

    def export(self, target: Path, example: Arrays) -> None:
        """Write the model as one ONNX file. Raises ``ExportFailed`` with the exporter's own reason."""
        try:
            self._export(target, example)
        except ExportFailed:
            # the code of some models around torch's own attention cannot be exported (T5's), but the plain one can
            if self._attention != "sdpa" or not _attends(self._model, "eager"):
                raise
            try:
                self._export(target, example)
            finally:
                _attends(self._model, "sdpa")

    def _export(self, target: Path, example: Arrays) -> None:
        torch = self._torch
        names = list(example)
        # A symbol of size 1 would be taken for a constant, so the example has several rows and tokens.
        sizes = {name: value.shape for name, value in example.items()}
        if any(min(shape) < 2 for shape in sizes.values()):
            raise ValueError(f"the example is too small: {sizes}")
        with quietly():
            try:
                torch.onnx.export(
                    self._exported,
                    (),
                    str(target),
                    kwargs={name: torch.from_numpy(value) for name, value in example.items()},
                    input_names=names,
                    output_names=list(self.module.names),
                    dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names},
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
            except Exception as error:
                raise not_exported(error) from error


def _class_for(config: TaskConfig) -> str:
    """Return transformers' class for the task. For features of an encoder-decoder model (T5), the encoder's class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES as ENCODERS

    if config.task in (EMBEDDINGS, FEATURES) and "Encoder" in ENCODERS.get(config.model_type or "", ""):
        return "AutoModelForTextEncoding"
    return _CLASSES[config.task]


def load_model(folder: Path, kind: str, *, attention: str = "sdpa") -> Any:
    """Return the model in ``folder`` in fp32; ``kind`` is the name of a class of transformers.

    Raises ``ExportFailed`` if transformers cannot load it, or if its files lack some weights.
    """
    import torch
    import transformers

    loader = getattr(transformers, kind)
    with quietly():
        try:
            model, report = loader.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, attn_implementation=attention,
                output_loading_info=True, **custom_code.arguments(),
            )  # fmt: skip
        except Exception as error:
            if attention != "eager" and "attn_implementation" in str(error):
                return load_model(folder, kind, attention="eager")
            raise ExportFailed(f"transformers cannot load the model: {first_line(error)}") from error
    missing = sorted(n for n in report.get("missing_keys", ()) if "position_ids" not in n and "pooler" not in n)
    if missing:
        raise ExportFailed(
            f"{len(missing)} weights are not in the model's files and would be random: {', '.join(missing[:3])}",
            hint="was the model saved with another head? its config.json names the architecture",
        )
    if getattr(model.config, "attention_type", "") == "block_sparse":
        raise ExportFailed(
            f"{type(model).__name__} answers a long text differently after a short one, in PyTorch too: a text that is "
            "too short for sparse attention switches it off",
            hint="set attention_type to original_full in its config.json",
        )
    return model.eval()


def _flat(model: Any, config: TaskConfig) -> Any:
    import torch

    pooling: Sequence[str] = config.pooling if config.task == EMBEDDINGS else ()
    is_pooled = bool(pooling) and all(mode in _POOLED for mode in pooling)
    pools_first = config.padding_side == "right"

    class Flat(torch.nn.Module):  # type: ignore[misc]
        """Wraps a model: named tensors in, a tuple of tensors out."""

        names: tuple[str, ...]

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            if config.task == QUESTION_ANSWERING:
                self.names = ("start_logits", "end_logits")
            elif config.task == FEATURES:
                self.names = ("last_hidden_state",)
            elif config.task == EMBEDDINGS:
                # not "embedding": that name collides with a value inside the graph, which shows only when it is loaded
                self.names = ("sentence_embedding",) if is_pooled and pools_first else ("last_hidden_state",)
            else:
                self.names = ("logits",)

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            answer = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
            if self.names != ("sentence_embedding",):
                return tuple(answer[name] for name in self.names)
            hidden, mask = answer.last_hidden_state, attention_mask.unsqueeze(-1)
            vectors = []
            for mode in pooling:
                if mode == "cls":
                    vectors.append(hidden[:, 0])
                elif mode == "max":
                    vectors.append(hidden.masked_fill(mask == 0, torch.finfo(hidden.dtype).min).max(1).values)
                else:
                    weights = mask.to(hidden.dtype)
                    vectors.append((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9))
            return (torch.cat(vectors, 1),)

    return Flat().eval()


def _attends(model: Any, how: str) -> bool:
    """Set how the model computes attention, in one of transformers' ways; return whether it was accepted."""
    try:
        model.set_attn_implementation(how)
    except (AttributeError, ValueError):
        return False
    return bool(getattr(model.config, "_attn_implementation", "") == how)


def _exportable(model: Any, config: TaskConfig) -> Any:
    """Return a module to export in place of a model whose own code cannot be exported; None if it can.

    It computes the same answers in another way, and the gate compares them with the model itself.
    """

    if config.task in (CLASSIFICATION, RANKING, ZERO_SHOT) and getattr(model.config, "is_encoder_decoder", False):
        body = getattr(model, "model", None) or getattr(model, "transformer", None)
        if body is not None and hasattr(model, "classification_head"):
            return _classifier_of_the_end(model, body)
    return None


def _classifier_of_the_end(model: Any, body: Any) -> Any:
    """Return a classifier with a decoder (BART, T5) that reads the last end token of each row.

    transformers picks end tokens with a mask, which requires equally many in all rows. mBART's own shift loses an axis
    for a batch of one.
    """
    import torch

    first = getattr(model.config, "decoder_start_token_id", None)
    wraps = model.config.model_type in ("mbart", "plbart")
    end, padding = model.config.eos_token_id, model.config.pad_token_id

    class Classifier(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, model.classification_head

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            if wraps:  # these begin with the last token, which is their language
                last = (input_ids.ne(padding).sum(1, keepdim=True) - 1).clamp(min=0)
                start = input_ids.gather(1, last)
            else:
                start = torch.full_like(input_ids[:, :1], first)
            hidden = self.body(
                input_ids=input_ids, attention_mask=attention_mask,
                decoder_input_ids=torch.cat([start, input_ids[:, :-1]], 1), use_cache=False,
            ).last_hidden_state  # fmt: skip
            places = torch.arange(input_ids.shape[1], device=input_ids.device)
            at = torch.where(input_ids.eq(end), places, 0).amax(1)
            picked = hidden.gather(1, at[:, None, None].expand(-1, 1, hidden.shape[2]))
            return (self.head(picked[:, 0]),)

    return Classifier().eval()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence cosmetic warnings of the exporters; failures still raise."""
    names = ("torch.onnx", "torch", "onnxscript", "onnx_ir", "transformers", "root")
    before = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)


def not_exported(error: Exception) -> ExportFailed:
    """Return the error for a model that the exporter cannot export."""
    return ExportFailed(
        f"torch cannot export this model to ONNX: {first_line(error)}",
        hint="serve it with a Preprocess class and another Triton backend",
    )
