"""Every task without code on the real Triton: a bundle is registered, requests come side by side, answers are those of
the processor with PyTorch behind it.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import (
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from preprocessing.processor import TextProcessor
from tests.integration import served_bundles
from tests.integration import tiny_models as tiny

pytestmark = pytest.mark.integration

LONG = " ".join(tiny.families.CORPUS[:5])
NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
TAGS = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}}
TASKS: dict[str, tuple[Any, dict[str, Any], list[str], list[Any]]] = {
    "text-classification": (
        BertForSequenceClassification, {"num_labels": 3}, ["logits"],
        [{"text": "the fox"}, {"text": ["a", LONG]}, {"text": "a", "text_pair": "b c"}],
    ),
    "ranking": (
        BertForSequenceClassification, {"num_labels": 1}, ["logits"],
        [{"query": "fox", "documents": ["the fox", "dog", LONG]},
         {"query": ["a", "b"], "documents": [["c"], ["d", "e"]]}],
    ),
    "zero-shot-classification": (
        BertForSequenceClassification, NLI, ["logits"],
        [{"text": ["fox", LONG], "parameters": {"candidate_labels": ["dog", "cat", "a b"], "multi_label": True}}],
    ),
    "fill-mask": (BertForMaskedLM, {}, ["logits"], [{"text": ["the [MASK] fox", "[MASK] and [MASK] " + "b " * 30]}]),
    "token-classification": (
        BertForTokenClassification, TAGS, ["logits"], [{"text": LONG}, {"text": ["the fox", "你好 fox", LONG]}],
    ),
    "question-answering": (
        BertForQuestionAnswering, {}, ["start_logits", "end_logits"],
        [{"question": "who?", "context": LONG}, {"question": ["a", "b"], "context": "the quick fox"}],
    ),
    "feature-extraction": (BertModel, {}, ["last_hidden_state"], [{"text": ["a", "the quick brown fox"]}]),
    "sentence-embeddings": (
        BertModel, {}, ["last_hidden_state"], [{"text": ["a", LONG], "parameters": {"truncate_dim": 8}}],
    ),
}  # fmt: skip


class _Named(torch.nn.Module):
    def __init__(self, model: Any, outputs: list[str]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        answer = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return tuple(answer[name] for name in self.outputs)


def export(model: Any, outputs: list[str], target: Path) -> None:
    """A graph of any batch and length."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    both = {0: "batch", 1: "sequence"}
    axes = {**dict.fromkeys(names, both), **{o: both if model.__class__ is not BertForSequenceClassification else
                                             {0: "batch"} for o in outputs}}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Named(model, outputs).eval(), tuple(torch.ones(2, 7, dtype=torch.int64) for _ in names), str(target),
            input_names=names, output_names=outputs, dynamic_axes=axes, dynamo=False,
        )  # fmt: skip


def same(theirs: Any, ours: Any) -> None:
    """Equal as JSON, numbers within 1e-4: padded beside others, a row's last digits differ."""
    if isinstance(theirs, dict):
        assert theirs.keys() == ours.keys()
        for key, value in theirs.items():
            same(value, ours[key])
    elif isinstance(theirs, list):
        assert len(theirs) == len(ours)
        for a, b in zip(theirs, ours, strict=True):
            same(a, b)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-4)
    else:
        assert theirs == ours


async def test_every_task_is_served_without_code(tmp_path: Path, embedded_triton: Any) -> None:
    """All at once, three times each: what shares a call with others is answered as if it were alone."""
    bundles, expected = {}, []
    for task, (model_class, config, outputs, bodies) in TASKS.items():
        folder = tmp_path / task
        model, _ = tiny.save(folder, "WordPiece", model_class, **config)
        (folder / "model.safetensors").unlink()
        export(model, outputs, folder / "model.onnx")
        bundles[task] = (folder, {"task": task})
        alone = tiny.TorchBackend(
            TextProcessor.from_folder(folder, options={"task": task}, output_names=outputs), model
        )
        for body in bodies:
            plain = json.dumps(alone.ask(body), default=lambda value: value.tolist())
            expected.append((task, body, json.loads(plain)))
    async with served_bundles.serving(tmp_path, embedded_triton, bundles) as running:
        async with httpx.AsyncClient(timeout=60) as client:
            requests = [(task, body, answer) for task, body, answer in expected for _ in range(3)]
            answers = await asyncio.gather(*(client.post(running.url + task, json=body) for task, body, _ in requests))
    for (task, body, answer), response in zip(requests, answers, strict=True):
        assert (200, task) == (response.status_code, response.headers["x-served-by"]), (body, response.text)
        same(answer, response.json())
