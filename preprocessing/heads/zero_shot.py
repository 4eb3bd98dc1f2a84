"""Zero-shot classification: orders a request's own labels by how well they fit a text, with a natural language
inference model, like the zero-shot-classification pipeline of `transformers`.

Request: `{"text": …, "parameters": {"candidate_labels": ["…", …], "hypothesis_template": "This example is {}.",
"multi_label": false}}`; labels may also come from the endpoint's options.

Answer for one text: `{"label": L, "score": s, "scores": {L: s, …}, "tokens": n}`, best first; for a list:
`{"results": [{"label": …}, …], "tokens": [n, …]}`. `tokens` counts the text once per label, as the model reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from preprocessing.activations import softmax
from preprocessing.config import ZERO_SHOT, TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput
from preprocessing.heads.base import Head, group_counts, parse_texts, refuse_many, refuse_non_finite, text_field
from preprocessing.parameters import Names, Parameters, Template
from preprocessing.types import Encoded, ParsedRequest, Prepared, Tensors, Windows

# Only the text is cut, never the hypothesis.
_ROWS: Final = Windows(cuts="first", whole="parameters.candidate_labels", keeps_all=False)


class _Parameters(Parameters):
    candidate_labels: Names | None = None
    hypothesis_template: Template | None = None
    multi_label: bool | None = None


class ZeroShot(Head):
    """The head of natural language inference models; a label that starts with `entail` means entailment."""

    task = ZERO_SHOT
    parameters = _Parameters
    example: Mapping[str, object] = {
        "text": "My phone does not charge any more.",
        "parameters": {"candidate_labels": ["hardware", "billing", "delivery"]},
    }
    needs_windows = True

    def __init__(self, config: TaskConfig) -> None:
        found = [i for i, label in enumerate(config.labels) if label.lower().startswith("entail")]
        if not found or len(config.labels) < 2:
            raise InvalidBundle(
                f"Zero-shot classification needs a label `entailment`, this model has {', '.join(config.labels)}",
                hint="correct id2label in config.json, or use a natural language inference model",
            )
        self._entailment = found[0]
        self._contradiction = len(config.labels) - 1 if self._entailment == 0 else 0
        super().__init__(config)
        self.labels = config.candidate_labels

    def parse(self, body: object) -> ParsedRequest:
        """Return pairs of each text with the hypothesis of each label."""
        config = self._config
        found, is_batch, parameters = parse_texts(body, config, pairs=False)
        asked = _Parameters.of(parameters)
        labels = asked.candidate_labels or config.candidate_labels
        if not labels:
            raise InvalidInput(
                "parameters.candidate_labels is missing",
                field="parameters.candidate_labels",
                hint='send {"text": "…", "parameters": {"candidate_labels": ["…", "…"]}}',
            )
        if len(set(labels)) != len(labels):
            raise InvalidInput("candidate_labels has a label twice", field="parameters.candidate_labels")
        texts = cast("Sequence[str]", found)
        refuse_many(len(texts) * len(labels), config, "parameters.candidate_labels")
        hypotheses = _hypotheses(asked.hypothesis_template or config.hypothesis_template, labels, config.max_chars)
        multi_label = config.multi_label if asked.multi_label is None else asked.multi_label
        options = {"labels": labels, "multi_label": multi_label}
        pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
        return ParsedRequest(pairs, is_batch, options, _ROWS)

    def field_of(self, request: ParsedRequest, row: int) -> str:
        """Return the text's name, whichever label the row has."""
        return text_field(request, row // len(request.options["labels"]))

    def answer_bytes(self, prepared: Prepared, output_bytes: int) -> int:
        """Estimate: every label for every text."""
        del output_bytes
        labels = prepared.request.options["labels"]
        texts = len(prepared.rows) // len(labels)
        return texts * (60 + sum(len(label) + 28 for label in labels))

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Softmax of entailment over labels, or (`multi_label`, or one label) of entailment against contradiction."""
        labels: Sequence[str] = prepared.request.options["labels"]
        name, logits = self.take(outputs)
        wanted = (len(prepared.rows), len(self._config.labels))
        if logits.shape != wanted:
            raise InvalidOutput(
                f"Output {name} has shape {list(logits.shape)}, expected {list(wanted)}",
                hint="rows × labels of config.json's id2label",
            )
        refuse_non_finite(name, logits)
        by_text = logits.reshape(-1, len(labels), wanted[1])
        if prepared.request.options["multi_label"] or len(labels) == 1:
            scores = softmax(by_text[:, :, [self._contradiction, self._entailment]])[:, :, 1]
        else:
            scores = softmax(by_text[:, :, self._entailment])
        results: list[Mapping[str, Any]] = []
        for own in scores:
            order = np.argsort(-own, kind="stable").tolist()
            ranked = {labels[i]: float(own[i]) for i in order}
            results.append({"label": labels[order[0]], "score": float(own[order[0]]), "scores": ranked})
        return results

    def counted(self, prepared: Prepared) -> dict[str, object]:
        """Count a text once per label."""
        size = len(prepared.request.options["labels"])
        groups: list[list[Encoded]] = [
            prepared.rows[start : start + size] for start in range(0, len(prepared.rows), size)
        ]
        counted = group_counts(prepared, groups)
        counted.pop("windows", None)
        return counted


def _hypotheses(template: str, labels: Sequence[str], max_chars: int) -> list[str]:
    # Computed before making any: a long template and many labels multiply.
    chars = len(labels) * (len(template) - 2) + sum(map(len, labels))
    if chars > max_chars:
        raise InvalidInput(
            f"hypothesis_template and candidate_labels make {chars} characters, at most {max_chars} are taken",
            field="parameters.hypothesis_template",
            hint="use a shorter template, or shorter or fewer labels",
        )
    # Not str.format, through which a caller's template could access Python objects.
    return [template.replace("{}", label) for label in labels]
