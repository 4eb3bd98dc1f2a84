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

Distributions = Mapping[str, drift.Bins]
"""The bins of each variable, by name."""


def distributions(prepared: Sequence[Prepared], answers: Sequence[Mapping[str, Any]]) -> dict[str, drift.Bins]:
    """Return the bins of every variable that these requests and answers have."""
    rows = [row for request in prepared for row in request.rows]
    found: dict[str, drift.Bins] = {
        variables.TOKENS: drift.scalar_bins([float(row.n_tokens) for row in rows]),
        variables.UNKNOWN: drift.scalar_bins([row.n_unknown / row.n_tokens for row in rows]),
    }
    beginnings = [texts.beginning(text) for request in prepared for text in request.request.texts]
    found[variables.LANGUAGE] = drift.enum_bins(Counter(texts.language(one, texts.words_of(one)) for one in beginnings))
    found[variables.CASE] = drift.enum_bins(Counter(map(texts.letter_case, beginnings)))
    labelled = [answer for answer in answers if "label" in answer and "score" in answer]
    if labelled:
        found[variables.LABEL] = drift.enum_bins(Counter(str(answer["label"]) for answer in labelled))
        found[variables.SCORE] = drift.scalar_bins([float(answer["score"]) for answer in labelled])
    return found


def encode(found: Distributions, *, source: str) -> str:
    """Return the text of ``reference.json``."""
    return drift.encode(found, source=source)
