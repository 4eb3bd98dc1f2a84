"""The reference distributions of a bundle: the built-in drift variables of the user's own texts. Pure.

Written as ``reference.json``, which the gateway reads from the model's folder. Only for the user's texts: compared with
the built-in samples, all real traffic would look like drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.metrics import drift, texts, variables
from preprocessing.types import Prepared


def distributions(prepared: Sequence[Prepared], answers: Sequence[Mapping[str, Any]]) -> drift.Reference:
    """Return the bins of every variable that these requests and answers have."""
    rows = [row for request in prepared for row in request.rows]
    beginnings = [texts.beginning(text) for request in prepared for text in request.request.texts]
    labelled = [answer for answer in answers if "label" in answer and "score" in answer]

    def buckets(name: str, values: Sequence[float]) -> dict[str, float]:
        return drift.buckets(variables.BOUNDS[name], values)

    counts: dict[str, Mapping[str, float]] = {
        variables.TOKENS: buckets(variables.TOKENS, [row.n_tokens for row in rows]),
        variables.UNKNOWN: buckets(variables.UNKNOWN, [row.n_unknown / row.n_tokens for row in rows]),
        variables.LANGUAGE: Counter(texts.language(one, texts.words_of(one)) for one in beginnings),
        variables.CASE: Counter(map(texts.letter_case, beginnings)),
        variables.LABEL: Counter(str(answer["label"]) for answer in labelled),
        variables.SCORE: buckets(variables.SCORE, [float(answer["score"]) for answer in labelled]),
    }
    return drift.Reference({name: drift.reference_of(of) for name, of in counts.items() if any(of.values())})
