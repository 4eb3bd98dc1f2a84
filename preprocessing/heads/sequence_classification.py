"""Text classification: one text or pair to one label with its score, as `transformers`' text-classification pipeline
scores it.

Request: `{"text": …, "text_pair": …, "parameters": {"top_k": 3, "function_to_apply": "softmax"}}` in the forms of
`heads.base.parse_texts`; parameters are optional.

Answer for one text: `{"label": L, "score": s, "scores": {L: s, …}, "tokens": n}`, scores from best to worst and only
the `top_k` best if that was asked for.
For a list: `{"results": [{"label": L, "score": s, "scores": {…}}, …], "tokens": [n, …]}`.
`"truncated"` (true, or a list of booleans) is there only when something was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, isfinite
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from preprocessing.activations import sigmoid, softmax
from preprocessing.config import ACTIVATIONS, CLASSIFICATION, Activation, TaskConfig
from preprocessing.errors import InvalidOutput
from preprocessing.heads.base import (
    Cost,
    Head,
    choice_of,
    count_of,
    parse_texts,
    refuse_non_finite,
    refuse_unknown_parameters,
)
from preprocessing.types import FloatArray, ParsedRequest, Prepared, Tensors

_PARAMETERS: Final = ("top_k", "function_to_apply")
_FEW_LABELS: Final = 16
_score: Final = itemgetter(1)


class SequenceClassification(Head):
    """The head of `*ForSequenceClassification` models: single label, multi label and regression."""

    task = CLASSIFICATION
    text_fields = ("text", "text_pair")
    row_cost: Cost

    def __init__(self, config: TaskConfig) -> None:
        self._config = config
        result_bytes = 80 + sum(len(label.encode()) + 24 for label in config.labels)
        self.row_cost = Cost(result_bytes, len(config.labels) + 4)

    def parse(self, body: object) -> ParsedRequest:
        """Return texts or pairs, and the number of labels to list."""
        texts, is_batch, parameters = parse_texts(body, self._config, pairs=True)
        if not parameters:
            return ParsedRequest(texts, is_batch, parameters)
        refuse_unknown_parameters(parameters, _PARAMETERS)
        given = {
            "top_k": count_of(parameters, "top_k"),
            "function_to_apply": choice_of(parameters, "function_to_apply", ACTIVATIONS),
        }
        return ParsedRequest(texts, is_batch, {name: value for name, value in given.items() if value is not None})

    def cost(self, prepared: Prepared, output_bytes: int) -> Cost:
        """Estimate: every label of every row."""
        del output_bytes
        rows = len(prepared.rows)
        return Cost(rows * self.row_cost.answer_bytes, rows * self.row_cost.work)

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Return scores in descending order; equal scores in the order of the model's labels."""
        labels, options = self._config.labels, prepared.request.options
        name, logits = self.take(outputs)
        if logits.shape != (len(prepared.rows), len(labels)):
            raise InvalidOutput(
                f"Output {name} has shape {list(logits.shape)}, expected {[len(prepared.rows), len(labels)]}",
                hint="rows × labels of config.json's id2label",
            )
        decode = self._decode_few if len(labels) <= _FEW_LABELS else self._decode_many
        results = decode(name, logits, options)
        if options:
            prepared.unaltered = decode(name, logits, {})
        return results

    def _decode_many(self, name: str, logits: NDArray[Any], options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        labels = self._config.labels
        refuse_non_finite(name, logits)
        scores = _apply(options.get("function_to_apply", self._config.activation), logits)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : options.get("top_k", self._config.top_k)]
        sorted_scores = np.take_along_axis(scores, order, axis=1)
        return [
            _result([labels[i] for i in indices], values)
            for indices, values in zip(order.tolist(), sorted_scores.tolist(), strict=True)
        ]

    def _decode_few(self, name: str, logits: NDArray[Any], options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        # For a few numbers, numpy costs many times more than plain floats. The number of labels decides, not the number
        # of rows: a text's scores must not depend on the other texts of its batch.
        activate = _PLAIN[options.get("function_to_apply", self._config.activation)]
        top_k = options.get("top_k", self._config.top_k)
        labels = self._config.labels
        results: list[Mapping[str, Any]] = []
        for row in logits.tolist():
            if not isfinite(sum(row)):  # the sum keeps infinity and NaN, and finite float32 numbers cannot overflow it
                refuse_non_finite(name, logits)
            ranked = sorted(zip(labels, activate(row), strict=True), key=_score, reverse=True)[:top_k]
            label, score = ranked[0]
            results.append({"label": label, "score": score, "scores": dict(ranked)})
        return results

    def describe(self) -> dict[str, object]:
        """Return labels, activation and an example."""
        return {
            "labels": list(self._config.labels),
            "function_to_apply": self._config.activation,
            "parameters": list(_PARAMETERS),
            "text_pairs": True,
            "example": {"text": "I like this very much."},
        }


def _plain_softmax(row: list[float]) -> list[float]:
    highest = max(row)
    exponentials = [exp(x - highest) for x in row]
    total = sum(exponentials)
    return [x / total for x in exponentials]


def _plain_sigmoid(row: list[float]) -> list[float]:
    return [1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x)) for x in row]


def _plain_none(row: list[float]) -> list[float]:
    return row


_PLAIN: Final[Mapping[Activation, Callable[[list[float]], list[float]]]] = {
    "softmax": _plain_softmax,
    "sigmoid": _plain_sigmoid,
    "none": _plain_none,
}


def _result(labels: list[str], scores: list[float]) -> dict[str, Any]:
    return {"label": labels[0], "score": scores[0], "scores": dict(zip(labels, scores, strict=True))}


def _apply(function: Activation, logits: NDArray[Any]) -> FloatArray:
    if function == "softmax":
        return softmax(logits)
    if function == "sigmoid":
        return sigmoid(logits)
    return logits.astype(np.float32, copy=False)
