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

from numpy.typing import NDArray

from preprocessing.config import CLASSIFICATION, TaskConfig
from preprocessing.errors import InvalidOutput
from preprocessing.heads.base import Head, parse_texts, refuse_non_finite
from preprocessing.parameters import Activation, Count, Parameters
from preprocessing.types import ParsedRequest, Prepared, Tensors

_score: Final = itemgetter(1)


class _Parameters(Parameters):
    top_k: Count | None = None
    function_to_apply: Activation | None = None


class SequenceClassification(Head):
    """The head of `*ForSequenceClassification` models: single label, multi label and regression."""

    task = CLASSIFICATION
    text_fields = ("text", "text_pair")
    parameters = _Parameters
    example: Mapping[str, object] = {"text": "I like this very much."}

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self.labels = config.labels
        self.row_bytes = 80 + sum(len(label.encode()) + 24 for label in config.labels)

    def parse(self, body: object) -> ParsedRequest:
        """Return texts or pairs, and the number of labels to list."""
        texts, is_batch, parameters = parse_texts(body, self._config, pairs=True)
        if not parameters:
            return ParsedRequest(texts, is_batch, parameters)
        return ParsedRequest(texts, is_batch, _Parameters.of(parameters).given())

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Return scores in descending order; equal scores in the order of the model's labels."""
        labels, options = self._config.labels, prepared.request.options
        name, logits = self.take(outputs)
        if logits.shape != (len(prepared.rows), len(labels)):
            raise InvalidOutput(
                f"Output {name} has shape {list(logits.shape)}, expected {[len(prepared.rows), len(labels)]}",
                hint="rows × labels of config.json's id2label",
            )
        results = self._decode(name, logits, options)
        if options:
            prepared.unaltered = self._decode(name, logits, {})
        return results

    def _decode(self, name: str, logits: NDArray[Any], options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        # For the few labels that models have, numpy costs many times more than plain floats.
        activate = _ACTIVATE[options.get("function_to_apply", self._config.activation)]
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


def _softmax(row: list[float]) -> list[float]:
    highest = max(row)
    exponentials = [exp(x - highest) for x in row]
    total = sum(exponentials)
    return [x / total for x in exponentials]


def _sigmoid(row: list[float]) -> list[float]:
    return [1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x)) for x in row]


_ACTIVATE: Final[Mapping[Activation, Callable[[list[float]], list[float]]]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "none": list,
}
