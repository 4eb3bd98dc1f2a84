"""The original in PyTorch: run as it is, and exported to ONNX with a dynamic batch and length.

``Original`` is the one place that loads weights into torch; the accuracy gate asks it for the truth, the speed table
for the time to beat. Every architecture goes through ``transformers``' own class for its task, so what it answers is
what the model's author sees. torch is imported inside the functions that run it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.errors import ExportFailed
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
"""What is pooled inside the graph, which then answers with one vector per text instead of one per token."""


class Original:
    """A transformers model in fp32, called with numpy arrays."""

    def __init__(self, folder: Path, config: TaskConfig, *, attention: str = "sdpa") -> None:
        """Load it. Raises ``ExportFailed`` when transformers cannot, or some weights are not in the files."""
        import torch

        if config.task not in _CLASSES:
            raise ExportFailed(f"models for {config.task} cannot be exported", hint=f"known are {', '.join(_CLASSES)}")
        self.config = config
        self._torch = torch
        model = load_model(folder, _CLASSES[config.task], attention=attention)
        self.module = _flat(model, config)
        self.output_names: tuple[str, ...] = self.module.names

    def run(self, feeds: Arrays) -> dict[str, Any]:
        """Answer one batch: output name → array."""
        with self._torch.inference_mode():
            outputs = self.module(**{name: self._torch.from_numpy(value) for name, value in feeds.items()})
        return {name: value.numpy() for name, value in zip(self.output_names, outputs, strict=True)}

    def use_threads(self, count: int) -> None:
        """Let torch compute on ``count`` threads."""
        self._torch.set_num_threads(count)

    def export(self, target: Path, example: Arrays) -> None:
        """Write the model as one ONNX file. Raises ``ExportFailed`` with the exporter's own reason."""
        torch = self._torch
        names = list(example)
        # A symbol of size 1 would be taken for a constant: the example has several rows and tokens.
        sizes = {name: value.shape for name, value in example.items()}
        if any(min(shape) < 2 for shape in sizes.values()):
            raise ValueError(f"the example is too small: {sizes}")
        with quietly():
            try:
                torch.onnx.export(
                    self.module,
                    (),
                    str(target),
                    kwargs={name: torch.from_numpy(value) for name, value in example.items()},
                    input_names=names,
                    output_names=list(self.output_names),
                    dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in names},
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
            except Exception as error:
                raise not_exported(error) from error


def load_model(folder: Path, kind: str, *, attention: str = "sdpa") -> Any:
    """Return the model in ``folder`` in fp32, by ``kind``, one of transformers' classes of its name.

    Raises ``ExportFailed`` when transformers cannot load it, or some weights are not in the files.
    """
    import torch
    import transformers

    loader = getattr(transformers, kind)
    with quietly():
        try:
            model, report = loader.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, attn_implementation=attention,
                output_loading_info=True,
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
    return model.eval()


def _flat(model: Any, config: TaskConfig) -> Any:
    import torch

    pooling: Sequence[str] = config.pooling if config.task == EMBEDDINGS else ()
    is_pooled = bool(pooling) and all(mode in _POOLED for mode in pooling)
    pools_first = config.padding_side == "right"

    class Flat(torch.nn.Module):  # type: ignore[misc]
        """Named tensors in, a tuple of tensors out."""

        names: tuple[str, ...]

        def __init__(self) -> None:
            super().__init__()
            self.model = model
            if config.task == QUESTION_ANSWERING:
                self.names = ("start_logits", "end_logits")
            elif config.task == FEATURES:
                self.names = ("last_hidden_state",)
            elif config.task == EMBEDDINGS:
                # not "embedding": that name collides with a value inside the graph, which only loading reveals
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


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence cosmetic warnings of the exporters; failures still raise."""
    names = ("torch.onnx", "torch", "onnxscript", "onnx_ir", "transformers", "nncf", "root")
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
    """Return what is told of a model that the exporter gives up on."""
    return ExportFailed(
        f"torch cannot export this model to ONNX: {first_line(error)}",
        hint="its architecture does something that depends on the data; a Preprocess class and another Triton backend "
        "can serve it",
    )


def first_line(error: BaseException) -> str:
    """Return the line of an error that names it, shortened."""
    text = str(error)
    # torch's exporter ends several lines of advice with the exception that it met
    _, _, summary = text.partition("## Exception summary")
    lines = [line.strip() for line in (summary or text).splitlines() if line.strip()]
    useful = [line for line in lines if "Error" in line or "error" in line] or lines
    return (useful[0] if useful else type(error).__name__)[:400]
